from .classifier import GPClassifier as GPClassifier
from .recipe import Recipe as Recipe
from .recipe import Term as Term
from .regressor import GPRegressor as GPRegressor
from .request import Learning as Learning

__all__: list[str]
