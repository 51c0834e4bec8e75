"""A network and digits that the tests of estimators fit."""

from cnngp import Conv, Dense, ReLU, Sequential, datasets

NET = Sequential(Conv(3, bias_var=0.1), ReLU(), Dense())
DATA = datasets.digits().take(150, 80)
