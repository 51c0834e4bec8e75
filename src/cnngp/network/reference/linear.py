"""Linear layers as sums over the locations of one image, or of both images alike."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..layers import AvgPool, Conv, ConvTranspose, Dense, NetworkError
from .covariances import Array, equal_locations

Reads = list[NDArray[np.int64]]
"""For each axis the input location that filter element t of window m reads, (t, m); −1 in zero padding."""
_PADDING: dict[str, dict[str, Any]] = {
    "zeros": {"mode": "constant", "constant_values": -1},
    "circular": {"mode": "wrap"},
    "reflect": {"mode": "reflect"},
    "replicate": {"mode": "edge"},
}


def per_axis(value: int | tuple[int, ...], axes: int) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,) * axes


def pads_of(layer: Conv | ConvTranspose, axes: int) -> list[tuple[int, int]]:
    if layer.padding == "same":
        k, dilation = per_axis(layer.kernel_size, axes), per_axis(layer.dilation, axes)
        return [(d * (n - 1) // 2, d * (n - 1) - d * (n - 1) // 2) for n, d in zip(k, dilation, strict=True)]
    if layer.padding == "valid":
        return [(0, 0)] * axes
    entries = layer.padding if isinstance(layer.padding, tuple) else (layer.padding,) * axes
    return [(p, p) if isinstance(p, int) else p for p in entries]


def fan_in_scale(layer: Conv | ConvTranspose, axes: int) -> float:
    return 1.0 / math.prod(per_axis(layer.kernel_size, axes)) if layer.fan_in == "patch" else 1.0


def check_fits(layer: Conv | ConvTranspose | AvgPool, outputs: Sequence[int], size: tuple[int, ...]) -> None:
    if min(outputs, default=1) < 1:
        raise NetworkError(f"{layer!r} does not fit {' × '.join(map(str, size))} locations; use larger images")


def windows(layer: Conv | ConvTranspose, size: tuple[int, ...]) -> tuple[tuple[int, ...], Reads]:
    """Return the output size for an input of this size, and the locations that the layer's windows read.

    For a transposed convolution, the windows are those of the convolution over its output that it transposes.
    """
    axes = len(size)
    k, stride, dilation = (per_axis(v, axes) for v in (layer.kernel_size, layer.stride, layer.dilation))
    extra = per_axis(layer.output_padding, axes) if isinstance(layer, ConvTranspose) else None
    out, reads = [], []
    for a, (n, pad) in enumerate(zip(size, pads_of(layer, axes), strict=True)):
        reach = dilation[a] * (k[a] - 1) + 1
        if extra is None:
            out.append((n + sum(pad) - reach) // stride[a] + 1)
        elif layer.padding == "same":
            out.append(n * stride[a])
        else:
            out.append((n - 1) * stride[a] - sum(pad) + reach + extra[a])
        check_fits(layer, out, size)
        read, count = (n, out[a]) if extra is None else (out[a], n)
        places = np.pad(np.arange(read), pad, **_PADDING[layer.padding_mode])
        reads.append(places[stride[a] * np.arange(count) + dilation[a] * np.arange(k[a])[:, None]])
    return tuple(out), reads


def taps(reads: Reads, copies: int) -> Iterator[tuple[Any, Any]]:
    """For each filter element, yield the windows in which it is inside the image and what they read, as indices."""
    along = [[(np.flatnonzero(row >= 0), row[row >= 0]) for row in axis if (row >= 0).any()] for axis in reads]
    for tap in itertools.product(*along):
        windows, places = (np.ix_(*[pair[i] for pair in tap] * copies) for i in (0, 1))
        yield (..., *windows), (..., *places)


def convolution(layer: Conv | ConvTranspose, V: Array, axes: int) -> Array:
    """K_μ = bias_var + weight_var · s · Σ_{ν ∈ patch(μ)} V_ν; for pairs of locations, with the same offset in both.

    The transposed convolution is the adjoint: the sum over all m with μ ∈ patch(m).
    """
    copies = (V.ndim - 2) // max(axes, 1)
    out, reads = windows(layer, V.shape[2 : 2 + axes])
    total = np.zeros(V.shape[:2] + out * copies)
    for at, places in taps(reads, copies):
        if isinstance(layer, Conv):
            total[at] += V[places]
        else:
            total[places] += V[at]
    return layer.bias_var + layer.weight_var * fan_in_scale(layer, axes) * total


def dense(layer: Dense, V: Array, axes: int) -> Array:
    """K = bias_var + weight_var · mean over all locations, each of which has weights of its own."""
    V = equal_locations(V, axes) if V.ndim > 2 + axes else V
    return layer.bias_var + layer.weight_var * np.asarray(V.mean(axis=tuple(range(2, V.ndim))))


def average_pool(layer: AvgPool, V: Array, axes: int) -> Array:
    """K'(P, Q) = 1/(n_P n_Q) Σ_{p ∈ P} Σ_{q ∈ Q} V(p, q): an averaging matrix along each axis of both images."""
    for axis in range(2 * axes):
        means = pool_means(layer, axis % axes, V.shape[2 + axis], axes)
        V = np.moveaxis(np.tensordot(V, means, axes=(2 + axis, 1)), -1, 2 + axis)
    return V


def pool_means(layer: AvgPool, axis: int, n: int, axes: int) -> Array:
    """Averaging matrix along one axis of n locations, (windows, n)."""
    size, padding = per_axis(layer.size, axes), per_axis(layer.padding, axes)
    stride = size if layer.stride is None else per_axis(layer.stride, axes)
    k, s, pad = size[axis], stride[axis], padding[axis]
    windows = (n + 2 * pad - k) // s + 1
    check_fits(layer, [windows], (n,))
    means = np.zeros((windows, n))
    for P in range(len(means)):
        inside = [p for p in range(P * s - pad, P * s - pad + k) if 0 <= p < n]
        means[P, inside] = 1.0 / (k if layer.count_include_pad else len(inside))
    return means
