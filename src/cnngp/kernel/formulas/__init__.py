"""The nonlinearities, a file each: their mathematics once, for every engine.

    family.py       what a nonlinearity is to programs (`Formula`) and to engines (`Family`)
    primitives.py   the functions that formulas are written in
    relu.py …       f, its slope, its derivatives, what tables keep, and the layer's row

The CPU engine compiles these functions (engines/cpu/rows/), the CUDA engine writes them as text (engines/cuda/math.py).
The definitions that both are tested against are in network/reference/, and share nothing with this.
"""

from __future__ import annotations

from cnngp.network.layers import GELU as GELULayer
from cnngp.network.layers import Abs, Cos, Elementwise, Erf, LeakyReLU, Nonlinearity, Rbf, ReLU, Sin, Step

from . import erf, family, gelu, rbf, relu, series, sine, step
from .erf import ERF
from .family import Family, Formula
from .gelu import GELU
from .rbf import RBF
from .relu import RELU, RELU_LIKE
from .series import SERIES
from .sine import COS, SIN
from .step import STEP

MODULES = (family, relu, erf, step, sine, gelu, series, rbf)
FAMILIES = (RELU, RELU_LIKE, ERF, STEP, SIN, COS, GELU, SERIES, RBF)

__all__ = [
    "COS", "ERF", "FAMILIES", "GELU", "MODULES", "RBF", "RELU", "RELU_LIKE", "SERIES", "SIN", "STEP", "Family",
    "Formula", "formula",
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
        case GELULayer():
            return gelu.formula(layer)
        case Elementwise():
            return series.formula(layer)
        case _:
            raise NotImplementedError(f"{layer!r} has no row in the table of formulas")
