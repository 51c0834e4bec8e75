"""Faults at random, until the time is up: what was done, and what came of it."""
