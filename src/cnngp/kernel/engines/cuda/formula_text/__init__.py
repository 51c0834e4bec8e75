"""Formulas of nonlinearities as CUDA text."""
