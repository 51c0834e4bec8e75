"""The CUDA engine: a program becomes text, the text becomes a kernel on a card."""
