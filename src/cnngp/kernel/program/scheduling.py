"""nodes → operations: a nonlinearity moves into the operation that reads it, and maps share buffers by liveness."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .nodes import Node
from .ops import NOTHING, PIXELS, Op


def fused(nodes: Mapping[int, Node], *ends: int) -> dict[int, Node]:
    """The nodes, by number, with each nonlinearity that has a single reader moved into that reader."""
    readers: dict[int, list[int]] = {}
    for i, node in nodes.items():
        for used in reads(node):
            readers.setdefault(used, []).append(i)
    kept = dict(nodes)
    for i, node in nodes.items():
        if node.activation is None or i in ends or len(readers.get(i, [])) != 1:
            continue
        reader = kept[readers[i][0]]
        if reader.src == i and reader.base != i and reader.activation is None:
            kept[readers[i][0]] = replace(reader, src=node.src, activation=node.activation, tangent=node.tangent)
            del kept[i]
    return kept


def reads(node: Node) -> set[int]:
    """The nodes whose maps it reads."""
    times = None if node.tangent is None else node.tangent.times
    return {used for used in (node.src, node.base, times) if used is not None and used >= 0}


@dataclass
class Buffers:
    """Buffers that maps share: `sizes` of all, and which are `free`."""

    sizes: list[int] = field(default_factory=list)
    free: list[int] = field(default_factory=list)

    def take(self, size: int) -> int:
        """The free buffer that fits best, made larger if none is large enough, or a new one."""
        fitting = [b for b in self.free if self.sizes[b] >= size] or self.free
        if not fitting:
            self.sizes.append(size)
            return len(self.sizes) - 1
        best = min(fitting, key=lambda b: (self.sizes[b] < size, abs(self.sizes[b] - size)))
        self.free.remove(best)
        self.sizes[best] = max(self.sizes[best], size)
        return best


def assign_buffers(
    nodes: dict[int, Node], *ends: int
) -> tuple[tuple[Op, ...], tuple[int, ...], int | None, tuple[int, ...]]:
    """Linear scan: a buffer is free again after the last operation that reads it.

    One product of the images is the program's input; where there are several, or an operation that reads none, each is
    an operation.
    """
    order = sorted(nodes)
    products = [i for i in order if nodes[i].src == PIXELS]
    has_input = len(products) == 1 and all(nodes[i].src != NOTHING for i in order)
    last_use = {i: i for i in order}
    for i in order:
        for used in reads(nodes[i]):
            last_use[used] = i
    last_use |= dict.fromkeys(ends, len(order) + order[-1])
    buffers = Buffers()
    buffer_of: dict[int, int] = {}
    ops: list[Op] = []
    held: list[int] = []  # what an operation with a tangent read last: the next must not write there if both are one
    for i in order:
        node = nodes[i]
        size = math.prod(node.out_shape)
        if node.src == PIXELS and has_input:
            buffer_of[i] = buffers.take(size)
            continue
        src = buffer_of.get(node.src, node.src)
        read = (node.src,) if node.tangent is None else (node.src, node.tangent.times)
        if node.base is not None and last_use[node.base] == i and node.base not in read:
            dst = buffer_of[node.base]
        elif node.base is not None:  # what it adds to is still needed, so it adds to a copy
            dst = buffers.take(size)
            copy = Node(node.place, node.base, None, node.out_shape, node.out_shape)
            ops.append(as_op(copy, buffer_of[node.base], dst))
        elif node.sums is None and (over := _overwritten(node, i, last_use)) is not None:
            dst = buffer_of[over]
        else:
            dst = buffers.take(size)
        if node.tangent is not None and node.tangent.times >= 0:
            node = replace(node, tangent=replace(node.tangent, times=buffer_of[node.tangent.times]))
        ops.append(as_op(node, src, dst))
        buffer_of[i] = dst
        done = [buffer_of[used] for used in reads(nodes[i]) if last_use[used] == i and buffer_of[used] != dst]
        buffers.free.extend(held)
        held = done if node.tangent is not None else []
        buffers.free.extend(buffer for buffer in done if buffer not in held)
    return (
        tuple(ops),
        tuple(buffers.sizes),
        buffer_of[products[0]] if has_input else None,
        tuple(buffer_of[end] for end in ends),
    )


def _overwritten(node: Node, i: int, last_use: dict[int, int]) -> int | None:
    """The map that an operation without sums, number i, may overwrite: one that it is the last to read."""
    read = (node.src,) if node.tangent is None else (node.tangent.times, node.src)
    return next((used for used in read if last_use.get(used) == i), None)


def as_op(node: Node, src: int, dst: int) -> Op:
    """The operation of a node, once it is known which buffers it reads and writes."""
    return Op(
        node.place, src, dst, node.shape, node.out_shape, node.activation, node.sums, node.keep, node.scale, node.bias,
        node.first, node.second, node.tangent,
    )  # fmt: skip
