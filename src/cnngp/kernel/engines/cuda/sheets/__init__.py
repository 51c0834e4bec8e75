"""Networks with average pooling: the displacements of a pair are cyclic shifts of one image against the other."""
