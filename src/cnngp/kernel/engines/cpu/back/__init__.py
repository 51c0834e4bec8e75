"""Backward steps of operations, for gradients: through closed forms (`maps.py`) and through series."""

from __future__ import annotations

from ..plan import SERIES
from . import maps
from .series import series_back, series_still

PAIR_BACKS = maps.PAIR_BACKS | {SERIES: series_back(both=False)}
SELF_BACKS = maps.SELF_BACKS | {SERIES: series_back(both=True)}
STILL_BACKS = maps.STILL_BACKS | {SERIES: series_still}
