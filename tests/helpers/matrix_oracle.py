"""Kernels with pools by plain matrices: the covariance of every two locations, a matrix for each filter element.

With Σ the (locations × locations) covariance and S_t the matrix that moves each output location to the input location
which filter element t reads, a convolution is Σ' = bias_var + weight_var · s · Σ_t S_t Σ S_tᵀ, a pool with the matrix M
of its means is M Σ Mᵀ, and a Dense layer is the mean of the diagonal. It shares nothing with the package but the
description of the layers, and with the loop oracle only the geometry of one axis and the formulas.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from cnngp import AvgPool, Conv, ConvTranspose, Dense, GlobalAvgPool, Identity, Sequential, Sum

from .loop_oracle import conv_size, copied_location, each, fan_in_scale, formula, locations, pads, transposed_size


def tap_matrices(layer, size):
    """S_t of a convolution on a map of that size, for each filter element t."""
    axes, out = len(size), conv_size(layer, size)
    before = [b for b, _ in pads(layer, axes)]
    stride, dilation = each(layer.stride, axes), each(layer.dilation, axes)
    index = {nu: i for i, nu in enumerate(locations(size))}
    for tap in itertools.product(*(range(k) for k in each(layer.kernel_size, axes))):
        S = np.zeros((math.prod(out), math.prod(size)))
        for row, mu in enumerate(locations(out)):
            nu = tuple(
                copied_location(mu[a] * stride[a] + tap[a] * dilation[a] - before[a], size[a], layer.padding_mode)
                for a in range(axes)
            )
            if None not in nu:
                S[row, index[nu]] = 1.0
        yield S


def mean_matrix(layer, size):
    """M of an average pool, the product of one matrix for each axis."""
    axes = len(size)
    k, pad = each(layer.size, axes), each(layer.padding, axes)
    stride = k if layer.stride is None else each(layer.stride, axes)
    M, out = np.ones((1, 1)), []
    for a in range(axes):
        out.append((size[a] + 2 * pad[a] - k[a]) // stride[a] + 1)
        one = np.zeros((out[a], size[a]))
        for P in range(out[a]):
            window = [p for p in range(P * stride[a] - pad[a], P * stride[a] - pad[a] + k[a]) if 0 <= p < size[a]]
            one[P, window] = 1.0 / (k[a] if layer.count_include_pad else len(window))
        M = np.kron(M, one)
    return M, tuple(out)


def walk(net, maps, size):
    """The covariances (X, X'), (X, X) and (X', X') of all locations after a network."""
    match net:
        case Conv() | ConvTranspose():
            if isinstance(net, Conv):
                out, taps = conv_size(net, size), list(tap_matrices(net, size))
            else:  # the adjoint of the convolution from the output's size, from the outputs that exist
                out = transposed_size(net, size)
                rows = {m: i for i, m in enumerate(locations(conv_size(net, out)))}
                kept = [rows[m] for m in locations(size)]
                taps = [S[kept].T for S in tap_matrices(net, out)]
            scale = net.weight_var * fan_in_scale(net, len(size))
            return [net.bias_var + scale * sum(S @ V @ S.T for S in taps) for V in maps], out
        case Dense():
            return [np.array([[net.bias_var + net.weight_var * np.trace(V) / len(V)]]) for V in maps], ()
        case AvgPool():
            M, out = mean_matrix(net, size)
            return [M @ V @ M.T for V in maps], out
        case GlobalAvgPool():
            return [np.array([[V.mean()]]) for V in maps], ()
        case Identity():
            return maps, size
        case Sequential():
            for layer in net.layers:
                maps, size = walk(layer, maps, size)
            return maps, size
        case Sum():
            branches = [walk(branch, maps, size) for branch in net.branches]
            return [sum(V[i] for V, _ in branches) for i in range(3)], branches[0][1]
        case _:
            xz, xx, zz = maps

            def apply(V, first, second, same):
                return np.array(
                    [
                        [formula(net, V[p, q], first[p], second[q], same and p == q) for q in range(len(second))]
                        for p in range(len(first))
                    ]
                )

            dx, dz = np.diag(xx), np.diag(zz)
            return [apply(xz, dx, dz, False), apply(xx, dx, dx, True), apply(zz, dz, dz, True)], size


def oracle(net, x, z):
    """K(x, z) and K(x, x) for one pair of images (C, …)."""
    flat = [a.reshape(len(a), -1) for a in (x, z)]
    maps = [a.T @ b / len(a) for a, b in ((flat[0], flat[1]), (flat[0], flat[0]), (flat[1], flat[1]))]
    (xz, xx, _), size = walk(net, maps, x.shape[1:])
    assert math.prod(size) == 1
    return float(xz[0, 0]), float(xx[0, 0])
