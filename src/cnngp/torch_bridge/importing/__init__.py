"""A PyTorch module as a network."""
