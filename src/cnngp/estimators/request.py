"""Parameters of the estimators, their validation, and the defaults of a fit."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from cnngp.common.arrays import DataError
from cnngp.common.devices import Device
from cnngp.common.errors import is_whole
from cnngp.datasets.preparation import Preparation, as_preparation
from cnngp.gp.checks import MatrixError, check_amplitude, check_noise
from cnngp.gp.exact import Amplitude, Noise
from cnngp.gp.objectives import RULES, Rule
from cnngp.gp.posterior import METHODS, Method
from cnngp.kernel.kernel import Kernel, as_kernel
from cnngp.kernel.program import Kind
from cnngp.kernel.symmetry import Symmetry
from cnngp.network.layers import Dense, Network
from cnngp.network.names import network_by_name

from .choosing import EFFORTS, Effort
from .recipe import Recipe, Term


@dataclass(frozen=True)
class Learning:
    """Options of `GPClassifier(network, learn=Learning(...))`; `learn="loo"` is short for `Learning("loo")`.

    Parameters
    ----------
    rule : "loo", by leave-one-out predictions, or "likelihood", by the marginal likelihood.
    images : number of training images used for learning, balanced over the classes; the fit uses all of them.
    starts : number of searches: the first from the given network, the others from networks near it.
    steps : largest number of kernel matrices, with gradients, for each start.
    tied : layers of the same kind change by a common factor; False gives each layer its own.

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


@dataclass(eq=False, repr=False)
class Parameters:
    """Parameters of both estimators with their defaults, documented in `GPClassifier`."""

    network: Network | Kernel | Recipe | str | None = None
    _: KW_ONLY
    noise: Noise | None = None
    amplitude: Amplitude = "ml"
    device: Device = "auto"
    dtype: str = "float32"
    store: Any = None
    input_shape: tuple[int, ...] | None = None
    threads: int | None = None
    kind: Kind = "nngp"
    solver: Method = "auto"
    inducing: Any = None
    learn: Rule | Learning | None = None
    random_state: Any = 0
    effort: Effort = "normal"
    preparation: str | Preparation | tuple[Any, ...] | Literal["loo"] | None = None


@dataclass(eq=False, repr=False)
class Request(Parameters):
    """Checked parameters of one fit. All defaults of a fit are resolved here."""

    _kernels: dict[tuple[Network, Symmetry | None], Kernel] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.noise is not None:
            check_noise(self.noise)
        check_amplitude(self.amplitude)
        if self.preparation not in (None, "loo"):
            as_preparation(self.preparation)
        for name, known in (("solver", METHODS), ("effort", EFFORTS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r} is not one of {', '.join(map(repr, known))}")
        if isinstance(self.noise, str) and self.solver == "cg" and self.inducing is None:
            raise MatrixError(
                f"noise={self.noise!r} needs an eigendecomposition, which solver={self.solver!r} never makes; give a "
                "number, or use solver='cholesky'"
            )
        state = self.random_state
        if not is_whole(state, least=0) and not isinstance(state, np.random.RandomState | np.random.Generator | None):
            raise ValueError(f"random_state={state!r}: expected None, a generator of NumPy, or a number of 0 or more")
        if self.learn is not None and not isinstance(self.learn, Learning) and self.learn not in RULES:
            raise ValueError(f"learn={self.learn!r}: expected None, 'loo', 'likelihood' or a Learning")
        if isinstance(self.network, Recipe):
            if self.preparation is not None:
                raise ValueError("preparation= beside a recipe, whose terms have their own; leave out one of them")
            if self.noise is not None and self.network.noise is not None:
                raise ValueError("noise= beside a recipe that has one; leave out one of them")
            if self.learn is not None:
                raise DataError("learn= changes the variances of one network; give the network and not a recipe")
        kind = self.network.kind if isinstance(self.network, Kernel) else self.kind
        if self.learn is not None and kind == "ntk":
            raise DataError("learn= follows the gradient of the Gaussian process's kernel; use kind='nngp' with it")

    @property
    def learning(self) -> Learning | None:
        """The value of `learn=` as a `Learning`, or None."""
        return self.learn if self.learn is None or isinstance(self.learn, Learning) else Learning(self.learn)

    @cached_property
    def recipe(self) -> Recipe | None:
        """The given recipe, or that of a given network; None if one is to be chosen.

        The recipe of a network has no noise, because `noise=` is in the units of its kernel.
        """
        network = network_by_name(self.network) if isinstance(self.network, str) else self.network
        if network is None or isinstance(network, Recipe):
            return network
        prepared = self.preparation if self.preparation not in (None, "loo") else "plain"
        if isinstance(network, Kernel):
            return Recipe((Term(network.network, prepared, network.symmetry),))
        return Recipe((Term(network, prepared),))

    def make(self, network: Network, symmetry: Symmetry | None = None) -> Kernel:
        """Make a kernel with the requested settings, or those of a given `Kernel`; cached for each network."""
        if (network, symmetry) not in self._kernels:
            made: Kernel
            if isinstance(self.network, Kernel):
                made = as_kernel(self.network, self.device, self.dtype, self.threads, self.kind)
                if (network, symmetry) != (made.network, made.symmetry):
                    made = made.with_network(network)
            else:
                made = Kernel(network, self.device, self.dtype, self.threads, self.kind, symmetry=symmetry)
            self._kernels[network, symmetry] = made
        return self._kernels[network, symmetry]

    @property
    def working_type(self) -> np.dtype[Any]:
        """Data type of images and kernels."""
        term = Term(Dense()) if self.recipe is None else self.recipe.main
        return np.dtype(self.make(term.network, term.symmetry).dtype)

    def seed(self) -> int | None:
        """Return `random_state` as a seed, drawn from it if it is a generator."""
        state = self.random_state
        if isinstance(state, np.random.RandomState):
            return int(state.randint(2**31))
        if isinstance(state, np.random.Generator):
            return int(state.integers(2**31))
        return None if state is None else int(state)

    def noise_rule(self, chosen: bool) -> Noise:
        """Noise of a fit, in units of the matrix or as a rule: the requested one, else "loo" if the recipe is `chosen`
        and there are no inducing images or variances to learn, else 0 (with inducing images this means "loo" too).
        """
        of_recipe = self.network.noise if isinstance(self.network, Recipe) else None
        asked = self.noise if of_recipe is None else of_recipe
        if asked is not None:
            return asked
        return "loo" if chosen and self.inducing is None and self.learning is None else 0.0
