"""What a caller may ask of learning, and what was learned: the network before and after, and the way there."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

from cnngp.common.checks import is_whole
from cnngp.gp.objectives import RULES, Rule
from cnngp.network.layers import Network
from cnngp.network.serialize import from_json


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


def counted_matrices(n: int) -> str:
    return f"{n:,} {'matrix' if n == 1 else 'matrices'}"


@dataclass(frozen=True)
class Change:
    """Variances that changed together, by one factor; `before` and `after` are their geometric means.

    A bias that was 0 had no factor: it was given a positive value, and `before` is 0.
    """

    name: str
    places: int
    before: float
    after: float


@dataclass(frozen=True)
class Learned:
    """Losses are in nats, less is better, on the `images` that were used for learning: a mean over all targets, or over
    the images where a classifier learns by leave-one-out.

    `before` is the loss of the network that was given, with the noise that suits it best: what was gained is gained by
    the variances.
    """

    rule: str
    images: int
    network_before: Network
    network: Network
    before: float
    after: float
    noise_before: float | None
    noise: float | None
    """Variance of the noise over the mean k(x, x); None where the caller gave it as a number."""
    changes: tuple[Change, ...]
    left_out: tuple[str, ...]
    """Variances that only scale the kernel, which the amplitude does already."""
    path: tuple[tuple[int, float], ...]
    """The number of the start, and the loss, of each matrix that was asked for."""
    seconds: float
    interrupted: bool

    @property
    def gain(self) -> float:
        return self.before - self.after

    @property
    def found_nothing(self) -> bool:
        """Whether no network was found that is better in the digits that are shown."""
        return f"{self.before:.4f}" == f"{self.after:.4f}"

    def noise_of(self, mean_variance: float) -> float:
        """The noise in the kernel's units, for images of this mean k(x, x)."""
        if self.noise is None:
            raise ValueError("the noise was given, not learned")
        return self.noise * mean_variance

    def __str__(self) -> str:
        what = "leave-one-out loss" if self.rule == "loo" else "−log likelihood"
        lines = [
            f"{what} {self.before:.4f} → {self.after:.4f} nats, on {self.images:,} images, "
            f"{counted_matrices(len(self.path))}, {self.seconds:.1f} s{', interrupted' if self.interrupted else ''}"
        ]
        if self.found_nothing:
            lines.append("nothing better was found than the network as it was given")
        lines += [f"{c.name} (× {c.places}) {c.before:.4g} → {c.after:.4g}" for c in self.changes]
        if self.noise is not None:
            lines.append(f"noise / mean k(x, x) {self.noise_before:.2g} → {self.noise:.2g}")
        if self.left_out:
            lines.append(f"left out, as they only scale the kernel: {', '.join(self.left_out)}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """For JSON; `from_dict` reads it back."""
        networks = {"network_before": self.network_before.to_json(), "network": self.network.to_json()}
        changes = [asdict(change) for change in self.changes]
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | networks | {"changes": changes}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        networks = {name: from_json(data[name]) for name in ("network_before", "network")}
        changes = tuple(Change(**change) for change in data["changes"])
        path = tuple((int(start), float(loss)) for start, loss in data["path"])
        return cls(**data | networks | {"changes": changes, "path": path, "left_out": tuple(data["left_out"])})
