"""The CPU engine: plans as integers, and a compiled interpreter over vectors of pairs."""
