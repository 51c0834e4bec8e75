"""The formulas of nonlinearities as CUDA text."""
