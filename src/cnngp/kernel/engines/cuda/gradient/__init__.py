"""Gradients on cards: the reversed program (program/reverse.py), a block of threads for each pair of images."""
