"""Scheduling of nodes: nonlinearities are fused into their readers, and maps share buffers by liveness."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from .ops import NOTHING, PIXELS, Op


def fused(nodes: Mapping[int, Op], *ends: int) -> dict[int, Op]:
    """Return the nodes, by number, with each nonlinearity that has a single reader fused into that reader."""
    readers, kept = readers_of(nodes), dict(nodes)
    for i, node in nodes.items():
        if node.activation is None or i in ends or len(readers.get(i, [])) != 1:
            continue
        reader = kept[readers[i][0]]
        if reader.src == i and reader.dst != i and reader.activation is None:
            kept[readers[i][0]] = replace(reader, src=node.src, activation=node.activation, tangent=node.tangent)
            del kept[i]
    return kept


def readers_of(nodes: Mapping[int, Op]) -> dict[int, list[int]]:
    """For each node, the nodes that read its map."""
    readers: dict[int, list[int]] = {}
    for i in sorted(nodes):
        for used in nodes[i].maps:
            readers.setdefault(used, []).append(i)
    return readers


class Steps:
    """Operations over numbered maps, which are assigned to shared buffers at the end.

    A single product of the images is the program's `input`. If there are several, or an operation that reads no map,
    each product is an operation.
    """

    def __init__(self, nodes: Mapping[int, Op], to_images: bool = False) -> None:
        self.nodes, self.order = nodes, sorted(nodes)
        self.steps: list[Op] = []
        self.sizes: list[int] = []
        self.input: int | None = None
        products = [node for node in nodes.values() if node.src == PIXELS]
        if len(products) == 1 and not to_images and all(node.src != NOTHING for node in nodes.values()):
            self.input = self.new(math.prod(products[0].out_shape))

    def new(self, size: int) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1

    def forward(self, i: int, maps: dict[int, int], instead: int | None) -> None:
        """Append the operation of node i, which writes a new map or overwrites the map of the node `instead`.

        `maps` holds the maps of the nodes' results. A map that is added to and still needed later is copied first.
        """
        node = self.nodes[i]
        if node.src == PIXELS and self.input is not None:
            maps[i] = self.input
            return
        dst = self.new(math.prod(node.out_shape)) if instead is None else maps[instead]
        if node.dst >= 0 and instead is None:
            self.steps.append(Op(node.place, maps[node.dst], dst, node.out_shape, node.out_shape))
        self.steps.append(node.over(maps, dst))
        maps[i] = dst

    def in_buffers(self, first: Sequence[int], until: Mapping[int, int]) -> tuple[tuple[Op, ...], list[int], list[int]]:
        """Assign buffers by linear scan: return the steps over buffers, the buffers' sizes, and the buffer of each map.

        A buffer is free after the last step that uses its map. Maps of `first` hold data from the start, and those of
        `until` are needed up to the given step.
        """
        last = {v: t for t, step in enumerate(self.steps) for v in step.maps}
        last |= {v: max(t, last.get(v, -1)) for v, t in until.items()}
        sizes: list[int] = []
        free: list[int] = []
        # Buffers that an operation with a tangent read last: the next must not write there, as both may run as one.
        held: list[int] = []
        buffer_of: dict[int, int] = {}
        steps = []

        def take(v: int) -> None:
            """Take the free buffer that fits best, enlarged if none is large enough, or a new one."""
            size = self.sizes[v]
            best = min(free, key=lambda b: (sizes[b] < size, abs(sizes[b] - size)), default=None)
            if best is None:
                best = len(sizes)
                sizes.append(size)
            else:
                free.remove(best)
            sizes[best], buffer_of[v] = max(sizes[best], size), best

        for v in first:
            take(v)
        for t, step in enumerate(self.steps):
            for v in step.maps - buffer_of.keys():
                take(v)
            steps.append(step.over(buffer_of))
            done = [buffer_of[v] for v in step.maps | until.keys() if last[v] == t]
            free += held
            held = done if step.tangent is not None else []
            free += [] if held else done
        return tuple(steps), sizes, [buffer_of.get(v, NOTHING) for v in range(len(self.sizes))]


def assign_buffers(
    nodes: Mapping[int, Op], *ends: int
) -> tuple[tuple[Op, ...], tuple[int, ...], int | None, tuple[int, ...]]:
    """Return the operations of a program, the sizes of its buffers, its input, and the buffers of `ends`."""
    writer = Steps(nodes)
    last = {i: max(readers) for i, readers in readers_of(nodes).items()} | dict.fromkeys(ends, len(nodes) + max(nodes))
    maps: dict[int, int] = {}
    for i in writer.order:
        node = nodes[i]
        read = (node.src,) if node.tangent is None else (node.tangent.times, node.src)
        instead = None
        if node.dst >= 0:
            instead = node.dst if last[node.dst] == i and node.dst not in read else None
        elif node.sums is None:
            instead = next((used for used in read if last.get(used) == i), None)
        writer.forward(i, maps, instead)
    first = [] if writer.input is None else [writer.input]
    steps, sizes, buffers = writer.in_buffers(first, {maps[end]: len(writer.steps) for end in ends})
    where = None if writer.input is None else buffers[writer.input]
    return steps, tuple(sizes), where, tuple(buffers[maps[end]] for end in ends)
