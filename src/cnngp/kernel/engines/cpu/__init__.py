"""The CPU engine: programs encoded as integers, run by a compiled interpreter on vectors of pairs."""
