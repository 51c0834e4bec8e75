"""Which variances change together, and which directions change more than the kernel's scale.

The loss does not see a factor of the whole kernel where the amplitude is fitted. In a ReLU network such factors are
many: every weight_var without biases, and, layer by layer, a bias with the weights around it. So the search moves in
the space that is left when they are taken out:

    D_ij,g = ∂K_ij/∂log θ_g   for the pairs of a few images, by differences

A direction v in log θ only scales the kernel where D v is a multiple of K. It is the same everywhere: factors of
variances by which the kernel is homogeneous do not depend on the variances.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.kernel.kernel import Kernel
from cnngp.network.layers import Network

Values = Mapping[str, float]
Array = NDArray[Any]

# Images that directions are tried on.
_IMAGES = 8
# The step h of log θ in differences of order four, which are wrong by h⁴ and by rounding over h; and by how much of the
# kernel a direction must change its shape to count. A scale changes it by 1e-13 in float64. It must not be much: where
# biases are far too large, all that the images say is a small part of the kernel.
_STEPS = {"float64": (1e-3, 1e-9), "float32": (1e-2, 2e-4)}


@dataclass(frozen=True)
class Group:
    """Parameters that change by one factor."""

    name: str
    members: tuple[str, ...]

    def mean(self, values: Values) -> float:
        """The geometric mean, 0 where a member is 0."""
        each = [values[member] for member in self.members]
        return math.exp(sum(map(math.log, each)) / len(each)) if min(each) > 0.0 else 0.0

    def is_zero(self, values: Values) -> bool:
        return all(values[member] == 0.0 for member in self.members)


def groups_of(network: Network, values: Values, tied: bool) -> list[Group]:
    """Layers of a kind that stand in branches of sums, and those that do not, each with its weights and its biases.

    Gains of ReLUs are left to the weights behind them, which do the same.
    """
    found: dict[str, list[str]] = {}
    for name in values:
        place, _, parameter = name.rpartition(".")
        if parameter == "gain" or values[name] < 0.0:
            continue
        kind = type(_layer_at(network, place)).__name__
        where = " in branches" if "branches[" in place else ""
        found.setdefault(f"{kind} {parameter}{where}" if tied else name, []).append(name)
    # A variance of 0 among others has no factor; it stays 0.
    positive = {name: [m for m in members if values[m] > 0.0] or members for name, members in found.items()}
    return [Group(name, tuple(members)) for name, members in positive.items()]


def free_directions(kernel: Kernel, X: Array, values: Values, groups: Sequence[Group], scale_counts: bool) -> Array:
    """An orthonormal basis (groups, directions) of the log factors that change more than the scale of the kernel.

    With `scale_counts`, of those that change the kernel at all. A `kernel` in float64 tells best.
    """
    size_of_step, least = _STEPS[kernel.dtype]
    images = X[np.unique(np.linspace(0, len(X) - 1, _IMAGES).astype(int))]
    K = kernel(images, progress=False).ravel().astype(np.float64)
    D = np.empty((len(K), len(groups)))  # float64, whatever the kernel is in

    def at(log_factors: Array) -> Array:
        there = kernel.with_network(kernel.network.with_parameters(moved(values, groups, log_factors)))
        return np.asarray(there(images, progress=False), dtype=np.float64).ravel()

    for g, step in enumerate(size_of_step * np.eye(len(groups))):
        D[:, g] = (8.0 * (at(step) - at(-step)) - (at(2.0 * step) - at(-2.0 * step))) / (12.0 * size_of_step)
    size = float(np.linalg.norm(K))
    if size == 0.0:  # of blank images
        return np.empty((len(groups), 0))
    if not scale_counts:
        D -= np.outer(K, K @ D) / size**2
    _, sizes, basis = np.linalg.svd(D / size, full_matrices=False)
    return np.asarray(basis[sizes > least].T)


def moved(values: Values, groups: Sequence[Group], log_factors: Array) -> Values:
    """The values with those of each group multiplied by its factor."""
    changed = dict(values)
    for group, factor in zip(groups, np.exp(log_factors), strict=True):
        changed |= {member: float(values[member] * factor) for member in group.members}
    return changed


def _layer_at(network: Any, place: str) -> Any:
    for field, number in re.findall(r"(\w+)\[(\d+)\]", place):
        network = getattr(network, field)[int(number)]
    return network
