"""Suspect labels: how many of the labels that the other images contradict the model's own errors do not explain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from cnngp.common.arrays import to_numpy
from cnngp.estimators.classifier import GPClassifier

Floats = NDArray[np.float64]
# Of a list of suspect labels, the share that may be there by the model's own errors: at least half deserve the look.
_BY_ERRORS = 0.5
# And there must be more than chance would put there, in standard deviations of a Poisson count.
_DEVIATIONS = 2.0
# A list is as long as this where there are so many, because one wrong label among a few hundred proves nothing.
_AT_LEAST = 5
# Standard deviations from which on the others contradict a number. As errors have heavier tails than the normal
# distribution, as many are expected as of Student's with so many degrees of freedom.
_FAR, _FREEDOM = 2.0, 5.0


@dataclass(frozen=True)
class SuspectLabels:
    """The labels worth a look, the most suspect first, as columns `row`, `score`, `given`, `proposed` and `name`."""

    columns: dict[str, NDArray[Any]]
    expected: float
    """How many of the first `beyond_errors` would be there with every label right, by the model's own errors."""
    beyond_errors: int
    """Of the list, the first labels, of which at least half are there because they are wrong."""
    contradicted: int
    """Labels that are less probable than another by leave-one-out, or numbers that are far off, for whatever reason."""
    what: str = "label"

    def __len__(self) -> int:
        return len(self.columns["row"])

    @property
    def counts(self) -> dict[str, Any]:
        """The numbers of labels, for JSON."""
        names = ("beyond_errors", "expected_by_errors", "contradicted")
        return dict(zip(names, (self.beyond_errors, self.expected, self.contradicted), strict=True))

    @property
    def sentence(self) -> str:
        """What the list means."""
        what = self.what
        if not self.contradicted:
            return f"The other images contradict no {what}."
        if not self.beyond_errors:
            many = f"{self.contradicted:,} {what}s are" if self.contradicted > 1 else f"One {what} is"
            how = "less probable than another" if what == "label" else f"more than {_FAR:g} standard deviations off"
            return (
                f"{many} {how} by leave-one-out, about as many as the model's own errors explain; the most doubtful "
                "are shown, and may well be right."
            )
        n, about = self.beyond_errors, f"about {self.expected:.0f}" if self.expected >= 1.0 else "hardly one"
        return (
            f"The others contradict {'the first' if len(self) > n else 'these'} {n:,} {what}{'s' if n > 1 else ''} "
            f"more than the model's own errors explain: with every {what} right, {about} would be on a list like this."
        )


def suspect_labels(model: Any, most: int | None = None) -> SuspectLabels:
    """Labels that the others contradict: those that the model's own errors do not explain, or the first `most`.

    If every label were right, and the model's predictions too, so many labels would be as suspect as this one or
    more: of classes with a probability of at most t, Σ_i Σ_c p_ic over the p_ic ≤ t (without the share of labels that
    is taken to be random); of numbers, N times the tails of Student's distribution. The list ends with the last
    label at which there are twice as many, and more than chance puts there, or after five.
    """
    what, expected, contradicted = _of_classes(model) if isinstance(model, GPClassifier) else _of_numbers(model)
    seen = np.arange(1, len(expected) + 1)
    by_chance = expected + _DEVIATIONS * np.sqrt(expected)
    fits = np.flatnonzero((expected <= _BY_ERRORS * seen) & (by_chance <= seen))
    beyond = min(int(fits[-1]) + 1 if len(fits) else 0, contradicted)
    n = max(beyond, min(contradicted, _AT_LEAST)) if most is None else min(most, len(expected))
    columns = {name: column[:n] for name, column in model.suspect_labels(max(n, 1)).items()}
    return SuspectLabels(columns, float(expected[beyond - 1]) if beyond else 0.0, beyond, contradicted, what)


def _of_classes(clf: GPClassifier) -> tuple[str, Floats, int]:
    """For each label, the most suspect first, how many are expected; and how many are contradicted."""
    P, given = clf.loo_probabilities_, to_numpy(clf.gp_.leave_one_out().targets).argmax(1)
    noise = float(clf.label_noise_)
    clean = np.clip((P - noise / P.shape[1]) / max(1.0 - noise, 1e-12), 0.0, 1.0)
    of_labels = np.sort(clean[np.arange(len(P)), given])
    every = np.sort(clean.ravel())
    total = np.concatenate([[0.0], np.cumsum(every)])
    return "label", total[np.searchsorted(every, of_labels, "right")], int(np.count_nonzero(P.argmax(1) != given))


def _of_numbers(reg: Any) -> tuple[str, Floats, int]:
    scores = reg.suspect_labels(len(reg.loo_rows_))["score"]
    tails = 2.0 * stdtr(_FREEDOM, -scores * np.sqrt(_FREEDOM / (_FREEDOM - 2.0)))
    return "number", len(scores) * tails, int(np.count_nonzero(scores > _FAR))
