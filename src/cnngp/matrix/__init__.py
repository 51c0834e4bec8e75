"""Kernel matrices in tiles: in memory, in a store that survives anything, on a cluster. `cnngp.gram` is its door."""
