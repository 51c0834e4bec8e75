"""The way back through operations, for gradients: through closed forms (`maps.py`) and through series."""

from __future__ import annotations

from ..plan import SERIES
from . import maps
from .series import series_back

PAIR_BACKS = maps.PAIR_BACKS | {SERIES: series_back(both=False)}
SELF_BACKS = maps.SELF_BACKS | {SERIES: series_back(both=True)}
