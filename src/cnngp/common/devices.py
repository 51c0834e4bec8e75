"""Devices: the choice behind "auto", and the properties of GPUs. Apart from engines, only this file queries a GPU."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Literal

import numpy as np

from .arrays import Output
from .optional import need

Device = Literal["auto", "cpu", "cuda"]
ActualDevice = Literal["cpu", "cuda"]


class EngineError(RuntimeError):
    """Error for a GPU that cannot be used."""


def check_device(device: object, whose: str = "") -> None:
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"{whose}device={device!r} is not 'auto', 'cpu' or 'cuda'")


def actual_device(device: Device) -> ActualDevice:
    """Resolve "auto" to "cuda" if there is a GPU, else "cpu"; raise `EngineError` for "cuda" without a GPU."""
    if device == "auto":
        return "cuda" if has_card() else "cpu"
    if device == "cuda":
        require_card()
    return device


def require_card() -> Any:
    """Return CuPy, or raise `EngineError` with a remedy if CuPy or a GPU is missing."""
    cupy = _cupy()
    try:
        found = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # CuPy raises its own types for missing drivers, libraries and GPUs
        raise EngineError(f"device='cuda': no usable NVIDIA GPU ({error}); use device='cpu'") from None
    if not found:
        raise EngineError("device='cuda': no NVIDIA GPU was found; use device='cpu'")
    return cupy


def has_card() -> bool:
    try:
        require_card()
    except EngineError:
        return False
    return True


def array_module(device: ActualDevice) -> Any:
    """Return the array library of a device: NumPy, or CuPy for a GPU."""
    return np if device == "cpu" else require_card()


def output_on(device: ActualDevice) -> Output:
    """Return the kind of array that lives on the device."""
    return "cupy" if device == "cuda" else "numpy"


def card_count() -> int:
    return int(_cupy().cuda.runtime.getDeviceCount())


def card(number: int) -> AbstractContextManager[Any]:
    """Context manager that makes this GPU the current one."""
    chosen: AbstractContextManager[Any] = _cupy().cuda.Device(number)
    return chosen


def card_name() -> str:
    """Name of the first GPU, such as "NVIDIA H200"."""
    return str(_cupy().cuda.runtime.getDeviceProperties(0)["name"].decode())


def card_memory() -> tuple[int, int]:
    """Memory of the current GPU in bytes: (free according to the driver, total)."""
    free, total = _cupy().cuda.runtime.memGetInfo()
    return int(free), int(total)


def pooled_memory() -> int:
    """Bytes on the current GPU that CuPy's pool holds without using them."""
    return int(_cupy().get_default_memory_pool().free_bytes())


def release_pooled_memory() -> None:
    """Release the unused memory of CuPy's pool to other libraries and processes."""
    _cupy().get_default_memory_pool().free_all_blocks()


def _cupy() -> Any:
    return need("cupy", "device='cuda'", EngineError)
