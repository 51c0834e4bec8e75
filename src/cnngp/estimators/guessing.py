"""Whether a model does better than one that never looks at an image: a classifier than one that knows how common the
classes are, a regressor than the mean of all targets.

Judged by leave-one-out, image by image: by the probability of the label beside the share of its class, and by errors
beside those of always naming the commonest class. Either is enough: probabilities tell more where one class is rare,
and errors where a few images are confidently wrong. Better is what is so by twice the standard error of the difference.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_STANDARD_ERRORS = 2.0
_LEAST = 1e-12  # of a probability, of which a logarithm is taken


def errors_if_guessing(
    probability: Floats,
    wrong: NDArray[np.bool_],
    yes: NDArray[np.bool_],
    several: bool,
    groups: NDArray[np.intp] | None = None,
) -> tuple[float, float] | None:
    """The shares of images that leave-one-out and the commonest class get wrong, where the first knows no better.

    `probability` and `yes`, whether the label holds, are (images, classes); of `several` labels an image each is a
    choice of its own. Images of one of the `groups` are alike, and count as one observation. None where leave-one-out
    does better, or cannot be right because no class has two images.
    """
    n = len(yes)
    if n < 2 or (not several and (yes.sum(0) <= 1).all()):
        return None
    share = yes.mean(0)
    commonest = share > 0.5 if several else np.arange(len(share)) == share.argmax()
    guess_wrong = (yes != commonest).any(1)
    gain = _log_of_truth(probability, yes, several) - _log_of_truth(np.broadcast_to(share, yes.shape), yes, several)
    if is_positive(gain, groups) or is_positive(guess_wrong.astype(np.float64) - wrong, groups):
        return None
    return float(wrong.mean()), float(guess_wrong.mean())


def error_beside_mean(
    errors: Floats, targets: Floats, groups: NDArray[np.intp] | None = None
) -> tuple[float, float] | None:
    """Root mean square `errors` of leave-one-out, (images, outputs), and those of the mean of all other targets, where
    the first are not clearly smaller.
    """
    n = len(targets)
    if n < 2:
        return None
    of_mean = (targets - targets.mean(0)) * (n / (n - 1.0))
    if not of_mean.any() or is_positive((of_mean**2 - errors**2).mean(1), groups):
        return None
    return math.sqrt(float((errors**2).mean())), math.sqrt(float((of_mean**2).mean()))


def _log_of_truth(P: Floats, yes: NDArray[np.bool_], several: bool) -> Floats:
    """log P of what is so, of each image."""
    truth = np.where(yes, P, 1.0 - P if several else 1.0)
    return np.asarray(np.log(np.maximum(truth, _LEAST)).sum(1))


def is_positive(difference: Floats, groups: NDArray[np.intp] | None) -> bool:
    """Whether the mean is above 0 by more than chance explains, from deviations that are summed over each group."""
    mean = float(difference.mean())
    deviations = difference - mean
    if groups is not None:
        deviations = np.bincount(np.unique(groups, return_inverse=True)[1], deviations).astype(np.float64)
    n = len(deviations)
    error = math.sqrt(float((deviations**2).sum()) * n / max(n - 1, 1)) / len(difference)
    return mean > _STANDARD_ERRORS * error + _LEAST
