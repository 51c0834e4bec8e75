"""Base class of all layers: printing, the methods that every network has, and argument checks."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from ..geometry import PaddingMode

if TYPE_CHECKING:
    from ..placed import ShapeTable
    from . import Layer

PerAxis: TypeAlias = int | tuple[int, ...]
Padding: TypeAlias = Literal["same", "valid"] | int | tuple[int | tuple[int, int], ...]
FanIn: TypeAlias = Literal["patch", "channels"]


class NetworkError(ValueError):
    """Error for an invalid network: wrong arguments, or layers that do not compose into a Gaussian process.

    `place` is the position in the network, such as layers[2].

    >>> from cnngp import Conv, Dense, ReLU, Sequential
    >>> Sequential(Conv(3), ReLU(), ReLU(), Dense())  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    cnngp...NetworkError: layers[2]: ReLU() is applied to the output of a nonlinearity, which is not Gaussian; put ...
    """

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(f"{place}: {message}" if place else message)
        self.message, self.place = message, place


@dataclass(frozen=True, repr=False)
class Network:
    """Base class of all layers and containers. A single layer is a network too.

    >>> from cnngp import Conv, Dense, ReLU, Sequential
    >>> net = Sequential(Conv(3), ReLU(), Dense())
    >>> net
    Sequential(Conv(3), ReLU(), Dense())
    """

    def __repr__(self) -> str:
        parts = []
        for f in fields(self):
            value = getattr(self, f.name)
            if f.default is MISSING:
                parts.append(repr(value))
            elif value != f.default:
                parts.append(f"{f.name}={value!r}")
        return f"{type(self).__name__}({', '.join(parts)})"

    def to_json(self) -> str:
        """Return the network as JSON text, which `cnngp.from_json` reads."""
        from ..serialize import to_json

        return to_json(self)

    @property
    def fingerprint(self) -> str:
        """Hash of the network's canonical form: equal for networks that compute the same kernel by the same steps."""
        from ..serialize import fingerprint

        return fingerprint(self)

    def shapes(self, input_shape: Sequence[int]) -> ShapeTable:
        """Table of all layers: output shape and cost per pair of images. Raises `NetworkError` where a size is wrong.

        >>> from cnngp import Conv, Dense, ReLU, Sequential
        >>> print(Sequential(Conv(3, stride=2), ReLU(), Dense()).shapes((1, 28, 28)))
        place      layer               output  operations per pair
        (input)    1 channel          28 × 28                  784
        layers[0]  Conv(3, stride=2)  14 × 14                1,918
        layers[1]  ReLU()             14 × 14                2,940
        layers[2]  Dense()                  1                  211
        all                                                  5,853
        """
        from ..placed import shape_table

        return shape_table(self, input_shape)

    def parameters(self) -> dict[str, float]:
        """Learnable parameters by name: variances of weights and biases, and numbers of nonlinearities such as a gain.

        >>> from cnngp import Conv, Dense, ReLU, Sequential
        >>> Sequential(Conv(3), ReLU(), Dense(2.0, 0.1)).parameters()  # doctest: +NORMALIZE_WHITESPACE
        {'layers[0].weight_var': 1.0, 'layers[0].bias_var': 0.0, 'layers[1].gain': 1.0,
         'layers[2].weight_var': 2.0, 'layers[2].bias_var': 0.1}
        """
        from ..walk import learned, leaves, name_of
        from .composed import as_layer

        fields = ((where, layer, field) for where, layer in leaves(as_layer(self)) for field in learned(layer))
        return {name_of(where, field): getattr(layer, field) for where, layer, field in fields}

    def with_parameters(self, values: Mapping[str, float]) -> Layer:
        """Return the same network with new values for some of its `parameters`.

        >>> from cnngp import Conv, Dense, ReLU, Sequential
        >>> Sequential(Conv(3), ReLU(), Dense()).with_parameters({"layers[0].bias_var": 0.5})
        Sequential(Conv(3, bias_var=0.5), ReLU(), Dense())
        """
        from ..walk import learned, name_of, with_leaves
        from .composed import as_layer

        known = self.parameters()
        if unknown := [name for name in values if name not in known]:
            some = ", ".join(list(known)[:4]) or "none"
            raise NetworkError(f"no parameter is named {unknown[0]!r}; this network has {len(known)}: {some}, …")

        def changed(place: str, layer: Layer) -> Layer:
            new = {field: values[name] for field in learned(layer) if (name := name_of(place, field)) in values}
            return replace(layer, **new) if new else layer  # type: ignore[arg-type]

        return with_leaves(as_layer(self), changed)


# ---- checks made when a layer is built ------------------------------------------------------------------------------


def wrong(layer: Any, message: str) -> NetworkError:
    """Return the error for a wrong argument of a layer."""
    return NetworkError(f"{type(layer).__name__}: {message}")


def set_field(layer: Any, name: str, value: object) -> None:
    """Set a field of a frozen layer while it is being built."""
    object.__setattr__(layer, name, value)


def set_real(layer: Any, name: str) -> float:
    """Convert a field to a finite float, or raise `NetworkError`."""
    value = getattr(layer, name)
    try:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise TypeError
        number = float(value) + 0.0  # −0.0 becomes 0.0, so that equal networks print and hash alike
    except (TypeError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise wrong(layer, f"{name}={value!r:.40} is not a finite number")
    set_field(layer, name, number)
    return number


def set_variances(layer: Any) -> None:
    for name in ("weight_var", "bias_var"):
        value = set_real(layer, name)
        if value < 0:
            raise wrong(layer, f"{name}={value!r} is negative; a variance is 0 or more")


def check_flag(layer: Any, name: str) -> None:
    if not isinstance(getattr(layer, name), bool):
        raise wrong(layer, f"{name}={getattr(layer, name)!r} is not True or False")


def _integer(layer: Any, name: str, value: object, least: int) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        n = operator.index(cast(int, value))
    except TypeError:
        raise wrong(layer, f"{name}={value!r} is not an integer or a tuple with one integer per axis") from None
    if n < least:
        raise wrong(layer, f"{name}={value!r} must be at least {least}")
    return n


def set_per_axis(layer: Any, name: str, least: int) -> None:
    value = getattr(layer, name)
    if not isinstance(value, (tuple, list)):
        set_field(layer, name, _integer(layer, name, value, least))
    elif value:
        set_field(layer, name, tuple(_integer(layer, name, v, least) for v in value))
    else:
        raise wrong(layer, f"{name}=() is empty; give one integer per axis")


def _padding(layer: Any, value: object) -> Padding:
    if isinstance(value, str):
        if value not in ("same", "valid"):
            raise wrong(
                layer,
                f"padding={value!r} is not 'same', 'valid', an integer or a tuple with one integer or pair per axis",
            )
        return cast(Padding, value)
    if not isinstance(value, (tuple, list)):
        return _integer(layer, "padding", value, 0)
    entries: list[int | tuple[int, int]] = []
    for v in value:
        if not isinstance(v, (tuple, list)):
            entries.append(_integer(layer, "padding", v, 0))
        elif len(v) == 2:
            entries.append((_integer(layer, "padding", v[0], 0), _integer(layer, "padding", v[1], 0)))
        else:
            raise wrong(layer, f"padding={value!r}: an axis takes one integer or a pair (before, after), not {v!r}")
    if not entries:
        raise wrong(layer, "padding=() is empty; give one integer or pair per axis")
    return tuple(entries)


def axes_of(value: object) -> int:
    """Number of axes that an argument specifies: 0 for a single number, which fits any."""
    return len(value) if isinstance(value, tuple) else 0


def check_axes_agree(layer: Any, *names: str) -> None:
    given = {name: axes_of(getattr(layer, name)) for name in names}
    if len({n for n in given.values() if n}) > 1:
        told = ", ".join(f"{name} has {n}" for name, n in given.items() if n)
        raise wrong(layer, f"the tuples disagree on the number of axes: {told}")
    if max(given.values()) > 3:
        raise wrong(layer, f"{max(given.values())} axes; 1-D, 2-D and 3-D are supported")


def check_convolution(layer: Any) -> None:
    for name in ("kernel_size", "stride", "dilation"):
        set_per_axis(layer, name, least=1)
    set_field(layer, "padding", _padding(layer, layer.padding))
    set_variances(layer)
    for name, allowed in (("fan_in", FanIn), ("padding_mode", PaddingMode)):
        choices = allowed.__args__  # type: ignore[attr-defined]
        if getattr(layer, name) not in choices:
            raise wrong(layer, f"{name}={getattr(layer, name)!r} is not one of {', '.join(map(repr, choices))}")
    check_axes_agree(layer, "kernel_size", "stride", "dilation", "padding")
