"""Containers (`Sequential`, `Sum`), and the union of all layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, cast

from . import nonlinear
from .base import Network, NetworkError, check_flag, set_field
from .linear import AvgPool, Conv, ConvTranspose, Dense, GlobalAvgPool
from .nonlinear import Nonlinearity


@dataclass(frozen=True, repr=False)
class Identity(Network):
    """The identity: the skip connection of a residual block.

    >>> from cnngp import Conv, Identity, ReLU, Sequential, Sum
    >>> Sum(Identity(), Sequential(ReLU(), Conv(3)))
    Sum(Identity(), Sequential(ReLU(), Conv(3)))
    """


@dataclass(frozen=True, repr=False, init=False)
class Sequential(Network):
    """Layers applied one after the other.

    >>> from cnngp import Conv, Dense, ReLU, Sequential
    >>> net = Sequential(Conv(3), ReLU(), Dense())
    >>> net.layers[1]
    ReLU()
    >>> net == Sequential(Conv(3), ReLU(), Dense())
    True
    """

    layers: tuple[Layer, ...]

    def __init__(self, *layers: Network) -> None:
        set_field(self, "layers", _children("Sequential", "layers", layers))
        _check_composition(self)

    def __repr__(self) -> str:
        return f"Sequential({', '.join(map(repr, self.layers))})"


@dataclass(frozen=True, repr=False, init=False)
class Sum(Network):
    """The sum of branches that share one input. The kernels add because the branches are independent.

    A branch that ends in a nonlinearity raises `NetworkError`: its activations are not zero-mean Gaussians.
    `allow_non_gaussian=True` adds the kernels although that is not exact, as in the paper's residual CNN.

    >>> from cnngp import Conv, Identity, ReLU, Sequential, Sum
    >>> block = Sum(Identity(), Sequential(ReLU(), Conv(3), ReLU(), Conv(3)))
    >>> Sequential(Conv(3, stride=2), block).shapes((1, 28, 28)).output
    (14, 14)
    """

    branches: tuple[Layer, ...]
    allow_non_gaussian: bool = False

    def __init__(self, *branches: Network, allow_non_gaussian: bool = False) -> None:
        set_field(self, "branches", _children("Sum", "branches", branches))
        if len(self.branches) == 0:
            raise NetworkError("Sum() has no branches; give it at least one")
        set_field(self, "allow_non_gaussian", allow_non_gaussian)
        check_flag(self, "allow_non_gaussian")
        _check_composition(self)

    def __repr__(self) -> str:
        parts = [repr(b) for b in self.branches]
        if self.allow_non_gaussian:
            parts.append("allow_non_gaussian=True")
        return f"Sum({', '.join(parts)})"


Convolution: TypeAlias = Conv | ConvTranspose
Pool: TypeAlias = AvgPool | GlobalAvgPool
Layer: TypeAlias = Conv | ConvTranspose | Dense | Nonlinearity | AvgPool | GlobalAvgPool | Identity | Sequential | Sum
LAYERS: dict[str, type[Network]] = {
    cls.__name__: cls
    for cls in (
        *(Conv, ConvTranspose, Dense, AvgPool, GlobalAvgPool, Identity, Sequential, Sum),
        *(getattr(nonlinear, name) for name in nonlinear.__all__ if name != "Nonlinearity"),
    )
}


def as_layer(net: object, what: str = "network") -> Layer:
    """Return the object as a member of the union `Layer`, or raise `NetworkError`."""
    if isinstance(net, Network) and type(net) in LAYERS.values():
        return cast(Layer, net)
    if isinstance(net, type) and net in LAYERS.values():
        raise NetworkError(f"{what}: got the class {net.__name__}; write {net.__name__}(...) to make a layer of it")
    raise NetworkError(
        f"{what}: expected a layer such as Conv(3) or Sequential(...), got {type(net).__name__}: {str(net)[:60]}"
    )


def _children(owner: str, field: str, nets: tuple[object, ...]) -> tuple[Layer, ...]:
    return tuple(as_layer(net, f"{owner}: {field}[{i}]") for i, net in enumerate(nets))


def _check_composition(net: Sequential | Sum) -> None:
    from ..composition import check_fragment

    check_fragment(net)
