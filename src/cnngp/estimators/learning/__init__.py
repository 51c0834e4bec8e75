"""Learning a network's variances by gradient: what `learn=` of the estimators does before they fit."""

from .options import Learning, as_learning
from .problem import Problem, balanced
from .result import Change, Learned
from .search import learned

__all__ = ["Change", "Learned", "Learning", "Problem", "as_learning", "balanced", "learned"]
