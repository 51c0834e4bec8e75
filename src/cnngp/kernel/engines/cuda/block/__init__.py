"""Programs without pools in any shape: a block of threads owns a pair of images."""
