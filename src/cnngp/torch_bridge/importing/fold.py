"""Padding, cropping and constant factors are calls of their own in PyTorch and arguments of a layer here.

`fold` moves them into the layers next to them, and spells every padding the way a person would, so that an imported
network has the fingerprint of the same network written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from cnngp.network.layers import AvgPool, Conv, ConvTranspose, Dense, GlobalAvgPool, Layer, Padding, ReLU
from cnngp.network.shapes import windows

from .graph import POOLS, Add, Call, Cut, Graph, Mean, Pad, Pairs, Refused, Scale


def fold(graph: Graph) -> None:
    """Factors, padding and cropping become arguments of the layers next to them."""
    graph.drop_unused()
    for i, vertex in enumerate(graph.vertices):
        match vertex.call:
            case Scale(factor):
                _fold_scale(graph, i, factor)
            case Pad():
                _fold_forward(graph, i, _padded(vertex.call), "padding that does not go straight into a convolution")
            case Cut(ends):
                before = graph.vertices[vertex.inputs[0]]
                if not isinstance(before.call, ConvTranspose) or len(graph.users(vertex.inputs[0])) > 1:
                    raise Refused(f"{vertex.name}: cropping other than right after a transposed convolution")
                before.call = _cropped(before.call, ends)
                _bypass(graph, i)
            case Mean(size):
                vertex.call = AvgPool(compact(size)) if _axes_are_read(graph, i) else GlobalAvgPool()
            case _:
                pass


def _axes_are_read(graph: Graph, i: int) -> bool:
    """Whether a filter or a pool reads the one location that is left, before a Dense does."""
    users = [j for j, v in enumerate(graph.vertices) if i in v.inputs]
    calls = [graph.vertices[j].call for j in users]
    return any(isinstance(c, Conv | ConvTranspose | AvgPool) for c in calls) or any(
        _axes_are_read(graph, j) for j, c in zip(users, calls, strict=True) if not isinstance(c, Dense | Mean)
    )


def _bypass(graph: Graph, i: int) -> None:
    before = graph.vertices[i].inputs[0]
    for v in graph.vertices:
        v.inputs = tuple(before if j == i else j for j in v.inputs)
    if graph.output == i:
        graph.output = before
    graph.drop_unused()


def _scaled(call: Call, factor: float) -> Layer | None:
    """The layer followed by a constant factor, where that is a layer too: gain·a, or variances times a²."""
    match call:
        case ReLU():
            return ReLU(call.gain * factor)
        case Conv() | ConvTranspose() | Dense():
            return replace(call, weight_var=call.weight_var * factor**2, bias_var=call.bias_var * factor**2)
        case _:
            return None


def _scaled_input(call: Call, factor: float) -> Layer | None:
    """The layer preceded by a constant factor: relu(a z) = a relu(z) for a > 0, or weight_var·a²."""
    match call:
        case ReLU() if factor > 0:
            return ReLU(call.gain * factor)
        case Conv() | ConvTranspose() | Dense():
            return replace(call, weight_var=call.weight_var * factor**2)
        case _:
            return None


def _fold_scale(graph: Graph, i: int, factor: float) -> None:
    folded = _scaled_back(graph, graph.vertices[i].inputs[0], factor)
    if folded is not None:
        for j, layer in folded.items():
            graph.vertices[j].call = layer
        _bypass(graph, i)
        return
    _fold_forward(
        graph,
        i,
        lambda call: _scaled_input(call, factor),
        f"the factor {factor:.6g} stands neither right after a layer with weights or a ReLU nor right before one, "
        "so no layer can take it up; put it on the last layer of the branch",
    )


def _scaled_back(graph: Graph, i: int, factor: float) -> dict[int, Layer] | None:
    """The layers that together make value i with a factor: the one it comes from, or all terms of a sum; or None."""
    vertex = graph.vertices[i]
    if len(graph.users(i)) != 1:
        return None  # others read it without the factor
    if isinstance(vertex.call, POOLS):  # the mean of what has the factor
        return _scaled_back(graph, vertex.inputs[0], factor)
    if not isinstance(vertex.call, Add):
        layer = _scaled(vertex.call, factor)
        return None if layer is None else {i: layer}
    together: dict[int, Layer] = {}
    for term in vertex.inputs:
        folded = _scaled_back(graph, term, factor)
        if folded is None:
            return None
        together |= folded
    return together


def _fold_forward(graph: Graph, i: int, absorbed: Callable[[Call], Layer | None], reason: str) -> None:
    name = graph.vertices[i].name
    users = graph.users(i)
    layers = [absorbed(user.call) for user in users]
    if graph.output == i or any(layer is None for layer in layers):
        raise Refused(f"{name}: {reason}")
    for user, layer in zip(users, layers, strict=True):
        assert layer is not None
        user.call = layer
    _bypass(graph, i)


def _padded(pad: Pad) -> Callable[[Call], Layer | None]:
    def absorb(call: Call) -> Layer | None:
        if not isinstance(call, Conv):
            return None
        own = windows(call, len(pad.pads), "")
        if any(w.before or w.after for w in own) and (call.padding_mode, pad.mode) != ("zeros", "zeros"):
            return None  # two paddings are one padding only if both are zeros
        both = tuple((a + w.before, b + w.after) for (a, b), w in zip(pad.pads, own, strict=True))
        return spelled(replace(call, padding=both, padding_mode=pad.mode), len(own))

    return absorb


def _cropped(call: ConvTranspose, ends: tuple[int, ...]) -> ConvTranspose:
    """Dropping `ends` locations is that much more padding after, or less output_padding."""
    axes = windows(call, len(ends), "")
    extra = call.output_padding if isinstance(call.output_padding, tuple) else (call.output_padding,) * len(ends)
    return transposed_padding(
        call,
        tuple((w.before, w.after) for w in axes),
        [e - c for e, c in zip(extra, ends, strict=True)],
        *zip(*((w.kernel, w.stride, w.dilation) for w in axes), strict=True),
    )


def compact(values: Sequence[int]) -> int | tuple[int, ...]:
    """(3, 3) as 3: the spelling a person would use, and the fingerprint it has."""
    return values[0] if len(set(values)) == 1 else tuple(values)


def spelled(call: Conv, axes: int) -> Conv:
    """The same convolution with its padding as a person would write it."""
    along = windows(call, axes, "")
    pads = tuple((w.before, w.after) for w in along)
    padding = padding_of(pads, [w.kernel for w in along], [w.dilation for w in along])
    return replace(call, padding=padding, padding_mode=call.padding_mode if any(map(any, pads)) else "zeros")


def padding_of(pads: Pairs, kernel: Sequence[int], dilation: Sequence[int]) -> Padding:
    """The shortest spelling of a padding: "same" where it is that, then "valid", an int, ints, pairs."""
    reach = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    if all((before, after) == (r // 2, r - r // 2) for (before, after), r in zip(pads, reach, strict=True)):
        return "same"
    if not any(map(any, pads)):
        return "valid"
    if all(before == after for before, after in pads):
        return compact([before for before, _ in pads])
    return tuple(before if before == after else (before, after) for before, after in pads)


def transposed_padding(
    call: ConvTranspose,
    pads: Pairs,
    extra: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> ConvTranspose:
    """The layer with this padding and output_padding (negative: cropped), spelled "same" where it gives size·stride.

    With reach = dilation·(k − 1) the output has (size − 1)·stride + reach + 1 − before − after + extra locations.
    "same" is before = ⌊reach/2⌋ and size·stride locations, so reach + 1 − before − after + extra = stride.
    """
    reach = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    zipped = list(zip(pads, extra, reach, stride, strict=True))
    if all(b == r // 2 and r + 1 + e - b - a == s for (b, a), e, r, s in zipped):
        return replace(call, padding="same", output_padding=0)
    moved = tuple((b, a - min(e, 0)) for (b, a), e, _, _ in zipped)
    left = [max(e, 0) for e in extra]
    spelled: Padding = "valid" if not any(map(any, moved)) else padding_of(moved, (0,) * len(moved), (0,) * len(moved))
    return replace(call, padding=spelled, output_padding=compact(left))
