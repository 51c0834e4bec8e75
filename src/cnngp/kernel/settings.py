"""Checks of what a `Kernel` is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np

from cnngp.common.checks import is_whole
from cnngp.common.devices import check_device

DTYPES = ("float32", "float64")


def checked(device: object, dtype: Any, threads: Any, kind: object) -> tuple[str, int | None]:
    """The type's name, and the threads as an int; refused where they, the device or the kind are none."""
    if kind not in ("nngp", "ntk"):
        raise ValueError(
            f"Kernel: kind={kind!r} is not 'nngp', the kernel of the Gaussian process, or 'ntk', the tangent kernel"
        )
    check_device(device, "Kernel: ")
    try:
        name = str(np.dtype(dtype))
    except TypeError:
        name = ""
    if dtype is None or name not in DTYPES:
        raise ValueError(f"Kernel: dtype={dtype!r} is not 'float32' or 'float64'")
    if threads is None:
        return name, None
    if not is_whole(threads, least=1):
        raise ValueError(f"Kernel: threads={threads!r} is not a positive integer or None")
    return name, int(threads)
