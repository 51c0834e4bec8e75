"""The network, the digits and the short ways to a model that tests of estimators share."""

import functools
from pathlib import Path
from typing import Any

from cnngp import Conv, Dense, GPClassifier, ReLU, Sequential, datasets

NET = Sequential(Conv(3, bias_var=0.1), ReLU(), Dense())
DATA = datasets.digits().take(150, 80)


def classifier(network: Any = NET, **options: Any) -> GPClassifier:
    return GPClassifier(network, **{"device": "cpu"} | options)


@functools.cache
def fitted() -> GPClassifier:
    """A classifier of the digits, which tests ask and do not change."""
    return classifier().fit(DATA.X, DATA.y)


def reloaded(model: Any, folder: Path) -> Any:
    """The model, from a file that it was saved to."""
    model.save(folder / "m.gp")
    return type(model).load(folder / "m.gp", device="cpu")
