"""Images on their way into a fit: prepared as asked for, or as leave-one-out finds best, with the originals kept."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import to_numpy

from .budget import compared_pairs
from .checking import CheckedEstimator
from .inducing_images import PreparedImages, TrainingImages
from .inputs import as_float, axes
from .learning import as_learning, balanced
from .recipe import JUDGED_ON, chosen_preparation, chosen_recipe

Array = NDArray[Any]


class PreparingEstimator(CheckedEstimator):
    """What estimators do to images before their kernel sees them."""

    def _choose_preparation(self, images: Any, Y: NDArray[np.float64], given: bool, groups: Any) -> Any:
        """The images as the kernel is to see them; what is chosen by leave-one-out is chosen here.

        Where a matrix was `given`, or the variances are to be learned, the network that was picked stays as it is.
        """
        if images is None:
            return None
        asked = self.preparation
        if asked is None:
            free = self.choice_ is not None and not given and as_learning(self.learn) is None
            asked = "loo" if free else "plain"
        self.originals_ = images
        if asked == "loo":
            held = TrainingImages(images, self.kernel_)
            rows = balanced(Y, JUDGED_ON, 0, groups)
            X, targets = held.at(rows), Y[rows]
            if self.choice_ is not None and self.budget is None and not given:
                pairs = compared_pairs(len(Y), self.inducing)
                found = chosen_recipe(self.choice_, X, targets, len(Y), pairs, self.kernel_.with_network)
                self.choice_, self.preparation_ = found
                self.kernel_ = self.kernel_.with_network(self.choice_.option.network)
                self.network_ = self.kernel_.network
            else:
                self.preparation_ = chosen_preparation(X, targets, self.kernel_)
        else:
            self.preparation_ = asked
        if self.preparation_ == "plain":
            return images
        if self.inducing is not None:
            return PreparedImages(images, self.preparation_, self.kernel_)
        return self._prepared(images)

    def _prepared_inducing(self) -> Any:
        """`inducing` as given, where it is a number or rows; images of the caller's own prepared as all others."""
        if self.preparation_ == "plain" or axes(self.inducing) < 2:
            return self.inducing
        return self._prepared(self._own_inducing())

    def _own_inducing(self) -> Array:
        return np.asarray(as_float(to_numpy(self.inducing, "inducing")), np.dtype(self.kernel_.dtype))

    def _originals_of_inducing(self) -> Any:
        if self.preparation_ == "plain":
            return self.X_
        rows = self.inducing_rows_
        if rows is None or not len(rows):
            return self._own_inducing()
        order = np.argsort(rows)
        found = np.empty_like(self.X_)
        found[order] = TrainingImages(self.originals_, self.kernel_).at(rows[order])
        return found
