"""The CUDA engine: a program is written as CUDA text and compiled to a kernel for the GPU."""
