"""The kernel of one pair of images by explicit loops over locations and patch offsets, from the equations.

It shares nothing with the package but the description of the layers: what the reference is tested against. A map is a
dictionary from location to number.
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np

from cnngp import (
    GELU,
    Abs,
    Conv,
    ConvTranspose,
    Cos,
    Dense,
    Erf,
    Identity,
    LayerNorm,
    LeakyReLU,
    NormalizedExp,
    Rbf,
    ReLU,
    Sequential,
    Sign,
    Sin,
    SquaredReLU,
    Step,
    Sum,
)


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


def copied_location(nu, n, mode):
    """Which location of an axis of n the padded location nu copies; None for zero padding."""
    if 0 <= nu < n:
        return nu
    match mode:
        case "zeros":
            return None
        case "replicate":
            return 0 if nu < 0 else n - 1
        case "circular":
            return nu + n if nu < 0 else nu - n
        case "reflect":
            return -nu if nu < 0 else 2 * n - 2 - nu


@functools.cache
def patches(layer, size):
    """For each output location μ of a Conv the input locations it sums over; one may occur twice."""
    return {mu: list(patch(layer, mu, size)) for mu in locations(conv_size(layer, size))}


def patch(layer, mu, size):
    axes = len(size)
    before = [b for b, _ in pads(layer, axes)]
    stride, dilation = each(layer.stride, axes), each(layer.dilation, axes)
    for tap in itertools.product(*(range(k) for k in each(layer.kernel_size, axes))):
        nu = tuple(
            copied_location(mu[a] * stride[a] + tap[a] * dilation[a] - before[a], size[a], layer.padding_mode)
            for a in range(axes)
        )
        if None not in nu:
            yield nu


def conv_size(layer, size):
    axes = len(size)
    k, s, d = (each(v, axes) for v in (layer.kernel_size, layer.stride, layer.dilation))
    return tuple((size[a] + sum(pads(layer, axes)[a]) - d[a] * (k[a] - 1) - 1) // s[a] + 1 for a in range(axes))


def locations(size):
    return itertools.product(*map(range, size))


def fan_in_scale(layer, axes):
    return 1.0 / math.prod(each(layer.kernel_size, axes)) if layer.fan_in == "patch" else 1.0


def conv_loop(layer, V, size):
    """K_μ = bias_var + weight_var · s · Σ_{ν ∈ patch(μ)} V_ν."""
    scale = layer.weight_var * fan_in_scale(layer, len(size))
    out = conv_size(layer, size)
    return {mu: layer.bias_var + scale * sum(V[nu] for nu in nus) for mu, nus in patches(layer, size).items()}, out


@functools.cache
def conv_matrix(layer, size):
    """The patch sums as a matrix (outputs, inputs), a column for each basis map."""
    plain = Conv(
        layer.kernel_size, layer.stride, layer.padding, layer.dilation, 1.0, 0.0, "channels", layer.padding_mode
    )
    columns = []
    for bright in locations(size):
        K, _ = conv_loop(plain, {nu: float(nu == bright) for nu in locations(size)}, size)
        columns.append(list(K.values()))
    return np.array(columns).T


def transposed_size(layer, size):
    axes = len(size)
    k, s, d, extra = (each(v, axes) for v in (layer.kernel_size, layer.stride, layer.dilation, layer.output_padding))
    if layer.padding == "same":
        return tuple(n * s[a] for a, n in enumerate(size))
    border = [sum(pair) for pair in pads(layer, axes)]
    return tuple((size[a] - 1) * s[a] - border[a] + d[a] * (k[a] - 1) + extra[a] + 1 for a in range(axes))


def transposed_loop(layer, V, size):
    """The adjoint: the transposed matrix of the Conv with the same arguments, from the outputs that exist."""
    out = transposed_size(layer, size)
    M = conv_matrix(layer, out)
    of_all = list(locations(conv_size(layer, out)))  # output_padding beyond the stride may leave room for more
    M = M[[i for i, m in enumerate(of_all) if m in V]]
    K = M.T @ np.array([V[m] for m in locations(size)])
    scale = layer.weight_var * fan_in_scale(layer, len(size))
    return {mu: layer.bias_var + scale * float(k) for mu, k in zip(locations(out), K, strict=True)}, out


def formula(layer, K, K1, K2, same):
    """V of section "The mathematics" for one location; `same` says that both images are one."""
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
    """The three maps (X, X'), (X, X) and (X', X') after a network."""
    match net:
        case Conv():
            results = [conv_loop(net, V, size) for V in maps]
        case ConvTranspose():
            results = [transposed_loop(net, V, size) for V in maps]
        case Dense():
            results = [({(): net.bias_var + net.weight_var * sum(V.values()) / len(V)}, ()) for V in maps]
        case Identity():
            return maps, size
        case Sequential():
            for layer in net.layers:
                maps, size = walk(layer, maps, size)
            return maps, size
        case Sum():
            branches = [walk(branch, maps, size) for branch in net.branches]
            size = branches[0][1]
            return [{nu: sum(b[0][i][nu] for b in branches) for nu in locations(size)} for i in range(3)], size
        case LayerNorm("all", eps):
            first, second = (sum(V.values()) / len(V) + eps for V in maps[1:])
            scales = [first * second, first**2, second**2]
            return [{nu: v / math.sqrt(s) for nu, v in V.items()} for V, s in zip(maps, scales, strict=True)], size
        case _:
            xz, xx, zz = maps
            return [
                {nu: formula(net, xz[nu], xx[nu], zz[nu], False) for nu in xz},
                {nu: formula(net, xx[nu], xx[nu], xx[nu], True) for nu in xx},
                {nu: formula(net, zz[nu], zz[nu], zz[nu], True) for nu in zz},
            ], size
    return [K for K, _ in results], results[0][1]


def oracle(net, x, z):
    """K(x, z), K(x, x) for one pair of images (C, …)."""
    size = x.shape[1:]
    maps = [
        {nu: sum(float(a[(c, *nu)]) * float(b[(c, *nu)]) for c in range(len(x))) / len(x) for nu in locations(size)}
        for a, b in ((x, z), (x, x), (z, z))
    ]
    (xz, xx, _), size = walk(net, maps, size)
    assert math.prod(size) == 1
    return next(iter(xz.values())), next(iter(xx.values()))


def as_map(V):
    return {nu: float(V[nu]) for nu in locations(V.shape)}
