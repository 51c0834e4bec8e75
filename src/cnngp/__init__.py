"""Exact Gaussian processes from infinitely wide convolutional networks.

Names load when first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import datasets as datasets
    from . import torch as torch
    from .common.arrays import DataError as DataError
    from .datasets import augmentation as augmentation
    from .datasets import preparation as preparation
    from .estimators import GPClassifier as GPClassifier
    from .estimators import GPRegressor as GPRegressor
    from .estimators import Learning as Learning
    from .estimators import Recipe as Recipe
    from .estimators import Term as Term
    from .gp import calibration as calibration
    from .gp.solving import solve as solve
    from .gp.trained import trained_ensemble as trained_ensemble
    from .kernel.check import WrongKernelError as WrongKernelError
    from .kernel.engines.base import RangeError as RangeError
    from .kernel.kernel import Kernel as Kernel
    from .matrix.cluster.connection import connect as connect
    from .matrix.gram import gram as gram
    from .network import AvgPool as AvgPool
    from .network import Conv as Conv
    from .network import ConvTranspose as ConvTranspose
    from .network import Dense as Dense
    from .network import GlobalAvgPool as GlobalAvgPool
    from .network import Identity as Identity
    from .network import Network as Network
    from .network import NetworkError as NetworkError
    from .network import Sequential as Sequential
    from .network import Sum as Sum
    from .network import from_json as from_json
    from .network import functions as functions
    from .network import reference as reference
    from .network import zoo as zoo
    from .network.layers.nonlinear import GELU as GELU
    from .network.layers.nonlinear import Abs as Abs
    from .network.layers.nonlinear import Cos as Cos
    from .network.layers.nonlinear import Elementwise as Elementwise
    from .network.layers.nonlinear import Erf as Erf
    from .network.layers.nonlinear import LayerNorm as LayerNorm
    from .network.layers.nonlinear import LeakyReLU as LeakyReLU
    from .network.layers.nonlinear import NormalizedExp as NormalizedExp
    from .network.layers.nonlinear import Rbf as Rbf
    from .network.layers.nonlinear import ReLU as ReLU
    from .network.layers.nonlinear import Sign as Sign
    from .network.layers.nonlinear import Sin as Sin
    from .network.layers.nonlinear import SquaredReLU as SquaredReLU
    from .network.layers.nonlinear import Step as Step
    from .report.viewer.decisions import apply_decisions as apply_decisions
    from .search import random_search as random_search
    from .torch_bridge import explain as explain
    from .torch_bridge import from_torch as from_torch
    from .torch_bridge import gpytorch_kernel as gpytorch_kernel
    from .torch_bridge import sample_network as sample_network
    from .torch_bridge.limits import check_limit as check_limit

__version__ = "0.2.0"

# Where each public name is defined.
_EXPORTS = {
    "network.layers": (
        *("Conv", "ConvTranspose", "Dense", "AvgPool", "GlobalAvgPool", "Identity", "Sequential", "Sum", "Network"),
        *("NetworkError", "ReLU", "LeakyReLU", "Abs", "Step", "Sign", "SquaredReLU", "Erf", "Sin", "Cos", "Rbf"),
        *("NormalizedExp", "LayerNorm", "GELU", "Elementwise"),
    ),
    "network.serialize": ("from_json",),
    "common.arrays": ("DataError",),
    "kernel.engines.base": ("RangeError",),
    "kernel.check": ("WrongKernelError",),
    "kernel.kernel": ("Kernel",),
    "matrix.gram": ("gram",),
    "matrix.cluster.connection": ("connect",),
    "gp.solving": ("solve",),
    "gp.trained": ("trained_ensemble",),
    "estimators": ("GPClassifier", "GPRegressor", "Learning", "Recipe", "Term"),
    "report.viewer.decisions": ("apply_decisions",),
    "torch_bridge": ("from_torch", "explain", "sample_network", "gpytorch_kernel"),
    "torch_bridge.limits": ("check_limit",),
    "search": ("random_search",),
}
# Modules that are public under a short name.
_MODULES = {
    "torch": "torch",
    "zoo": "network.zoo",
    "reference": "network.reference",
    "functions": "network.functions",
    "datasets": "datasets",
    "augmentation": "datasets.augmentation",
    "preparation": "datasets.preparation",
    "calibration": "gp.calibration",
}
_WHERE = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = [*_WHERE, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)
    elif name in _MODULES:
        value = importlib.import_module(f".{_MODULES[name]}", __name__)
    else:
        raise AttributeError(f"module 'cnngp' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
