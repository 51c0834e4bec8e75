"""Scikit-learn estimators for classification and regression of images. Names load on first use."""

from cnngp.common.optional import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
