"""Networks as plain values: layers, composition rules, shapes, and the float64 reference kernel."""

from . import layers
from .layers import *  # noqa: F403
from .serialize import from_json

__all__ = ["from_json"]
__all__ += layers.__all__
