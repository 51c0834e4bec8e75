"""A kernel matrix on disk."""
