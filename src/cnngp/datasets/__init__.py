"""Labelled images: the classic sets, folders of photographs, arrays in files, and more copies of each image."""

from .sets import NAMES, Dataset, cifar10, digits, fashion_mnist, folder, load, mnist, npz

__all__ = ["NAMES", "Dataset", "cifar10", "digits", "fashion_mnist", "folder", "load", "mnist", "npz"]
