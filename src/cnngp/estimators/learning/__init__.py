"""Learning a network's variances by gradient: what `learn=` of the estimators does before they fit."""

from .result import Change, Learned, Learning, as_learning, counted_matrices
from .search import Problem, balanced, learned

__all__ = ["Change", "Learned", "Learning", "Problem", "as_learning", "balanced", "counted_matrices", "learned"]
