"""Kernels: a network is compiled to a program, which engines run on pairs of images."""

from .kernel import Kernel

__all__ = ["Kernel"]
