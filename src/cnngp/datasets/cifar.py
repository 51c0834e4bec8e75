"""CIFAR-10's batches, as bytes and as Python pickles, which are read without running what they may hold."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.errors import DatasetError, one_line

IMAGES = 10_000
"""In a batch."""
PIXELS = 3 * 32 * 32
Batch = tuple[NDArray[np.uint8], NDArray[Any]]


def read_batch(data: bytes, where: Path) -> Batch:
    """Images (N, 3, 32, 32) and labels from the content of a batch, of either version."""
    return _python(data, where) if data[:1] == b"\x80" and len(data) % (1 + PIXELS) else _binary(data, where)


def _binary(data: bytes, where: Path) -> Batch:
    """Records of a label byte and 3 × 32 × 32 pixel bytes."""
    if len(data) != IMAGES * (1 + PIXELS):
        raise DatasetError(
            f"{where} has {len(data):,} bytes; a batch of the binary version has {IMAGES * (1 + PIXELS):,}"
        )
    records = np.frombuffer(data, np.uint8).reshape(IMAGES, 1 + PIXELS)
    return _checked(records[:, 1:], records[:, 0], where)


class _Named:
    """What stands in a pickle for an array or its type: the words that it was made with, and nothing made of them.

    NumPy itself trusts a pickle too much: an array of Python objects can be made there from any bytes as addresses.
    """

    def __init__(self, *words: Any) -> None:
        self.words = words
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def array(self) -> NDArray[Any]:
        _, shape, kind, by_columns, data = self.state
        if kind.words[0] not in ("u1", b"u1", "i8", b"i8") or kind.state[1] not in ("|", b"|", "<", b"<"):
            raise ValueError(f"an array of {kind.words[0]!r}")
        numbers = np.frombuffer(data, "u1" if kind.words[0] in ("u1", b"u1") else "<i8")
        return numbers.reshape(shape, order="F" if by_columns else "C")


def _encoded(text: str, _: Any) -> bytes:
    return text.encode("latin-1")


# All that a pickled array is made of. A pickle may name any function to call; others are refused.
_STANDS_FOR = {
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Named for core in ("core", "_core")},
    **{("numpy", name): _Named for name in ("ndarray", "dtype")},
    ("_codecs", "encode"): _encoded,
}


class _Arrays(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STANDS_FOR:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return _STANDS_FOR[module, name]


def _python(data: bytes, where: Path) -> Batch:
    """A pickled dictionary with `data` (N, 3072) and `labels`."""
    try:
        found = _Arrays(io.BytesIO(data), encoding="bytes").load()
        pixels, labels = found[b"data"].array(), found[b"labels"]
        if isinstance(labels, _Named):
            labels = labels.array()
        elif not all(type(label) is int for label in labels):
            raise ValueError("its labels are not whole numbers")
    except Exception as error:  # a damaged pickle may raise anything
        raise DatasetError(f"{where} is not a batch of CIFAR-10's Python version ({one_line(error)})") from None
    labels = np.asarray(labels)
    if pixels.shape != (IMAGES, PIXELS) or pixels.dtype != np.uint8 or labels.shape != (IMAGES,):
        raise DatasetError(
            f"{where} holds data {pixels.shape} of {pixels.dtype} and labels {labels.shape}; expected "
            f"({IMAGES}, {PIXELS}) of uint8 and ({IMAGES},)"
        )
    return _checked(pixels, labels, where)


def _checked(pixels: NDArray[np.uint8], labels: NDArray[Any], where: Path) -> Batch:
    if labels.min() < 0 or labels.max() > 9:
        raise DatasetError(f"{where}: labels from {labels.min()} to {labels.max()}; those of CIFAR-10 are 0 to 9")
    return pixels.reshape(-1, 3, 32, 32), labels.astype(np.int64)
