"""Import of a PyTorch module as a network."""
