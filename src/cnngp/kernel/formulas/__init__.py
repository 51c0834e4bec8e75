"""The nonlinearities, a file each: their mathematics once, for every engine.

    family.py       what a nonlinearity is to programs (`Formula`) and to engines (`Family`)
    primitives.py   the functions that formulas are written in
    relu.py …       f, its slope, its derivatives, what tables keep, and the layer's row

The CPU engine compiles these functions (engines/cpu/rows/), the CUDA engine writes them as text (engines/cuda/math.py).
The definitions that both are tested against are in network/reference/, and share nothing with this.
"""

from __future__ import annotations

from cnngp.network import layers
from cnngp.network.layers import Abs, Cos, Elementwise, Erf, LeakyReLU, Nonlinearity, Rbf, ReLU, Sin, Step

from . import erf, family, gelu, layer_norm, normalized_exp, rbf, relu, series, sign, sine, squared_relu, step
from .erf import ERF
from .family import Family, Formula
from .gelu import GELU
from .layer_norm import LAYER_NORM
from .normalized_exp import NORMALIZED_EXP
from .rbf import RBF
from .relu import RELU, RELU_LIKE
from .series import SERIES
from .sign import SIGN
from .sine import COS, SIN
from .squared_relu import SQUARED_RELU
from .step import STEP

MODULES = (family, relu, erf, step, sine, gelu, series, rbf, normalized_exp, layer_norm, sign, squared_relu)
FAMILIES = (
    RELU, RELU_LIKE, ERF, STEP, SIN, COS, GELU, SERIES, RBF, NORMALIZED_EXP, LAYER_NORM, SIGN, SQUARED_RELU,
)  # fmt: skip

__all__ = [
    "COS", "ERF", "FAMILIES", "GELU", "LAYER_NORM", "MODULES", "NORMALIZED_EXP", "RBF", "RELU", "RELU_LIKE", "SERIES",
    "SIGN", "SIN", "SQUARED_RELU", "STEP", "Family", "Formula", "formula",
]  # fmt: skip


def formula(layer: Nonlinearity) -> Formula:
    """The row of a nonlinearity."""
    match layer:
        case ReLU() | LeakyReLU() | Abs():
            return relu.formula(layer)
        case Erf():
            return erf.formula(layer)
        case Step():
            return step.formula(layer)
        case Sin() | Cos():
            return sine.formula(layer)
        case Rbf():
            return rbf.formula(layer)
        case layers.GELU():
            return gelu.formula(layer)
        case layers.NormalizedExp():
            return normalized_exp.formula(layer)
        case layers.LayerNorm():
            return layer_norm.formula(layer)
        case layers.Sign():
            return sign.formula(layer)
        case layers.SquaredReLU():
            return squared_relu.formula(layer)
        case Elementwise():
            return series.formula(layer)
        case _:
            raise NotImplementedError(f"{layer!r} has no row in the table of formulas")
