"""The systems that the tests of `solve` solve."""

import numpy as np

from cnngp import Conv, Dense, Kernel, ReLU, Sequential, datasets

NET = Sequential(Conv(3, bias_var=0.1), ReLU(), Dense())
DIGITS = datasets.digits().take(300, 60)
KERNEL = Kernel(NET, device="cpu")


def targets(n: int = 300) -> np.ndarray:
    return 2.0 * np.eye(10)[DIGITS.y[:n]] - 1.0


def twice(rows: np.ndarray) -> np.ndarray:
    """The matrix of images some of which are there twice, singular to the last bit."""
    return KERNEL(DIGITS.X).astype(float)[np.ix_(rows, rows)]
