"""The kernel of one pair of images by plain matrices: the covariance of every two locations, layer by layer.

With Σ the (locations × locations) covariance and S_t the matrix that moves each output location to the input location
which filter element t reads, a convolution is Σ' = bias_var + weight_var · s · Σ_t S_t Σ S_tᵀ, a pool with the matrix M
of its means is M Σ Mᵀ, and a Dense layer is the mean of the diagonal. It shares nothing with the package but the
description of the layers: what the reference is tested against.
"""

import functools
import itertools
import math

import numpy as np

from cnngp import Abs, AvgPool, Conv, ConvTranspose, Cos, Dense, GlobalAvgPool, Identity, Sequential, Sum
from cnngp.network.layers import GELU, Erf, LayerNorm, LeakyReLU, NormalizedExp, Rbf, ReLU, Sign, Sin, SquaredReLU, Step


def each(value, axes):
    return value if isinstance(value, tuple) else (value,) * axes


def pads(layer, axes):
    """(before, after) of each axis; "same" pads dilation·(k − 1) in all, the smaller half before."""
    if layer.padding == "same":
        both = [d * (k - 1) for d, k in zip(each(layer.dilation, axes), each(layer.kernel_size, axes), strict=True)]
        return [(b // 2, b - b // 2) for b in both]
    if layer.padding == "valid":
        return [(0, 0)] * axes
    return [(p, p) if isinstance(p, int) else p for p in each(layer.padding, axes)]


def copied_locations(nu, n, mode):
    """Which locations of an axis of n the padded locations nu copy; −1 for zero padding."""
    match mode:
        case "zeros":
            return np.where((nu >= 0) & (nu < n), nu, -1)
        case "replicate":
            return np.clip(nu, 0, n - 1)
        case "circular":
            return nu % n
        case "reflect":
            return n - 1 - abs(n - 1 - abs(nu))


def axis_matrices(layer, a, axes, n):
    """For each filter element of one axis the matrix from its n locations to those of the output."""
    k, s, d = (each(v, axes)[a] for v in (layer.kernel_size, layer.stride, layer.dilation))
    before, after = pads(layer, axes)[a]
    if isinstance(layer, Conv):
        out = (n + before + after - d * (k - 1) - 1) // s + 1
        reads = (np.arange(out) * s + t * d - before for t in range(k))
        return [copied_locations(row, n, layer.padding_mode)[:, None] == np.arange(n) for row in reads]
    extra = 0 if layer.padding == "same" else each(layer.output_padding, axes)[a]
    out = n * s if layer.padding == "same" else (n - 1) * s - before - after + d * (k - 1) + extra + 1
    # The adjoint of the convolution from the output's size: where a location would have been read, it is written.
    return [np.arange(out)[:, None] == np.arange(n) * s + t * d - before for t in range(k)]


def tap_matrices(layer, size):
    """S_t of a convolution on a map of that size, for each filter element t, and the size of its output."""
    every = [axis_matrices(layer, a, len(size), n) for a, n in enumerate(size)]
    taps = [functools.reduce(np.kron, matrices).astype(float) for matrices in itertools.product(*every)]
    return taps, tuple(len(matrices[0]) for matrices in every)


def mean_matrix(layer, size):
    """M of an average pool, the product of one matrix for each axis."""
    axes = len(size)
    k, pad = each(layer.size, axes), each(layer.padding, axes)
    stride = k if layer.stride is None else each(layer.stride, axes)
    M, out = np.ones((1, 1)), []
    for a in range(axes):
        out.append((size[a] + 2 * pad[a] - k[a]) // stride[a] + 1)
        starts = np.arange(out[a])[:, None] * stride[a] - pad[a]
        window = (np.arange(size[a]) >= starts) & (np.arange(size[a]) < starts + k[a])
        M = np.kron(M, window / (k[a] if layer.count_include_pad else window.sum(axis=1, keepdims=True)))
    return M, tuple(out)


def formula(layer, K, K1, K2, same):
    """V of section "The mathematics" for one pair of locations; `same` says that both are one."""
    p = math.sqrt(K1) * math.sqrt(K2)
    cosine = 0.0 if p == 0 else 1.0 if same else min(1.0, max(-1.0, K / p))
    theta = math.acos(cosine)
    A = p / (2 * math.pi) * (math.sin(theta) + (math.pi - theta) * cosine)
    m = (K1 + K2) / 2
    match layer:
        case ReLU(gain):
            return gain**2 * A
        case LeakyReLU(a):
            return (1 - a) ** 2 * A + a * K
        case Abs():
            return 4 * A - K
        case Step():
            if p == 0:
                return 0.0
            return 0.5 if same else (math.pi - theta) / (2 * math.pi)
        case Erf():
            return 2 / math.pi * math.asin(2 * K / math.sqrt((1 + 2 * K1) * (1 + 2 * K2)))
        case Sin():
            return (math.exp(K - m) - math.exp(-K - m)) / 2
        case Cos():
            return (math.exp(K - m) + math.exp(-K - m)) / 2
        case Rbf(gamma):
            return math.exp(-gamma * (K1 + K2 - 2 * K))
        case NormalizedExp(gamma):
            return p * math.exp(gamma * (cosine - 1))
        case LayerNorm(_, eps):
            return K / math.sqrt((K1 + eps) * (K2 + eps)) if eps or p else 0.0
        case Sign():
            return 2 / math.pi * math.asin(cosine)
        case SquaredReLU():
            bend = 3 * math.sin(theta) * cosine + (math.pi - theta) * (1 + 2 * cosine**2)
            return K1 * K2 / (2 * math.pi) * bend
        case GELU():
            # Stein's lemma twice on E[uΦ(u) vΦ(v)], with E[ΦΦ] and E[φφ] of the Gaussian with covariance I + Σ.
            B1, B2 = 1 + K1, 1 + K2
            both_cdf = 0.25 + math.asin(K / math.sqrt(B1 * B2)) / (2 * math.pi)
            both_pdf = 1 / (2 * math.pi * math.sqrt(B1 * B2 - K * K))
            return K * both_cdf + both_pdf * (K1 * K2 + K * K * (1 / B1 + 1 / B2 - 1))
    raise AssertionError(layer)


def walk(net, maps, size):
    """The covariances (X, X'), (X, X) and (X', X') of all locations after a network."""
    match net:
        case Conv() | ConvTranspose():
            taps, out = tap_matrices(net, size)
            scale = net.weight_var / (len(taps) if net.fan_in == "patch" else 1)
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
        case LayerNorm("all", eps):
            first, second = (np.trace(V) / len(V) + eps for V in maps[1:])
            scales = first * second, first**2, second**2
            return [V / math.sqrt(s) for V, s in zip(maps, scales, strict=True)], size
        case _:
            xz, xx, zz = maps
            dx, dz = np.diag(xx), np.diag(zz)
            pair = np.vectorize(functools.partial(formula, net), otypes=[float])

            def own(V, variances):
                return pair(V, variances[:, None], variances, np.eye(len(V), dtype=bool))

            return [pair(xz, dx[:, None], dz, False), own(xx, dx), own(zz, dz)], size


def oracle(net, x, z):
    """K(x, z) and K(x, x) for one pair of images (C, …)."""
    a, b = (image.reshape(len(image), -1) for image in (x, z))
    maps = [first.T @ second / len(first) for first, second in ((a, b), (a, a), (b, b))]
    (xz, xx, _), size = walk(net, maps, x.shape[1:])
    assert math.prod(size) == 1
    return float(xz[0, 0]), float(xx[0, 0])
