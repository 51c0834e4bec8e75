"""A fitted classifier that several files of tests use."""

import pytest

from cnngp import GPClassifier
from helpers.estimators import DATA, NET


@pytest.fixture(scope="module")
def fitted() -> GPClassifier:
    return GPClassifier(NET).fit(DATA.X, DATA.y)
