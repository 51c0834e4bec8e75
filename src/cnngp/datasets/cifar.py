"""CIFAR-10's batches, as bytes and as Python pickles, which are read without running what they may hold."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.errors import DatasetError

IMAGES = 10_000
"""In a batch."""
PIXELS = 3 * 32 * 32
# All that a pickled array is made of. A pickle may name any function to call; others are refused.
_ALLOWED = {
    *((f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")),
    *(("numpy", name) for name in ("ndarray", "dtype")),
    ("_codecs", "encode"),
}

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


class _Arrays(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return super().find_class(module, name)


def _python(data: bytes, where: Path) -> Batch:
    """A pickled dictionary with `data` (N, 3072) and `labels`."""
    try:
        found = _Arrays(io.BytesIO(data), encoding="bytes").load()
        pixels, labels = np.asarray(found[b"data"]), np.asarray(found[b"labels"])
    except Exception as error:  # a damaged pickle may raise anything
        raise DatasetError(f"{where} is not a batch of CIFAR-10's Python version ({error})") from None
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
