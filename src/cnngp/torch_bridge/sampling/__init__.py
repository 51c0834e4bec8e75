"""A network as finite PyTorch modules."""
