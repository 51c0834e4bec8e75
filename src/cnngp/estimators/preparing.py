"""Before a fit: images that belong together, how images are prepared, and variances that are learned."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import CheckedImages, DataError, to_numpy
from cnngp.gp.exact import Noise
from cnngp.kernel.kernel import Kernel

from .budget import compared_pairs
from .checking import CheckedEstimator
from .inducing_images import PreparedImages, TrainingImages
from .inputs import as_float, axes
from .learning import Problem, as_learning, balanced, learned
from .recipe import JUDGED_ON, chosen_preparation, chosen_recipe
from .repeats import image_codes, is_repeated, joined, left_out_together

Array = NDArray[Any]

# Of groups of images, of which learn= takes one image each.
_FEWEST_GROUPS = 20


class PreparingEstimator(CheckedEstimator):
    """What estimators find out before they compute a matrix."""

    def _kept_together(self, images: Any, groups: Array | None) -> Array | None:
        """What leave-one-out leaves out together: the groups that were asked for, and images that are equal."""
        if groups is not None and as_learning(self.learn) is not None and len(np.unique(groups)) < _FEWEST_GROUPS:
            raise DataError(
                f"learn= takes one image of each group, and {len(np.unique(groups))} groups are too few to learn from "
                f"(at least {_FEWEST_GROUPS}); fit without learn="
            )
        self._repeated = 0
        if images is None or self.kernel_ is None:
            return groups
        codes = image_codes(images, None if isinstance(images, np.ndarray) else TrainingImages(images, self.kernel_).at)
        self._repeated = int(is_repeated(codes).sum())
        together = left_out_together(groups, codes)
        return together if self.inducing is None else joined(together)

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

    def _learn(self, images: Any, Y: NDArray[np.float64], image_noise: Any, groups: Array | None) -> Noise:
        """Learn the network's variances where that was asked for; the noise that the fit is to have."""
        self.learned_ = None
        asked = as_learning(self.learn)
        noise: Noise = 0.0 if self.noise is None else self.noise
        if asked is None:
            return noise
        if image_noise is not None:
            raise DataError("learn= finds one noise for all images; fit without image_noise, or without learn")
        if asked.rule == "loo" and self._no_label_twice(Y, groups):
            raise DataError(
                "learn='loo' judges an image by others of its class, and no class has two images; use 'likelihood'"
            )
        held = TrainingImages(images, self.kernel_)
        seed = self._seed()
        rows = balanced(Y, asked.images, seed, groups)
        X, targets = held.at(rows), Y[rows]
        # On the CPU: a card would compile the kernel of each network of the search anew.
        kernel = Kernel(self.network_, "cpu", self.kernel_.dtype, self.kernel_.threads)
        problem = Problem(kernel, X, targets, asked.rule, noise, self.amplitude, self._learning_loss)
        self.learned_ = learned(problem, asked, seed)
        self.network_ = self.learned_.network
        self.kernel_ = self.kernel_.with_network(self.network_)
        if noise != 0 or self.inducing is not None:
            return noise
        return self.learned_.noise_of(float(self.kernel_.diag(CheckedImages(images)).mean()))

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
