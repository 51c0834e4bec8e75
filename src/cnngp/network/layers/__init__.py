"""Layers and containers: the description of a network as plain values, without arrays.

Every layer is a frozen dataclass that checks its arguments when it is built, prints as the code that makes it, and
compares by value. `Layer` is a closed union: each consumer is one `match` over it that ends in `assert_never`.

    base.py        the base class and argument checks
    linear.py      convolutions, dense layers, average pools
    nonlinear.py   nonlinearities
    composed.py    `Sequential`, `Sum`, and the union of all layers
"""

from . import nonlinear
from .base import FanIn, Network, NetworkError, Padding, PerAxis
from .composed import LAYERS, Convolution, Identity, Layer, Pool, Sequential, Sum, as_layer
from .linear import AvgPool, Conv, ConvTranspose, Dense, GlobalAvgPool, Linear
from .nonlinear import *  # noqa: F403

__all__ = [
    "LAYERS", "AvgPool", "Conv", "ConvTranspose", "Convolution", "Dense", "FanIn", "GlobalAvgPool", "Identity", "Layer",
    "Linear", "Network", "NetworkError", "Padding", "PerAxis", "Pool", "Sequential", "Sum", "as_layer",
]  # fmt: skip
__all__ += nonlinear.__all__
