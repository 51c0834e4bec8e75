"""Kernel matrices on disk."""
