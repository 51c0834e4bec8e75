"""What a fitted model says of new images, as plain values: for `cnngp predict`, for the viewer and for notebooks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import DataError, to_numpy
from cnngp.estimators.classifier import GPClassifier
from cnngp.estimators.fit import Asked
from cnngp.network.layers import NetworkError

_BLOCK = 256  # images whose kernels are held at a time


def answers(model: Any, X: NDArray[Any], coverage: float | None = None, voices: int = 5) -> Iterator[dict[str, Any]]:
    """For each image: its class with probabilities, or its number; novelty; the training images behind that.

    With a `coverage` also `set`, the classes that it may have, or `interval`, where its number lies: None at an end
    that too few training images leave open. See `predict_set` and `predict_interval`.
    """
    for start in range(0, len(X), _BLOCK):
        yield from told(model, *kernels(model, X[start : start + _BLOCK]), coverage, voices)


def told(
    model: Any, K: NDArray[Any], diagonal: NDArray[Any], coverage: float | None = None, voices: int = 5
) -> Iterator[dict[str, Any]]:
    """The same from K(images, training) and k(x, x)."""
    return (_classes if isinstance(model, GPClassifier) else _numbers)(model, K, diagonal, coverage, voices)


def kernels(model: Any, X: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """K(images, training) and k(x, x), as `K` and `diagonal` of what a model is asked."""
    fit = model.fit_
    asked = Asked(np.asarray(X, fit.only_kernel.dtype))
    return np.concatenate([to_numpy(block) for _, block in fit.blocks(asked)]), fit.diagonal(asked)


def _classes(
    clf: GPClassifier, K: NDArray[Any], diagonal: NDArray[Any], coverage: float | None, voices: int
) -> Iterator[dict[str, Any]]:
    words = np.array([str(c) for c in clf.classes_], dtype=object)
    if coverage is not None and np.ndim(clf.y_) == 2:
        raise DataError("the model has several labels for each image; ask for their sets in Python, by predict_set")
    sets = None if coverage is None else clf.predict_set(K=K, diagonal=diagonal, coverage=coverage)
    for i, why in enumerate(clf.explain(K=K, diagonal=diagonal)):
        p = why.probabilities
        said: dict[str, Any] = {
            "class": words[np.argsort(-p, kind="stable")[0]],
            "probabilities": dict(zip(words, p.tolist(), strict=True)),
        }
        if sets is not None:
            said["set"] = words[sets[i]].tolist()
        yield said | why.as_dict(voices)


def _numbers(
    reg: Any, K: NDArray[Any], diagonal: NDArray[Any], coverage: float | None, voices: int
) -> Iterator[dict[str, Any]]:
    if np.ndim(reg.y_) == 2:
        raise DataError("the model predicts several numbers for each image; use it in Python, with GPRegressor.load")
    mean, std = reg.predict(K=K, diagonal=diagonal, return_std=True, noise=True)
    ends = None if coverage is None else reg.predict_interval(K=K, diagonal=diagonal, coverage=coverage)
    fit, usual, novelty = reg.fit_, reg.loo_novelty_, reg.novelty(K=K, diagonal=diagonal)
    alike = K / np.sqrt(np.maximum(np.outer(diagonal, fit.variances), np.finfo(np.float64).tiny))
    labels, names = fit.of_points(fit.y), fit.of_points(fit.names)
    for i, value in enumerate(mean):
        said: dict[str, Any] = {"value": float(value), "std": float(std[i])}
        if ends is not None:
            said["interval"] = [float(end) if math.isfinite(end) else None for end in ends[i]]
        near = [
            {
                "row": int(row),
                "share": float(alike[i, row]),
                "label": None if labels is None else float(labels[row]),
                "name": None if names is None else str(names[row]),
            }
            for row in np.argsort(-alike[i], kind="stable")[:voices]
        ]
        rank = None if usual is None else float((usual < novelty[i]).mean())
        yield said | {"novelty": float(novelty[i]), "novelty_rank": rank, "near": near}


def where(model: Any, X: NDArray[Any]) -> NDArray[np.float64] | None:
    """What each pixel does to what is predicted, in the shape of X; None of a kernel that has no gradient."""
    if model.kind == "ntk":
        return None
    try:
        return np.asarray(model.saliency(X))
    except NetworkError:  # of a step, whose kernel has infinite slopes
        return None
