"""The parameters of estimators, and the checks of what they are given: images, labels, matrices, new images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from cnngp.common.arrays import (
    DataError,
    as_images,
    as_real,
    check_images_shape,
    refuse_masked,
    to_numpy,
)
from cnngp.common.checks import is_whole
from cnngp.common.devices import Device
from cnngp.datasets.preparation import PREPARATIONS, Preparation, prepare
from cnngp.gp.checks import MatrixError, check_amplitude, check_noise
from cnngp.gp.exact import Amplitude, Noise
from cnngp.gp.objectives import Rule
from cnngp.gp.posterior import Posterior
from cnngp.gp.solving import METHODS, Method
from cnngp.kernel.kernel import Kernel, as_kernel
from cnngp.kernel.program import Kind
from cnngp.network.choice import Choice
from cnngp.network.layers import Network
from cnngp.network.names import network_by_name

from .budget import check_budget, chosen_network
from .certificate import FitReport
from .inputs import (
    as_float,
    as_image_shape,
    as_kernel_matrix,
    as_names,
    axes,
    check_fits_images,
    check_length,
    check_real_rows,
    same_shape,
    warn_of_another_scale,
    warn_of_channels_last,
)
from .learning import Learned, Learning, as_learning

if TYPE_CHECKING:
    from cnngp.datasets.images import Aspect

Array = NDArray[Any]


class CheckedEstimator(BaseEstimator):  # type: ignore[misc]
    """The parameters of `GPClassifier` and `GPRegressor`, and what of their input is accepted."""

    # None where the model was fitted on a matrix alone: the kernel, its network, the images that K(test, …) is computed
    # with (training or inducing ones) and their shape.
    kernel_: Any
    network_: Any
    X_: Any
    input_shape_: Any
    # The same images as they were given, where X_ are prepared; else X_ itself.
    originals_: Any
    preparation_: Preparation
    """How images are prepared before the kernel sees them: "plain" where they are not."""
    # What all training images are called and labelled; None where nobody said.
    names_: Any
    y_: Any
    # Which training images the inducing ones are: None without inducing images, empty for images of the caller's own.
    inducing_rows_: NDArray[np.intp] | None
    choice_: Choice | None
    """Why this network, where none was given."""
    gp_: Posterior
    fit_report_: FitReport
    learned_: Learned | None
    image_aspect_: Aspect | None = None
    """How image files were brought to one size, for those to come; set by whoever read them."""

    def __init__(
        self,
        network: Network | Kernel | str | None = None,
        *,
        noise: Noise | None = None,
        amplitude: Amplitude = "ml",
        device: Device = "auto",
        dtype: str = "float32",
        store: Any = None,
        input_shape: tuple[int, ...] | None = None,
        threads: int | None = None,
        kind: Kind = "nngp",
        solver: Method = "auto",
        inducing: Any = None,
        learn: Rule | Learning | None = None,
        random_state: int | None = 0,
        budget: float | None = None,
        preparation: Preparation | Literal["loo"] | None = None,
    ) -> None:
        self.network = network
        self.noise = noise
        self.amplitude = amplitude
        self.device = device
        self.dtype = dtype
        self.store = store
        self.input_shape = input_shape
        self.threads = threads
        self.kind = kind
        self.solver = solver
        self.inducing = inducing
        self.learn = learn
        self.random_state = random_state
        self.budget = budget
        self.preparation = preparation

    def _check_fit(self, X: Any, y: Any, K: Any, names: Any, regression: bool = False) -> tuple[Any, Any]:
        """Training images as (N, C, …), or None where only a matrix is given; and y, both of one length."""
        # A fit that fails must not leave an earlier one's results to another kernel.
        for derived in ("gp_", "loo_novelty_", "image_aspect_"):
            self.__dict__.pop(derived, None)
        for given, name in ((X, "X"), (y, "y"), (K, "K")):
            refuse_masked(given, name)
        if self.noise is not None:
            check_noise(self.noise)
        check_budget(self.budget, self.network, X)
        check_amplitude(self.amplitude)
        if self.preparation not in (None, "loo", *PREPARATIONS):
            known = ", ".join(map(repr, (None, "loo", *PREPARATIONS)))
            raise ValueError(f"preparation={self.preparation!r} is not one of {known}")
        if self.solver not in METHODS:
            raise ValueError(f"solver={self.solver!r} is not one of {', '.join(map(repr, METHODS))}")
        if isinstance(self.noise, str) and self.solver in ("mixed", "cg") and self.inducing is None:
            raise MatrixError(
                f"noise={self.noise!r} needs an eigendecomposition, which solver={self.solver!r} never makes; give a "
                "number, or use solver='cholesky'"
            )
        self._check_random_state()
        if as_learning(self.learn) is not None and K is not None:
            raise DataError("learn= computes the kernels of changed networks from images; give X and no K")
        if self.inducing is not None and K is not None:
            raise DataError("inducing= computes the kernels that it needs from images; give X and no K")
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        if X is None and K is None:
            raise DataError("fit needs images X or a kernel matrix K")
        if regression and (targets := to_numpy(y, "y")).dtype == object:
            y = as_real(targets, "y")  # before scikit-learn reads text as numbers
        if K is not None:
            check_length(as_kernel_matrix(K).shape[0], y, "rows of K")
        self.names_, self.inducing_rows_ = as_names(names, y), None
        if X is None:
            self.network_ = self.kernel_ = self.X_ = self.originals_ = self.input_shape_ = self.choice_ = None
            self.preparation_ = "plain"
            return None, y
        # With inducing images, what has a shape stays where it is, and is read and checked a block at a time.
        streamed = self.inducing is not None and hasattr(X, "shape") and axes(X) > 3
        if axes(X) <= 2:
            check_real_rows(X)
            if axes(X) == 2 and hasattr(X, "shape"):
                check_length(X.shape[0], y, "images")
            X, y = validate_data(self, X, y, dtype=[np.float64, np.float32], multi_output=True, y_numeric=regression)
        else:
            X = X if streamed else as_float(to_numpy(X))
            check_images_shape(tuple(X.shape), "X")
            check_length(X.shape[0], y, "images")
            self.__dict__.pop("feature_names_in_", None)
            self.n_features_in_ = int(np.prod(X.shape[1:]))
        images = X if streamed and self.input_shape is None else as_image_shape(X, self.input_shape)
        if self.input_shape is None:
            warn_of_channels_last(tuple(images.shape))
        network = network_by_name(self.network) if isinstance(self.network, str) else self.network

        def kernel_of(net: Network | Kernel) -> Kernel:
            return as_kernel(net, self.device, self.dtype, self.threads, self.kind)

        self.choice_ = None
        if network is None:
            self.choice_ = chosen_network(images, self.inducing, self.budget, kernel_of)
            network = self.choice_.option.network
        self.kernel_ = kernel_of(network)
        self.network_ = self.kernel_.network
        check_learning(self.learn, self.kernel_.kind)
        if not streamed:
            check_fits_images(self.network_, images)
        self.input_shape_ = tuple(images.shape[1:])
        if self.inducing is not None:
            return images, y
        return as_images(images, np.dtype(self.kernel_.dtype)), y

    def _check_test(self, X: Any) -> Array:
        """Images to predict, checked and prepared as those of the fit."""
        return self._prepared(self._check_originals(X))

    def _prepared(self, images: Array) -> Array:
        return images if self.preparation_ == "plain" else prepare(images, self.preparation_)

    def _check_originals(self, X: Any) -> Array:
        check_is_fitted(self, "gp_")
        if self.X_ is None:
            raise DataError("the model was fitted on a kernel matrix alone; give K(test, training) as K=")
        if X is None:
            raise DataError("give images X, or K(test, training) as K=")
        refuse_masked(X, "X")
        if axes(X) <= 2:
            check_real_rows(X)
            X = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        images = same_shape(as_float(to_numpy(X)), self.input_shape_)
        checked = np.asarray(as_images(images, np.dtype(self.kernel_.dtype)))
        warn_of_another_scale(checked, self.originals_)
        return checked

    def _check_random_state(self) -> None:
        state: Any = self.random_state
        if not is_whole(state, least=0) and not isinstance(state, np.random.RandomState | np.random.Generator | None):
            raise ValueError(f"random_state={state!r}: expected None, a generator of NumPy, or a number of 0 or more")

    def _seed(self) -> int | None:
        """Of a generator a seed is drawn."""
        state: Any = self.random_state
        if isinstance(state, np.random.RandomState):
            return int(state.randint(2**31))
        if isinstance(state, np.random.Generator):
            return int(state.integers(2**31))
        return None if state is None else int(state)

    def _check_how_many(self, n: Any) -> None:
        check_is_fitted(self, "gp_")
        if not is_whole(n, least=0):
            raise ValueError(f"n={n!r}: expected how many images, 0 or more")

    def _check_added(self, X: Any, y: Any) -> Array:
        if self.X_ is None:
            raise DataError("the model was fitted on a kernel matrix alone; fit again with images X to add to it")
        images = self._check_originals(X)
        check_length(len(images), y, "images")
        return images


def check_learning(learn: Any, kind: str) -> None:
    """Refuse what is no rule to learn by, and a kernel that has none."""
    if as_learning(learn) is not None and kind == "ntk":
        raise DataError("learn= follows the gradient of the Gaussian process's kernel; use kind='nngp' with it")
