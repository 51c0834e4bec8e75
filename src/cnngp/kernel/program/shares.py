"""Which parameters the sums of a gradient belong to, and by which factor: variances, and numbers of nonlinearities."""

from __future__ import annotations

from cnngp.kernel.formulas import RELU_LIKE
from cnngp.network.layers import LeakyReLU, NetworkError, NormalizedExp, Rbf, ReLU
from cnngp.network.walk import at, name_of

from .nodes import Node
from .steps import Share


def shares_of(node: Node, slot: int) -> list[Share]:
    """The shares of the two sums of a `Back`, from `slot` on."""
    shares: list[Share] = []
    a = node.activation
    value = [(slot, 1.0)]  # how the sum of times · f is made of the two sums
    if a is not None and a.formula.family is RELU_LIKE:
        alpha, beta = a.coefficients
        value = [(slot, alpha), (slot + 1, beta)]
    if node.per_weight:
        name = name_of(node.place, "weight_var")
        shares += [Share(name, s, node.per_weight * part) for s, part in value]
    if a is None:
        return shares
    if a.formula.no_gradient:
        raise NetworkError(at(a.place, a.formula.no_gradient))
    match a.layer:
        case ReLU() as layer:  # V is a multiple of gain²
            shares.append(Share(name_of(a.place, "gain"), slot, 2.0 / layer.gain * node.scale))
        case LeakyReLU() as layer:  # V = unit · ((1 − slope)²/2 · R + slope · K)
            name, own = name_of(a.place, "slope"), node.scale * a.unit / a.factor
            shares += [Share(name, slot, -(1.0 - layer.slope) * own), Share(name, slot + 1, own)]
        case Rbf() as layer:  # log V is a multiple of gamma
            shares.append(Share(name_of(a.place, "gamma"), slot + 1, node.scale / layer.gamma))
        case NormalizedExp():
            shares.append(Share(name_of(a.place, "gamma"), slot + 1, node.scale))
        case _:
            pass
    return shares
