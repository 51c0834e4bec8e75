"""Presentation of a fit: evaluation, report, pictures, and a viewer in the browser. Names load when first used."""

from cnngp.common.optional import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
