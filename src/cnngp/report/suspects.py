"""Suspect labels: how many of the labels that the other images contradict the model's own errors do not explain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import to_numpy
from cnngp.estimators.classifier import GPClassifier

# Of a list of suspect labels, the share that may be there by the model's own errors: at least half deserve the look.
_BY_ERRORS = 0.5
# And there must be more than chance would put there, in standard deviations of a Poisson count.
_DEVIATIONS = 2.0
# A list is as long as this where there are so many, because one wrong label among a few hundred proves nothing.
_AT_LEAST = 5


@dataclass(frozen=True)
class SuspectLabels:
    """The labels worth a look, the most suspect first, as columns `row`, `score`, `given`, `proposed` and `name`."""

    columns: dict[str, NDArray[Any]]
    expected: float
    """How many of the first `beyond_errors` would be there with every label right, by the model's own errors."""
    beyond_errors: int
    """Of the list, the first labels, of which at least half are there because they are wrong."""
    contradicted: int
    """Labels that are less probable than another by leave-one-out, for whatever reason."""

    def __len__(self) -> int:
        return len(self.columns["row"])

    @property
    def sentence(self) -> str:
        """What the list means."""
        if not self.contradicted:
            return "The other images contradict no label."
        if not self.beyond_errors:
            many = f"{self.contradicted:,} labels are" if self.contradicted > 1 else "One label is"
            return (
                f"{many} less probable than another by leave-one-out, about as many as the model's own errors explain; "
                "the most doubtful are shown, and may well be right."
            )
        n, about = self.beyond_errors, f"about {self.expected:.0f}" if self.expected >= 1.0 else "hardly one"
        return (
            f"The others contradict {'the first' if len(self) > n else 'these'} {n:,} label{'s' if n > 1 else ''} more "
            f"than the model's own errors explain: with every label right, {about} would be on a list like this."
        )


def suspect_labels(clf: GPClassifier, most: int | None = None) -> SuspectLabels:
    """Labels that the others contradict: those that the model's own errors do not explain, or the first `most`.

    If every label were right, and the model's probabilities too, the number of labels with a probability of at most t
    would be Σ_i Σ_c p_ic over the p_ic ≤ t. The list ends at the largest t at which there are twice as many, and more
    than chance puts there, or after five. The probabilities are those without the share of labels that is taken to be
    random.
    """
    P, given = clf.loo_probabilities_, to_numpy(clf.gp_.leave_one_out().targets).argmax(1)
    noise = float(clf.label_noise_)
    clean = np.clip((P - noise / P.shape[1]) / max(1.0 - noise, 1e-12), 0.0, 1.0)
    of_labels = np.sort(clean[np.arange(len(P)), given])
    contradicted = int(np.count_nonzero(P.argmax(1) != given))
    every = np.sort(clean.ravel())
    total = np.concatenate([[0.0], np.cumsum(every)])
    expected = total[np.searchsorted(every, of_labels, "right")]
    seen = np.arange(1, len(P) + 1)
    by_chance = expected + _DEVIATIONS * np.sqrt(expected)
    fits = np.flatnonzero((expected <= _BY_ERRORS * seen) & (by_chance <= seen))
    beyond = min(int(fits[-1]) + 1 if len(fits) else 0, contradicted)
    n = max(beyond, min(contradicted, _AT_LEAST)) if most is None else min(most, len(P))
    columns = {name: column[:n] for name, column in clf.suspect_labels(max(n, 1)).items()}
    return SuspectLabels(columns, float(expected[beyond - 1]) if beyond else 0.0, beyond, contradicted)
