"""Models in scikit-learn's form: images and labels in, predictions out. Names load when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .classifier import GPClassifier as GPClassifier
    from .learning import Learning as Learning
    from .recipe import Recipe as Recipe
    from .recipe import Term as Term
    from .regressor import GPRegressor as GPRegressor

_WHERE = {
    "GPClassifier": "classifier",
    "GPRegressor": "regressor",
    "Learning": "learning",
    "Recipe": "recipe",
    "Term": "recipe",
}

__all__ = ["GPClassifier", "GPRegressor", "Learning", "Recipe", "Term"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'cnngp.estimators' has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)
