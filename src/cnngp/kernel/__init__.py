"""Kernels: a network becomes a program, and engines run the program on pairs of images."""

from .kernel import Kernel

__all__ = ["Kernel"]
