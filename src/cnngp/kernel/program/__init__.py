"""Compilation of a network to a program, the flat list of operations on maps that every engine runs: `lower`.

A map has one real number per location, for one pair of images. An operation reads one map, applies a nonlinearity's
formula if it has one, sums boxes, and writes or adds to one map:

    dst ← keep · dst + scale · box(f(src)) + bias

For the tangent kernel Θ, a second set of maps beside those of K, f(src) may be replaced by f'(src) · (times + own ·
src): the slope of the same formula, and one more map.

This single form covers convolutions, transposed convolutions, dense layers, nonlinearities and sums of branches.
Each buffer has a unit of its own (true value = unit · buffer), so constants such as the ReLU's 1/2 and the filter's 1/9
fold into the next operation, and powers of two keep deep networks with large variances within the range of float32.

    ops.py         the data types: operations, programs, steps of gradients
    nodes.py       layer → operations that each make a new map
    lowering.py    network → operations of K, or of K and Θ together
    scheduling.py  these → operations over a few buffers
    reverse.py     these → a program that continues backwards, for gradients by parameters and pixels
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from cnngp.network.layers import Network, Sequential
from cnngp.network.placed import Placed

from .lowering import Builder, Leaf, Lowered, Maps, check_slopes, one_location
from .ops import NOTHING, PIXELS, Activation, Kind, Op, Program, Shape, Tangent, as_shape
from .scheduling import assign_buffers, fused

__all__ = ["NOTHING", "PIXELS", "Activation", "Kind", "Op", "Program", "Shape", "Tangent", "check_slopes", "lower"]


def lower(net: Network, input_shape: Sequence[int], kind: Kind = "nngp", place: str = "") -> Program:
    """Compile a network for images of one shape; a program of kind "ntk" computes both kernels.

    `place` is the network's place in a larger one, for messages.

    >>> from cnngp import Conv, Dense, ReLU, Sequential
    >>> program = lower(Sequential(Conv(3), ReLU(), Dense()), (1, 28, 28))
    >>> [(op.place, op.shape, op.out_shape) for op in program.ops]
    [('layers[0]', (1, 28, 28), (1, 28, 28)), ('layers[2]', (1, 28, 28), (1, 1, 1))]
    """
    channels, root = one_location(net, input_shape, place)
    spatial = root.before
    if kind == "ntk":
        check_slopes(root.layer, place)
    builder = Builder(tangents=kind == "ntk")
    end = Maps(builder.new_input(spatial, 1.0 / channels))
    leaves: list[Leaf] = []
    for here in _in_sequence(root):
        if leaves:
            end.make()
        leaves.append(Leaf(here, end, builder.lower(here, end)))
        end = leaves[-1].after
    K, theta = builder.plain(end.K, root.place), None
    ends = [K]
    if kind == "ntk":
        theta = builder.theta(replace(end, K=K), root.place)
        theta = replace(K, unit=0.0) if theta is None else builder.plain(theta, root.place)  # zero without weights
        theta.sheet((0,) * len(K.spatial))  # Θ is made before K, as in every layer
        ends.append(theta)
    last = [value.sheet((0,) * len(value.spatial)) for value in ends]
    ops, buffers, inp, outs = assign_buffers(fused(dict(enumerate(builder.nodes)), *last), *last)
    return Program(
        net, channels, spatial, as_shape(spatial), ops, buffers, inp, outs[0], K.unit, builder.elements,
        None if theta is None else outs[1], 1.0 if theta is None else theta.unit,
        Lowered(builder.nodes, leaves, last) if inp is None else None,
    )  # fmt: skip


def _in_sequence(here: Placed) -> Iterator[Placed]:
    """Yield the layers that a network runs one after the other, including those of nested sequences."""
    if isinstance(here.layer, Sequential):
        for inner in here.children:
            yield from _in_sequence(inner)
    else:
        yield here
