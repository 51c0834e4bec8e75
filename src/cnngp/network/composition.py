"""Which networks are Gaussian processes: the state of the activations is carried along the network.

A kernel recursion is exact only while each nonlinearity sees zero-mean Gaussians and each sum adds independent terms.
Both are properties of the composition, not of a layer, so they are checked here, on any piece and on the whole.
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
from .walk import at, inside


class State(Enum):
    """What the activations are at some point of a network."""

    INPUT = "the input itself"
    GAUSSIAN = "Gaussian"
    NON_GAUSSIAN = "the output of a nonlinearity"


def check_fragment(net: Layer) -> None:
    """Refuses what is wrong wherever the piece stands; run when a `Sequential` or `Sum` is built."""
    _walk(net, State.GAUSSIAN, "")


def check_network(net: Layer) -> None:
    """Refuses a whole network that is not a Gaussian process; run before it is used."""
    state, _ = _walk(net, State.INPUT, "")
    if state is State.NON_GAUSSIAN:
        raise NetworkError(
            "the network ends in a nonlinearity, so its output is not Gaussian; add Dense() or Conv(...) at the end"
        )
    if state is State.INPUT:
        raise NetworkError(
            "the images reach the output by a path without weights, so the output is not a random function of them; "
            "add Dense() or Conv(...) at the end"
        )


def state_after(layer: Layer, state: State, place: str) -> State:
    """The state after one piece of a network, or what is wrong with it there."""
    return _walk(layer, state, place)[0]


def _walk(net: Layer, state: State, place: str) -> tuple[State, int]:
    """The state after `net`, and how many paths without weights lead through it."""
    match net:
        case Conv() | ConvTranspose() | Dense():
            return State.GAUSSIAN, 0
        case LayerNorm():
            if state is not State.GAUSSIAN:
                why = "whose mean over channels is not 0; put it behind a Conv(...) or Dense()"
                raise NetworkError(at(place, f"{net!r} is applied to {state.value}, {why}"))
            return state, 1
        case Nonlinearity():
            if state is not State.GAUSSIAN:
                why = "which is not Gaussian; put a Conv(...) or Dense() before it"
                raise NetworkError(at(place, f"{net!r} is applied to {state.value}, {why}"))
            return State.NON_GAUSSIAN, 1
        case Identity() | AvgPool() | GlobalAvgPool():  # linear and without weights: what was Gaussian stays so
            return state, 1
        case Sequential():
            paths = 1
            for where, layer in inside(net, place):
                state, through = _walk(layer, state, where)
                paths *= through
            return state, paths
        case Sum():
            return _walk_sum(net, state, place)
        case _:
            assert_never(net)


def _walk_sum(net: Sum, state: State, place: str) -> tuple[State, int]:
    branches = inside(net, place)
    if len(branches) == 1:  # nothing is added to it
        return _walk(net.branches[0], state, branches[0][0])
    if state is State.NON_GAUSSIAN and not net.allow_non_gaussian:
        for where, branch in branches:
            if _walk(branch, State.GAUSSIAN, where) == (State.GAUSSIAN, 1):
                why = "skips from the output of a nonlinearity, so what is summed is not Gaussian"
                advice = "start the block before the nonlinearity, or pass allow_non_gaussian=True"
                raise NetworkError(at(where, f"{branch!r} {why}; {advice}"))
    paths = 0
    states = set()
    for where, branch in branches:
        after, through = _walk(branch, state, where)
        if after is State.NON_GAUSSIAN and not net.allow_non_gaussian:
            why = f"the branch {branch!r} ends in a nonlinearity, so what is summed is not Gaussian"
            advice = "end the branch in a Conv(...) or Dense(), or pass allow_non_gaussian=True"
            raise NetworkError(at(where, f"{why}; {advice} to add kernels where that is not exact"))
        paths += through
        states.add(after)
    if paths > 1:
        why = f"{paths} paths without weights lead into this Sum, so its branches are not independent"
        advice = "keep one Identity() and put a Conv(...) or Dense() on the others"
        raise NetworkError(at(place, f"{why} (x + x has covariance 4K, not 2K); {advice}"))
    for worst in (State.NON_GAUSSIAN, State.INPUT):
        if worst in states:
            return worst, paths
    return State.GAUSSIAN, paths
