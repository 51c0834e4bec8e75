"""Images and labels in the four files of MNIST."""

import struct
from pathlib import Path

import numpy as np

from cnngp import datasets

DIGITS = datasets.digits()


def idx(array: np.ndarray) -> bytes:
    """The content of one of the files."""
    return b"\x00\x00\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_as_fashion_mnist(folder: Path) -> None:
    """Digits, enlarged to 28 × 28, where the paper's split of 60,000 images takes its first rows from."""
    images = np.zeros((60_000, 28, 28), np.uint8)
    labels = np.zeros(60_000, np.uint8)
    pixels = np.pad((255 * DIGITS.X[:, 0]).astype(np.uint8).repeat(3, 1).repeat(3, 2), ((0, 0), (2, 2), (2, 2)))
    for first, rows in ((5_000, slice(0, 200)), (55_000, slice(200, 300))):
        n = rows.stop - rows.start
        images[first : first + n], labels[first : first + n] = pixels[rows], DIGITS.y[rows]
    test_images, test_labels = images[:10_000].copy(), labels[:10_000].copy()
    test_images[:100], test_labels[:100] = pixels[300:400], DIGITS.y[300:400]
    folder.mkdir(parents=True)
    for name, x, y in (("train", images, labels), ("t10k", test_images, test_labels)):
        (folder / f"{name}-images-idx3-ubyte").write_bytes(idx(x))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(idx(y))
