"""Search spaces: a `Space` turns the numbers drawn by one Optuna trial into a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from cnngp.network.layers import (
    GELU,
    AvgPool,
    Conv,
    Dense,
    Erf,
    GlobalAvgPool,
    Identity,
    LeakyReLU,
    Network,
    NetworkError,
    ReLU,
    Sequential,
    Sum,
)

if TYPE_CHECKING:
    from optuna import Trial
    from optuna.trial import FixedTrial

    Numbers: TypeAlias = Trial | FixedTrial


@dataclass(frozen=True)
class Space:
    """A family of networks: `build` draws hyperparameters from an Optuna trial and returns a network.

    Increase `version` when `build` changes, so that a study is never continued with different networks. Networks that
    need more than `most_operations` per pair of images are invalid, and others are drawn instead.
    """

    name: str
    version: int
    build: Callable[[Numbers], Network]
    most_operations: int | None = None

    def network(self, trial: Numbers, image_shape: Sequence[int]) -> Network:
        """Build the network of a draw. Raises `NetworkError` if it does not fit the images or costs too much."""
        built = self.build(trial)
        if not isinstance(built, Network):
            raise TypeError(
                f"build of the space {self.name} returned {built!r:.60} ({type(built).__name__}); expected a network "
                "such as Sequential(Conv(3), ReLU(), Dense())"
            )
        operations = built.shapes(image_shape).cost
        if self.most_operations is not None and operations > self.most_operations:
            raise NetworkError(
                f"it costs {operations:,} operations a pair of images, and {self.name} draws networks of at most "
                f"{self.most_operations:,}"
            )
        return built


def find_space(name: str | Space) -> Space:
    """Return a space by its name; a `Space` is returned unchanged."""
    if isinstance(name, Space):
        return name
    if name not in SPACES:
        raise NetworkError(f"no space {name!r}: expected one of {', '.join(SPACES)}")
    return SPACES[name]


# ---- the paper's ----------------------------------------------------------------------------------------------------


def _paper_layers(trial: Numbers, filters: tuple[int, int]) -> tuple[Callable[..., Conv], Network, Dense]:
    """Hyperparameters of both spaces: weight and bias variance, the same in all layers, filter size, nonlinearity.

    The recursion is the paper's: no division by the filter size, and a ReLU with gain √2.
    """
    weight_var = trial.suggest_float("weight_var", 0.5, 8.5)
    bias_var = trial.suggest_float("bias_var", 0.2, 8.2)
    size = trial.suggest_int("filter_size", *filters)
    name = trial.suggest_categorical("nonlinearity", ("relu", "erf"))
    phi: Network = ReLU(math.sqrt(2.0)) if name == "relu" else Erf()

    def conv(stride: int = 1, padding: Literal["same", "valid"] = "same") -> Conv:
        return Conv(size, stride, padding, weight_var=weight_var, bias_var=bias_var, fan_in="channels")

    return conv, phi, Dense(weight_var=weight_var, bias_var=bias_var)


def _paper_cnn(trial: Numbers) -> Network:
    layers = trial.suggest_int("layers", 2, 8)
    stride = trial.suggest_int("stride", 1, 3)
    padding = trial.suggest_categorical("padding", ("same", "valid"))
    conv, phi, dense = _paper_layers(trial, (3, 7))
    hidden = [layer for _ in range(layers) for layer in (conv(stride, padding), phi)]
    return Sequential(*hidden, dense)


def _paper_residual(trial: Numbers) -> Network:
    """Skips over one or two layers, added after the nonlinearity as in the paper; the last layers have none."""
    layers = trial.suggest_int("layers", 4, 15)
    skip = trial.suggest_int("skip", 1, 2)
    conv, phi, dense = _paper_layers(trial, (3, 6))
    blocks, rest = divmod(layers - 1, skip)
    block = Sum(Identity(), Sequential(*[conv(), phi] * skip), allow_non_gaussian=True)
    return Sequential(*[block] * blocks, *[conv(), phi] * (rest + 1), dense)


# ---- with pools ------------------------------------------------------------------------------------------------------


def _pooled(trial: Numbers) -> Network:
    """Up to three stages of convolutions with pools or strides between them, an optional pool, and a dense layer.

    Weights keep the variance from layer to layer (He's scaling for the chosen nonlinearity), because in deep networks
    otherwise all correlations converge to one value; `bias_ratio` is the bias variance relative to the signal's.
    """
    phi, keep, stem_var = _nonlinearity(trial)
    biased = trial.suggest_categorical("biased", (False, True))
    bias_var = trial.suggest_float("bias_ratio", 1e-4, 1.0, log=True) if biased else 0.0
    residual = trial.suggest_categorical("residual", (False, True))
    size = trial.suggest_categorical("filter_size", (3, 5))
    conv = Conv(size, weight_var=keep, bias_var=bias_var)
    layers: list[Network] = [Conv(size, weight_var=stem_var, bias_var=bias_var)]
    stages = trial.suggest_int("stages", 1, 3)
    for stage in range(stages):
        block = [Sum(Identity(), Sequential(phi, conv))] if residual else [phi, conv]
        layers += block * trial.suggest_int(f"layers_{stage}", 1, 3)
        if stage + 1 < stages:
            match trial.suggest_categorical(f"shrink_{stage}", ("pool", "stride")):
                case "pool":
                    layers += [phi, AvgPool(2), conv]
                case _:
                    layers += [phi, Conv(size, 2, weight_var=keep, bias_var=bias_var)]
    layers.append(phi)
    match trial.suggest_categorical("end_pool", ("none", "2", "3", "5", "global")):
        case "none":
            pass
        case "global":
            layers.append(GlobalAvgPool())
        case width:
            layers.append(AvgPool(int(width), stride=1))
    return Sequential(*layers, Dense(weight_var=keep, bias_var=bias_var))


def _nonlinearity(trial: Numbers) -> tuple[Network, float, float]:
    """φ, the weight variance that preserves the signal's variance, and the weight variance of the first layer.

    LeakyReLU with slopes from −1 to 0.2 ranges from |z| to a little beyond the ReLU. ReLU and LeakyReLU are
    homogeneous, so the scale matters only for the biases; the first layer scales images in [0, 1] to about one. The
    shape of GELU depends on the scale, which is therefore drawn.
    """
    match trial.suggest_categorical("nonlinearity", ("relu", "leaky", "gelu")):
        case "relu":
            return ReLU(), 2.0, 10.0
        case "leaky":
            slope = trial.suggest_float("slope", -1.0, 0.2)
            return LeakyReLU(slope), 2.0 / (1.0 + slope**2), 10.0
        case _:  # E[gelu²] is between a quarter and a half of the variance
            weight_var = trial.suggest_float("weight_var", 1.8, 4.0, log=True)
            return GELU(), weight_var, trial.suggest_float("stem_var", 10.0, 1000.0, log=True)


SPACES: dict[str, Space] = {
    space.name: space
    for space in (
        Space("paper-cnn", 1, _paper_cnn),
        Space("paper-residual", 1, _paper_residual),
        Space("pooled", 1, _pooled, most_operations=3_000_000),
    )
}
