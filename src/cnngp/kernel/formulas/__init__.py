"""Formulas of the nonlinearities, one file each, written once for all engines.

    family.py       the interface of a nonlinearity to programs (`Formula`) and to engines (`Family`)
    primitives.py   the functions in which formulas are written
    relu.py …       f, its slope, its derivatives, its table entries, and the `Formula` of each layer

All files in this folder are imported. The CPU engine compiles these functions (engines/cpu/rows/), the CUDA engine
writes them as text (engines/cuda/formula_text/). Both are tested against the definitions in network/reference/, which
share no code with these.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from .family import Family, Formula, formula
from .relu import RELU, RELU_LIKE
from .series import SERIES

__all__ = ["FAMILIES", "MODULES", "RELU", "RELU_LIKE", "SERIES", "Family", "Formula", "formula"]

MODULES = tuple(import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__))
FAMILIES = tuple(value for module in MODULES for value in vars(module).values() if isinstance(value, Family))
