"""Networks with average pooling: all displacements of a pair as cyclic shifts of one image against the other."""
