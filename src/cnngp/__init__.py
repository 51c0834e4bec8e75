"""Exact Gaussian processes from infinitely wide convolutional networks.

Names load on first use, which keeps `import cnngp` fast; `__init__.pyi` lists them.
"""

from .common.optional import lazy_names

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
