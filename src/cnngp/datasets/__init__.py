"""Loading of labelled images: classic data sets, folders of photographs, arrays in files; and data augmentation."""

from .arrays import from_pairs, npz
from .dataset import Dataset
from .folders_and_tables import folder, table
from .sets import NAMES, cifar10, digits, fashion_mnist, load, mnist

__all__ = [
    "NAMES", "Dataset", "cifar10", "digits", "fashion_mnist", "folder", "from_pairs", "load", "mnist", "npz", "table",
]  # fmt: skip
