"""The nonlinearities, a file each: their mathematics once, for every engine.

    family.py       what a nonlinearity is to programs (`Formula`) and to engines (`Family`)
    primitives.py   the functions that formulas are written in
    relu.py …       f, its slope, its derivatives, what tables keep, and the rows of its layers

Files are found by being here. The CPU engine compiles these functions (engines/cpu/rows/), the CUDA engine writes them
as text (engines/cuda/formula_text/). The definitions that both are tested against are in network/reference/, and
share nothing with this.
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
