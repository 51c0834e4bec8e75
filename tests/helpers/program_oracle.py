"""A program's operations one after the other in float64, by the contract that the docstrings of `Op` and `Activation`
state: lowering is proved with it, apart from any engine.

Every buffer starts as NaN and is poisoned again before it is overwritten, so a value that is read before it is written,
or after its buffer was given away, shows.
"""

from __future__ import annotations

import math

import numpy as np

from cnngp import (
    GELU,
    Abs,
    Cos,
    Erf,
    LayerNorm,
    LeakyReLU,
    NormalizedExp,
    Rbf,
    ReLU,
    Sign,
    Sin,
    SquaredReLU,
    Step,
)
from cnngp.kernel.program import NOTHING, PIXELS, Program, lower
from cnngp.network.reference import formulas as derivatives
from helpers.loop_oracle import formula


def activation(a, K, K1, K2, same):
    """f of the `Activation` docstring: K in units of the buffer, f(K) in units of `factor`."""
    true, true1, true2 = a.unit * K, a.unit * K1, a.unit * K2
    p = np.sqrt(K1) * np.sqrt(K2)
    cosine = np.ones_like(K) if same else np.clip(np.divide(K, p, out=np.zeros_like(K), where=p > 0), -1.0, 1.0)
    theta = np.arccos(cosine)
    m = (true1 + true2) / 2
    match a.layer:
        case ReLU() | LeakyReLU() | Abs():
            alpha, beta = a.coefficients
            R = p / np.pi * (np.sqrt((1 - cosine) * (1 + cosine)) + (np.pi - theta) * cosine)
            return alpha * R + beta * K
        case Erf():
            return np.arcsin(2 * true / np.sqrt((1 + 2 * true1) * (1 + 2 * true2)))
        case Step():
            return np.where(p > 0, np.pi if same else np.pi - theta, 0.0)
        case Sin():
            return (np.exp(true - m) - np.exp(-true - m)) / 2
        case Cos():
            return (np.exp(true - m) + np.exp(-true - m)) / 2
        case Rbf():
            return np.exp(true - m)
        case GELU() | NormalizedExp() | LayerNorm() | Sign() | SquaredReLU():
            return np.vectorize(formula, otypes=[float])(a.layer, true, true1, true2, same) / a.factor
    raise AssertionError(a.layer)


def slope(a, K, K1, K2, same):
    """f' = ∂f/∂K in units of the buffers, from the true V̇ = (factor/unit) · f'."""
    unit = a.unit / a.formula.argument
    true, true1, true2 = unit * K, unit * K1, unit * K2
    V = derivatives.derivative_diagonal(a.layer, true) if same else derivatives.derivative(a.layer, true, true1, true2)
    return V * (unit / a.factor)


def box(sums, V):
    """The sums along each of the three axes, one after the other."""
    for axis, s in enumerate(sums):
        V = np.moveaxis(V, axis, 0)
        assert len(V) == s.size
        V = np.array([sum((V[nu] for nu in row), np.zeros(V.shape[1:])) for row in s.sources])
        V = np.moveaxis(V, 0, axis)
    return V


def run(program: Program, x, z, tables=None):
    """K(x, z), Θ(x, z) and the variances met on the way; `tables` are the two images', None for one with itself."""
    same = tables is None
    table = np.full(program.elements, np.nan)
    buffers = [np.full(size, np.nan) for size in program.buffers]
    if program.input is not None:
        start = np.einsum("cl,cl->l", x, z)
        buffers[program.input][: len(start)] = start
    for op in program.ops:
        n, out = math.prod(op.shape), math.prod(op.out_shape)
        assert out <= len(buffers[op.dst])
        first, second = (
            tuple(slice(a, a + k) for a, k in zip(o, op.shape, strict=True)) for o in (op.first, op.second)
        )
        if op.src == PIXELS:
            u, v = (image.reshape(-1, *program.shape) for image in (x, z))
            V = (u[(slice(None), *first)] * v[(slice(None), *second)]).sum(axis=0)
        elif op.src == NOTHING:
            V = np.zeros(op.shape)
        else:
            assert max(n, 1) <= len(buffers[op.src])
            V = buffers[op.src][:n].reshape(op.shape)
        if a := op.activation:
            at = slice(a.offset, a.offset + a.size)
            if same and op.is_still:
                assert a.shape == op.shape
                table[at] = V.ravel()
            both = (table, table) if same else tables
            K1, K2 = (t[at].reshape(a.shape)[part] for t, part in zip(both, (first, second), strict=True))
            if op.tangent is None:
                V = activation(a, V, K1, K2, same and op.is_still)
            else:
                times = 0.0 if op.tangent.times == NOTHING else buffers[op.tangent.times][:n].reshape(op.shape)
                V = slope(a, V, K1, K2, same and op.is_still) * (times + op.tangent.own * V)
        if op.sums is None:
            assert op.out_shape == op.shape
        else:
            assert op.dst != op.src
            assert op.tangent is None or op.dst != op.tangent.times
            assert tuple(s.size for s in op.sums) == op.shape
            assert tuple(s.out_size for s in op.sums) == op.out_shape
            V = box(op.sums, V)
        result = op.scale * V.ravel() + op.bias
        if op.keep:
            result = result + op.keep * buffers[op.dst][:out]
        buffers[op.dst][:] = np.nan
        buffers[op.dst][:out] = result
    theta = np.nan if program.theta is None else program.theta_unit * buffers[program.theta][0]
    return program.unit * buffers[program.output][0], theta, table


def interpret(net, X, kind="nngp"):
    """The kernel matrix; of kind "ntk" both, K and Θ."""
    program = lower(net, X.shape[1:], kind)
    flat = X.reshape(*X.shape[:2], -1)
    own = [run(program, x, x) for x in flat]
    for *_, table in own:
        assert not np.isnan(table).any()  # every element of the table belongs to a nonlinearity
    both = np.empty((2, len(X), len(X)))
    for i, x in enumerate(flat):
        for j, z in enumerate(flat):
            both[:, i, j] = own[i][:2] if i == j else run(program, x, z, (own[i][2], own[j][2]))[:2]
    return both[0] if kind == "nngp" else both


def error(K, R):
    assert np.isfinite(K).all()
    return np.abs(K - R).max() / np.abs(R).max() if np.abs(R).max() > 0 else np.abs(K).max()
