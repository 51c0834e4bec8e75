"""What a caller may say of how variances are learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cnngp.common.checks import is_whole
from cnngp.gp.objectives import RULES, Rule


@dataclass(frozen=True)
class Learning:
    """How `GPClassifier(network, learn=Learning(...))` learns; `learn="loo"` is `Learning("loo")`.

    Parameters
    ----------
    rule : "loo", by leave-one-out predictions, or "likelihood", by the marginal likelihood.
    images : number of training images used for learning, balanced over the classes; the fit uses all of them.
    starts : the search begins at the network that is given, then at others near it.
    steps : number of kernel matrices, with their gradients, that each start may compute.
    tied : layers of a kind change by one common factor; False gives every layer its own.

    >>> from cnngp import Conv, Dense, GPClassifier, ReLU, Sequential, datasets
    >>> from cnngp.estimators import Learning
    >>> data = datasets.digits().take(100, 100)
    >>> net = Sequential(Conv(3, bias_var=0.1), ReLU(), Dense())
    >>> clf = GPClassifier(net, learn=Learning("loo", starts=1, steps=5), device="cpu").fit(data.X, data.y)
    >>> clf.learned_.after < clf.learned_.before
    True
    """

    rule: Rule = "loo"
    images: int = 500
    starts: int = 3
    steps: int = 20
    tied: bool = True

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"Learning: rule={self.rule!r} is not one of {', '.join(map(repr, RULES))}")
        for name, least in (("images", 4), ("starts", 1), ("steps", 1)):
            if not is_whole(getattr(self, name), least=least):
                raise ValueError(f"Learning: {name}={getattr(self, name)!r}: expected a whole number from {least} on")
        if not isinstance(self.tied, bool):
            raise ValueError(f"Learning: tied={self.tied!r} is not True or False")


def as_learning(learn: Any) -> Learning | None:
    """What was asked for with `learn=`: None, a word, or all of it."""
    if learn is None or isinstance(learn, Learning):
        return learn
    if isinstance(learn, str) and learn in RULES:
        return Learning(learn)
    raise ValueError(f"learn={learn!r}: expected None, 'loo', 'likelihood' or a Learning")
