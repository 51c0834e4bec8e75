"""What a caller asks of a fit: the parameters of an estimator, checked before anything else is looked at."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cnngp.common.arrays import DataError
from cnngp.common.checks import is_whole
from cnngp.common.devices import Device
from cnngp.datasets.preparation import as_preparation
from cnngp.gp.checks import MatrixError, check_amplitude, check_noise
from cnngp.gp.exact import Amplitude, Noise
from cnngp.gp.solving import METHODS, Method
from cnngp.kernel.kernel import Kernel, as_kernel
from cnngp.kernel.program import Kind
from cnngp.kernel.symmetry import Symmetry
from cnngp.network.layers import Dense, Network
from cnngp.network.names import network_by_name

from .choosing import EFFORTS, Effort
from .learning import Learning, as_learning
from .recipe import Recipe, Term


@dataclass(frozen=True)
class Request:
    """The parameters of `GPClassifier`, with their meaning there. Every default of a fit is decided here or in
    `noise_rule`."""

    network: Network | Kernel | Recipe | str | None = None
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
    learn: Any = None
    random_state: Any = 0
    effort: Effort = "normal"
    preparation: Any = None

    def __post_init__(self) -> None:
        if self.noise is not None:
            check_noise(self.noise)
        check_amplitude(self.amplitude)
        if self.preparation not in (None, "loo"):
            as_preparation(self.preparation)
        if self.solver not in METHODS:
            raise ValueError(f"solver={self.solver!r} is not one of {', '.join(map(repr, METHODS))}")
        if self.effort not in EFFORTS:
            raise ValueError(f"effort={self.effort!r} is not one of {', '.join(map(repr, EFFORTS))}")
        if isinstance(self.noise, str) and self.solver in ("mixed", "cg") and self.inducing is None:
            raise MatrixError(
                f"noise={self.noise!r} needs an eigendecomposition, which solver={self.solver!r} never makes; give a "
                "number, or use solver='cholesky'"
            )
        state = self.random_state
        if not is_whole(state, least=0) and not isinstance(state, np.random.RandomState | np.random.Generator | None):
            raise ValueError(f"random_state={state!r}: expected None, a generator of NumPy, or a number of 0 or more")
        if isinstance(self.network, Recipe):
            self._check_recipe(self.network)
        if self.learning is not None and self.kernel_kind == "ntk":
            raise DataError("learn= follows the gradient of the Gaussian process's kernel; use kind='nngp' with it")

    def _check_recipe(self, recipe: Recipe) -> None:
        if self.preparation is not None:
            raise ValueError("preparation= beside a recipe, whose terms have their own; leave out one of them")
        if self.noise is not None and recipe.noise is not None:
            raise ValueError("noise= beside a recipe that has one; leave out one of them")
        if self.learning is not None:
            raise DataError("learn= changes the variances of one network; give the network and not a recipe")

    @property
    def learning(self) -> Learning | None:
        return as_learning(self.learn)

    @property
    def kernel_kind(self) -> Kind:
        return self.network.kind if isinstance(self.network, Kernel) else self.kind

    @cached_property
    def asked_recipe(self) -> Recipe | None:
        """What was given as a recipe: by itself, or as a network; None where one is to be chosen.

        A network has the noise that was given, in its kernel's units, so its recipe names none.
        """
        network = network_by_name(self.network) if isinstance(self.network, str) else self.network
        if network is None or isinstance(network, Recipe):
            return network
        symmetry = network.symmetry if isinstance(network, Kernel) else None
        layers = network.network if isinstance(network, Kernel) else network
        fixed = self.preparation if self.preparation not in (None, "loo") else "plain"
        return Recipe((Term(layers, fixed, symmetry),))

    @cached_property
    def _kernels(self) -> dict[tuple[Network, Symmetry | None], Kernel]:
        return {}

    def make(self, network: Network, symmetry: Symmetry | None = None) -> Kernel:
        """A kernel with the settings that were asked for, one for each network; a `Kernel` that was given is taken as
        it is.
        """
        if (network, symmetry) not in self._kernels:
            self._kernels[network, symmetry] = self._made(network, symmetry)
        return self._kernels[network, symmetry]

    def _made(self, network: Network, symmetry: Symmetry | None) -> Kernel:
        given = self.network
        if isinstance(given, Kernel):
            own = as_kernel(given, self.device, self.dtype, self.threads, self.kind)
            if network == own.network and symmetry == own.symmetry:
                return own
            return own.with_network(network)
        return Kernel(network, self.device, self.dtype, self.threads, self.kind, symmetry=symmetry)

    @cached_property
    def working_type(self) -> np.dtype[Any]:
        """The type of images and kernels."""
        recipe = self.asked_recipe
        made = self.make(
            Dense() if recipe is None else recipe.main.network, None if recipe is None else recipe.main.symmetry
        )
        return np.dtype(made.dtype)

    def seed(self) -> int | None:
        """Of a generator a seed is drawn."""
        state = self.random_state
        if isinstance(state, np.random.RandomState):
            return int(state.randint(2**31))
        if isinstance(state, np.random.Generator):
            return int(state.integers(2**31))
        return None if state is None else int(state)

    def noise_rule(self, chosen: bool) -> Noise:
        """The noise of a fit, in units of the matrix or as a word: what was asked for, else by leave-one-out where the
        recipe is `chosen` or through inducing images (for which 0 says the same), else none.
        """
        recipe = self.network if isinstance(self.network, Recipe) else None
        asked = self.noise if recipe is None or recipe.noise is None else recipe.noise
        if asked is not None:
            return asked
        return "loo" if chosen and self.inducing is None and self.learning is None else 0.0
