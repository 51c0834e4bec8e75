"""Layers and how they compose: a network is described here as plain values, with no arrays anywhere.

Every layer is a frozen dataclass that checks itself when it is built, prints as the code that makes it and compares by
value. `Layer` is a closed set: each consumer is one `match` over it that ends in `assert_never`.

    base.py        what all layers share
    linear.py      convolutions, dense layers, averages
    nonlinear.py   nonlinearities
    composed.py    sequences and sums of layers, and the closed set
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
