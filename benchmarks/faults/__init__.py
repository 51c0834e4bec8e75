"""Fault injection: random faults until a time limit, and their outcomes."""
