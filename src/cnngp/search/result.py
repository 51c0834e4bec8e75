"""The result of a search: every draw, the best of them again with more images, and the network that was chosen."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cnngp.common.tables import aligned, percent
from cnngp.network.layers import Network

from .scoring import Score
from .study import Trial, best


@dataclass(frozen=True)
class SearchResult:
    """The draws of a search in `trials`; `best` is the lowest validation error of the largest training size.

    The validation error of the best of many draws is a little lower than it will be on new images: it was chosen.
    """

    space: str
    images: str
    trials: tuple[Trial, ...]
    invalid: int
    """Draws that no network came of (an image too small, a variance out of range); others were drawn in their place."""
    failures: dict[int, str]
    rungs: tuple[tuple[Trial, ...], ...] = ()
    """The best of the draws, and of each rung, scored again with other numbers of images; the best one first."""
    test: Score | None = None
    """The chosen network's score on the test images, if the study has looked at them."""
    looks: int = 0
    """Number of networks with which the study has looked at the test images."""
    seconds: float = 0.0

    @property
    def best(self) -> Trial:
        return best(self.rungs[-1] if self.rungs else self.trials)[0]

    @property
    def network(self) -> Network:
        """The best one."""
        return self.best.network

    def table(self, n: int = 10) -> str:
        """The `n` best draws, as text."""
        heads = ("draw", "validation", "leave-one-out", "seconds", "Mpairs/s", "operations a pair", "jitter")
        rows = [(*heads, "hyperparameters")]
        for t in best(self.trials, n):
            s = t.score
            errors = (percent(s.error, 2), percent(s.loo_error, 2))
            cost = (f"{s.seconds:.1f}", f"{s.pairs_per_second / 1e6:.2f}", f"{s.operations:,}", f"{s.jitter:g}")
            drawn = (f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in t.params.items())
            rows.append((str(t.draw), *errors, *cost, " ".join(drawn)))
        return aligned(rows, right=range(len(heads)))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "space": self.space,
            "images": self.images,
            "draws": len(self.trials),
            "invalid": self.invalid,
            "failures": {str(k): v for k, v in self.failures.items()},
            "best": _facts(self.best),
            "trials": [_facts(t) for t in self.trials],
            "rungs": [[_facts(t) for t in rung] for rung in self.rungs],
            "test": None if self.test is None else asdict(self.test) | {"looks": self.looks},
            "seconds": self.seconds,
        }


def _facts(trial: Trial) -> dict[str, Any]:
    return {"draw": trial.draw, **asdict(trial.score), "params": trial.params}
