"""Nonlinearities in compiled code: the formulas of kernel/formulas at a place of a map, and loops along a row of it."""
