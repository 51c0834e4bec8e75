"""Kernel matrices in tiles: in memory, in a store that survives interruptions, on a cluster. See `cnngp.gram`."""
