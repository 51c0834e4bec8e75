"""The general kernels: a block of threads walks through any program, operation by operation."""
