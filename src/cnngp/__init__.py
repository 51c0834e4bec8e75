"""Exact Gaussian processes from infinitely wide convolutional networks.

Names load when first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import augmentation as augmentation
    from . import datasets as datasets
    from . import reference as reference
    from . import zoo as zoo
    from .arrays import DataError as DataError
    from .engines.base import RangeError as RangeError
    from .estimators import GPClassifier as GPClassifier
    from .estimators import GPRegressor as GPRegressor
    from .kernel import Kernel as Kernel
    from .limits import check_limit as check_limit
    from .network import GELU as GELU
    from .network import Abs as Abs
    from .network import Conv as Conv
    from .network import ConvTranspose as ConvTranspose
    from .network import Cos as Cos
    from .network import Dense as Dense
    from .network import Elementwise as Elementwise
    from .network import Erf as Erf
    from .network import Identity as Identity
    from .network import LeakyReLU as LeakyReLU
    from .network import Network as Network
    from .network import NetworkError as NetworkError
    from .network import ReLU as ReLU
    from .network import Sequential as Sequential
    from .network import Sin as Sin
    from .network import Step as Step
    from .network import Sum as Sum
    from .search import random_search as random_search
    from .serialize import from_json as from_json
    from .solving import solve as solve
    from .sparse import SparseGPClassifier as SparseGPClassifier
    from .tiled import gram as gram
    from .torch_bridge import explain as explain
    from .torch_bridge import from_torch as from_torch
    from .torch_bridge import gpytorch_kernel as gpytorch_kernel
    from .torch_bridge import sample_network as sample_network

__version__ = "0.1.0"

_EXPORTS = {
    "network": (
        *("Conv", "ConvTranspose", "Dense", "ReLU", "LeakyReLU", "Erf", "Abs", "Step", "Sin", "Cos", "GELU"),
        *("Elementwise", "Identity", "Sequential", "Sum", "Network", "NetworkError"),
    ),
    "serialize": ("from_json",),
    "arrays": ("DataError",),
    "engines.base": ("RangeError",),
    "kernel": ("Kernel",),
    "tiled": ("gram",),
    "solving": ("solve",),
    "estimators": ("GPClassifier", "GPRegressor"),
    "sparse": ("SparseGPClassifier",),
    "torch_bridge": ("from_torch", "explain", "sample_network", "gpytorch_kernel"),
    "limits": ("check_limit",),
    "search": ("random_search",),
}
_MODULES = ("zoo", "datasets", "reference", "functions", "augmentation")
_WHERE = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = [*_WHERE, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)
    elif name in _MODULES:
        value = importlib.import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module 'cnngp' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
