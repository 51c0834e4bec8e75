"""The arguments of layers: what they may be, and the checks that every layer makes of its own when it is built."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any, Literal, TypeAlias, cast

from .geometry import PaddingMode

PerAxis: TypeAlias = int | tuple[int, ...]
Padding: TypeAlias = Literal["same", "valid"] | int | tuple[int | tuple[int, int], ...]
FanIn: TypeAlias = Literal["patch", "channels"]


class NetworkError(ValueError):
    """A network that cannot be: wrong arguments, or layers that do not compose into a Gaussian process.

    >>> from cnngp import Conv, Dense, ReLU, Sequential
    >>> Sequential(Conv(3), ReLU(), ReLU(), Dense())  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    cnngp...NetworkError: layers[2]: ReLU() is applied to the output of a nonlinearity, which is not Gaussian; put ...
    """


def set_field(layer: Any, name: str, value: object) -> None:
    """Set a field of a frozen layer while it is being built."""
    object.__setattr__(layer, name, value)


def real(layer: Any, name: str, value: object) -> float:
    """A finite number, or a clear error."""
    try:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise TypeError
        number = float(value) + 0.0  # −0.0 becomes 0.0, so that equal networks are written alike
    except (TypeError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise NetworkError(f"{type(layer).__name__}: {name}={value!r:.40} is not a finite number")
    return number


def check_variances(layer: Any) -> None:
    for name in ("weight_var", "bias_var"):
        value = real(layer, name, getattr(layer, name))
        if value < 0:
            raise NetworkError(f"{type(layer).__name__}: {name}={value!r} is negative; a variance is 0 or more")
        set_field(layer, name, value)


def _integer(layer: Any, name: str, value: object, least: int) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        n = operator.index(cast(int, value))
    except TypeError:
        raise NetworkError(
            f"{type(layer).__name__}: {name}={value!r} is not an integer or a tuple with one integer per axis"
        ) from None
    if n < least:
        raise NetworkError(f"{type(layer).__name__}: {name}={value!r} must be at least {least}")
    return n


def per_axis(layer: Any, name: str, value: object, least: int) -> PerAxis:
    if isinstance(value, (tuple, list)):
        if not value:
            raise NetworkError(f"{type(layer).__name__}: {name}=() is empty; give one integer per axis")
        return tuple(_integer(layer, name, v, least) for v in value)
    return _integer(layer, name, value, least)


def _padding(layer: Any, value: object) -> Padding:
    if isinstance(value, str):
        if value not in ("same", "valid"):
            raise NetworkError(
                f"{type(layer).__name__}: padding={value!r} is not 'same', 'valid', an integer or a tuple with "
                "one integer or pair per axis"
            )
        return cast(Padding, value)
    if isinstance(value, (tuple, list)):
        entries: list[int | tuple[int, int]] = []
        for v in value:
            if isinstance(v, (tuple, list)):
                if len(v) != 2:
                    raise NetworkError(
                        f"{type(layer).__name__}: padding={value!r}: an axis takes one integer or a pair "
                        f"(before, after), not {v!r}"
                    )
                entries.append((_integer(layer, "padding", v[0], 0), _integer(layer, "padding", v[1], 0)))
            else:
                entries.append(_integer(layer, "padding", v, 0))
        if not entries:
            raise NetworkError(f"{type(layer).__name__}: padding=() is empty; give one integer or pair per axis")
        return tuple(entries)
    return _integer(layer, "padding", value, 0)


def axes_of(value: object) -> int:
    """How many axes an argument speaks of: 0 for a number, which serves any."""
    return len(value) if isinstance(value, tuple) else 0


def check_axes_agree(layer: Any, *names: str) -> None:
    given = {name: axes_of(getattr(layer, name)) for name in names}
    if len({n for n in given.values() if n}) > 1:
        told = ", ".join(f"{name} has {n}" for name, n in given.items() if n)
        raise NetworkError(f"{type(layer).__name__}: the tuples disagree on the number of axes: {told}")
    if max(given.values()) > 3:
        raise NetworkError(f"{type(layer).__name__}: {max(given.values())} axes; 1-D, 2-D and 3-D are supported")


def check_convolution(layer: Any) -> None:
    for name in ("kernel_size", "stride", "dilation"):
        set_field(layer, name, per_axis(layer, name, getattr(layer, name), least=1))
    set_field(layer, "padding", _padding(layer, layer.padding))
    check_variances(layer)
    for name, allowed in (("fan_in", FanIn), ("padding_mode", PaddingMode)):
        choices = allowed.__args__  # type: ignore[attr-defined]
        if getattr(layer, name) not in choices:
            raise NetworkError(
                f"{type(layer).__name__}: {name}={getattr(layer, name)!r} is not one of {', '.join(map(repr, choices))}"
            )
    check_axes_agree(layer, "kernel_size", "stride", "dilation", "padding")
