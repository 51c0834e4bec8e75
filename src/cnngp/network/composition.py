"""Check that a network converges to a Gaussian process, by propagating the state of its activations.

A kernel recursion is exact only if each nonlinearity sees zero-mean Gaussians and each sum adds independent terms.
Both are properties of the composition, not of one layer, so they are checked here, for fragments and whole networks.
"""

from __future__ import annotations

from enum import Enum
from typing import assert_never

from .layers import (
    AvgPool,
    Conv,
    ConvTranspose,
    Dense,
    GlobalAvgPool,
    Identity,
    Layer,
    LayerNorm,
    NetworkError,
    Nonlinearity,
    Sequential,
    Sum,
)
from .walk import inside


class State(Enum):
    """State of the activations at one point of a network."""

    INPUT = "the input itself"
    GAUSSIAN = "Gaussian"
    NON_GAUSSIAN = "the output of a nonlinearity"


def check_fragment(net: Layer) -> None:
    """Raise `NetworkError` for what is wrong in any context; called when a `Sequential` or `Sum` is built."""
    _walk(net, State.GAUSSIAN, "")


def check_network(net: Layer) -> None:
    """Raise `NetworkError` if a whole network is not a Gaussian process; called before it is used."""
    state, _ = _walk(net, State.INPUT, "")
    if state is not State.GAUSSIAN:
        why = (
            "the network ends in a nonlinearity, so its output is not Gaussian"
            if state is State.NON_GAUSSIAN
            else "the images reach the output by a path without weights, so the output is not a random function of them"
        )
        raise NetworkError(f"{why}; add Dense() or Conv(...) at the end")


def _walk(net: Layer, state: State, place: str) -> tuple[State, int]:
    """Return the state after `net` and the number of weightless paths through it."""
    match net:
        case Conv() | ConvTranspose() | Dense():
            return State.GAUSSIAN, 0
        case Nonlinearity():
            is_norm = isinstance(net, LayerNorm)
            if state is not State.GAUSSIAN:
                why = "whose mean over channels is not 0" if is_norm else "which is not Gaussian"
                advice = "put a Conv(...) or Dense() before it"
                advice += ", or do it to the images" if state is State.INPUT else ""
                raise NetworkError(f"{net!r} is applied to {state.value}, {why}; {advice}", place)
            return state if is_norm else State.NON_GAUSSIAN, 1
        case Identity() | AvgPool() | GlobalAvgPool():  # linear without weights: preserves the state
            return state, 1
        case Sequential():
            paths = 1
            for where, layer in inside(net, place):
                state, through = _walk(layer, state, where)
                paths *= through
            return state, paths
        case Sum():
            paths = 0
            states = []
            for where, branch in inside(net, place):
                after, through = _walk(branch, state, where)
                if after is State.NON_GAUSSIAN and not net.allow_non_gaussian and len(net.branches) > 1:
                    raise NetworkError(
                        f"the branch {branch!r} gives the output of a nonlinearity, so what is summed is not Gaussian; "
                        "add before the nonlinearity (pre-activation), end the branch in a Conv(...) or Dense(), or "
                        "pass allow_non_gaussian=True to add kernels where that is not exact",
                        place,
                    )
                paths += through
                states.append(after)
            if paths > 1:
                why = f"{paths} paths without weights lead into this Sum, so its branches are not independent"
                advice = "keep one Identity() and put a Conv(...) or Dense() on the others"
                raise NetworkError(f"{why} (x + x has covariance 4K, not 2K); {advice}", place)
            return max(states, key=[State.GAUSSIAN, State.INPUT, State.NON_GAUSSIAN].index), paths
        case _:
            assert_never(net)
