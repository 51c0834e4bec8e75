"""Inference: it takes matrices and targets, and never sees a network or an image. Names load when first used."""

from cnngp.common.optional import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
