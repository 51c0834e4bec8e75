"""Devices: which one "auto" stands for, and what a card says of itself. Engines aside, only this file asks a card."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Literal

import numpy as np

from .arrays import Output
from .optional import need

Device = Literal["auto", "cpu", "cuda"]
ActualDevice = Literal["cpu", "cuda"]


class EngineError(RuntimeError):
    """The card cannot be used."""


def check_device(device: object, whose: str = "") -> None:
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"{whose}device={device!r} is not 'auto', 'cpu' or 'cuda'")


def actual_device(device: Device) -> ActualDevice:
    """The device that this one stands for here; `EngineError` for "cuda" where there is no card."""
    if device == "auto":
        return "cuda" if has_card() else "cpu"
    if device == "cuda":
        require_card()
    return device


def require_card() -> Any:
    """CuPy; `EngineError`, with what to do, where it or a card is missing."""
    cupy = _cupy()
    try:
        found = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # CuPy raises its own types for missing drivers, libraries and cards
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
    """The library that computes there: NumPy, or CuPy for the card."""
    return np if device == "cpu" else require_card()


def output_on(device: ActualDevice) -> Output:
    """The kind of array that stays on the device."""
    return "cupy" if device == "cuda" else "numpy"


def card_count() -> int:
    return int(_cupy().cuda.runtime.getDeviceCount())


def card(number: int) -> AbstractContextManager[Any]:
    """Makes this card the current one."""
    chosen: AbstractContextManager[Any] = _cupy().cuda.Device(number)
    return chosen


def card_name() -> str:
    """Name of the first card, such as "NVIDIA H200"."""
    return str(_cupy().cuda.runtime.getDeviceProperties(0)["name"].decode())


def card_memory() -> tuple[int, int]:
    """Bytes of the current card: those that the driver has free, and all."""
    free, total = _cupy().cuda.runtime.memGetInfo()
    return int(free), int(total)


def pooled_memory() -> int:
    """Bytes of the current card that CuPy holds and does not use."""
    return int(_cupy().get_default_memory_pool().free_bytes())


def release_pooled_memory() -> None:
    """Give back what CuPy holds and does not use, for other libraries and processes."""
    _cupy().get_default_memory_pool().free_all_blocks()


def _cupy() -> Any:
    return need("cupy", "device='cuda'", EngineError)
