"""The general kernels: a block of threads walks through a program of any kind, operation by operation."""
