"""Nonlinearities in compiled code: the formulas of kernel/formulas at one location, and loops along a row of a map."""
