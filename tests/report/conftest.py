"""A model of digits with one wrong label, and the viewer's answers by it."""

from pathlib import Path

import pytest

from cnngp import GPClassifier, GPRegressor, datasets
from cnngp.report.answers import Answers

DIGITS = datasets.digits().take(200, 50)
WRONG = 7


@pytest.fixture(scope="session")
def clf() -> GPClassifier:
    y = DIGITS.y.copy()
    y[WRONG] = (y[WRONG] + 5) % 10
    return GPClassifier("small_cnn", noise="loo", device="cpu").fit(DIGITS.X, y)


@pytest.fixture(scope="session")
def reg() -> GPRegressor:
    """The same digits as numbers, one of which is far off."""
    y = DIGITS.y.astype(float)
    y[WRONG] = 30.0
    return GPRegressor("small_cnn", noise="loo", normalize_y=True, device="cpu").fit(DIGITS.X, y)


@pytest.fixture
def answers(clf: GPClassifier, tmp_path: Path) -> Answers:
    return Answers(clf, "digits.gp", tmp_path / "digits.labels.csv", suspects=20)


@pytest.fixture
def numbers(reg: GPRegressor, tmp_path: Path) -> Answers:
    return Answers(reg, "numbers.gp", tmp_path / "numbers.labels.csv")
