"""Problems that the tests of sparse classification share."""

from __future__ import annotations

from cnngp import Conv, Dense, ReLU, Sequential, datasets

NET = Sequential(Conv(3, bias_var=0.1), ReLU(), Dense())
DIGITS = datasets.digits()
