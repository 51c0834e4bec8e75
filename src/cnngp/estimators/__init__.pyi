from .classifier import GPClassifier as GPClassifier
from .learning import Learning as Learning
from .recipe import Recipe as Recipe
from .recipe import Term as Term
from .regressor import GPRegressor as GPRegressor

__all__: list[str]
