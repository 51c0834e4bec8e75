"""lower(network, input shape): the flat list of operations on maps that every engine runs.

A map is a real number per location, for one pair of images. An operation reads one map, applies a nonlinearity's
formula where it has one, sums boxes, and writes or adds to one map:

    dst ← keep · dst + scale · box(f(src)) + bias

That single form covers convolutions, transposed convolutions, dense layers, nonlinearities and sums of branches.
A buffer holds values in a unit of its own (true value = unit · buffer), so constants such as the ReLU's 1/2 and the
filter's 1/9 fold into the next operation, and powers of two keep deep networks with large variances inside the range of
float32.

    ops.py         what a program is made of
    units.py       the units that maps are held in
    nodes.py       network → operations that each make a new map
    scheduling.py  those → operations over a few buffers
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cnngp.network.composition import check_network
from cnngp.network.demands import placed
from cnngp.network.layers import Network, NetworkError, as_layer
from cnngp.network.shapes import check_input_shape, shape_text

from .nodes import Builder
from .ops import NOTHING, PIXELS, Activation, Op, Program, Shape, as_shape
from .scheduling import assign_buffers, fused, with_plain_unit

__all__ = ["NOTHING", "PIXELS", "Activation", "Op", "Program", "Shape", "lower"]


def lower(net: Network, input_shape: Sequence[int]) -> Program:
    """The program of a network on images of one shape.

    >>> from cnngp import Conv, Dense, ReLU, Sequential
    >>> program = lower(Sequential(Conv(3), ReLU(), Dense()), (1, 28, 28))
    >>> [(op.place, op.shape, op.out_shape) for op in program.ops]
    [('layers[0]', (1, 28, 28), (1, 28, 28)), ('layers[2]', (1, 28, 28), (1, 1, 1))]
    """
    layer = as_layer(net)
    channels, spatial = check_input_shape(input_shape)
    check_network(layer)
    root = placed(layer, spatial)  # refuses what does not fit, by its place in the network
    builder = Builder()
    end = builder.lower(root, builder.new_input(spatial, 1.0 / channels))
    if math.prod(end.spatial) != 1:
        raise NetworkError(
            f"the network has {shape_text(end.spatial)} output locations for input {tuple(input_shape)}, but a kernel "
            "needs one; end it with Dense()"
        )
    last = end.sheet((0,) * len(end.spatial))
    ops, buffers, inp, out = assign_buffers(fused(builder.nodes, last), last)
    ops, unit = with_plain_unit(ops, end.unit)
    return Program(net, channels, spatial, as_shape(spatial), ops, buffers, inp, out, unit, builder.elements)
