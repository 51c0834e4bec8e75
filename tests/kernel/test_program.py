"""Lowering proved apart from any engine, and the units that keep deep networks inside the range of float32.

`run` below is a third implementation: it executes a program's ops one after the other in float64, by the contract that
the docstrings of `Op` and `Activation` state. Every buffer starts as NaN and is poisoned again before it is
overwritten, so a value that is read before it is written, or after its buffer was given away, shows.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cnngp import (
    GELU,
    Abs,
    Conv,
    ConvTranspose,
    Cos,
    Dense,
    Elementwise,
    Erf,
    Identity,
    Kernel,
    LeakyReLU,
    NetworkError,
    RangeError,
    Rbf,
    ReLU,
    Sequential,
    Sin,
    Step,
    Sum,
    reference,
    zoo,
)
from cnngp.kernel.check import compare
from cnngp.kernel.program import NOTHING, PIXELS, Program, lower
from cnngp.network import tangent
from helpers.loop_oracle import formula
from helpers.networks import STEP, images, networks_with_shapes, relu_like, smooth
from helpers.pooled import pooled_networks

# ---- an interpreter ------------------------------------------------------------------------------------------------


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
        case GELU():
            return np.vectorize(formula, otypes=[float])(a.layer, true, true1, true2, same)
    raise AssertionError(a.layer)


def slope(a, K, K1, K2, same):
    """f' = ∂f/∂K in units of the buffers, from the true V̇ = (factor/unit) · f'."""
    unit = a.unit / a.formula.argument
    true, true1, true2 = unit * K, unit * K1, unit * K2
    V = tangent.derivative_diagonal(a.layer, true) if same else tangent.derivative(a.layer, true, true1, true2)
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


# ---- lowering ------------------------------------------------------------------------------------------------------


@given(drawn=networks_with_shapes(st.one_of(relu_like, smooth), max_pixels=200), seed=st.integers(0, 10**6))
@settings(max_examples=120)
def test_a_program_computes_the_kernel_of_its_network(drawn, seed):
    net, shape = drawn
    X = images(shape, 4, seed)
    assert error(interpret(net, X), reference.kernel(net, X)) < 1e-12


@given(drawn=pooled_networks(st.one_of(relu_like, smooth), max_elements=1500), seed=st.integers(0, 10**6))
@settings(max_examples=60)
def test_a_program_of_sheets_computes_the_kernel_of_its_network(drawn, seed):
    net, shape = drawn
    X = images(shape, 3, seed)
    assert error(interpret(net, X), reference.kernel(net, X)) < 1e-12


SPECIAL = {
    "no operation at all": Dense(2.0),
    "a change of unit only": Sequential(Conv(1, weight_var=3.0), ReLU(), Dense(0.5)),
    "weights that are all zero": Sequential(Conv(3, weight_var=0.0), ReLU(), Dense()),
    "zero weights with a bias": Sequential(Conv(3, weight_var=0.0, bias_var=2.0), ReLU(), Dense(0.0, 0.5)),
    "a skip that stands last": Sequential(Conv(3), Sum(Sequential(ReLU(), Conv(3)), Identity()), ReLU(), Dense()),
    "a skip of the input": Sequential(Sum(Identity(), Conv(3, bias_var=1.0)), Dense()),
    "only skips with weights": Sequential(Sum(Conv(1), Conv(1, weight_var=2.0), Conv(1, bias_var=3.0)), Dense()),
    "a sum of one": Sequential(Sum(Conv(3)), Sum(Sum(Identity())), ReLU(), Dense()),
    "sums within sums": Sequential(
        Conv(2),
        Sum(
            Sequential(ReLU(), Sum(Conv(3), Sequential(Conv(1), Erf(), Conv(3)))),
            Sum(Sum(Identity(), Conv(5)), Sequential(Abs(), Conv(3), Sum(Identity(), Conv(1)))),
        ),
        ReLU(),
        Dense(),
    ),
    "one nonlinearity with several readers": Sequential(
        Conv(3), ReLU(), Sum(Conv(1), Conv(3), Sequential(Conv(3), ReLU(), Conv(3))), ReLU(), Dense()
    ),
    "sums that are not Gaussian, in a row": Sequential(
        *[Sum(Identity(), Sequential(Conv(3), ReLU()), allow_non_gaussian=True)] * 3, Conv(3), ReLU(), Dense()
    ),
    "branches that are bare nonlinearities": Sequential(
        Conv(3), Sum(ReLU(), Sequential(Conv(3), LeakyReLU(0.3)), allow_non_gaussian=True), Dense()
    ),
    "growing and shrinking maps": Sequential(
        Conv(3, stride=2), ReLU(), ConvTranspose(3, stride=3), Abs(), Conv(4, padding="valid"), Cos(), Conv(2), Sin(),
        Dense(),
    ),
    "very different branches": Sequential(
        Conv(3), Sum(Conv(3, weight_var=1e-12), Conv(3, weight_var=1e12)), ReLU(), Dense(1e-12)
    ),
    "one map read twice by one operation": Sequential(Conv(3), ReLU(), Sum(Conv(1), Conv(3)), ReLU(), Dense()),
    "every nonlinearity": Sequential(
        Conv(3), ReLU(0.5), Conv(3), LeakyReLU(-0.2), Conv(3), Abs(), Conv(3), Erf(), Conv(3), GELU(), Conv(3), Sin(),
        Conv(3), Cos(), Conv(3), Step(), Dense(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECIAL)
def test_lowering_is_right_for(name):
    X = images((2, 5, 6), 4, 7)
    assert error(interpret(SPECIAL[name], X), reference.kernel(SPECIAL[name], X)) < 1e-12


# ---- the tangent kernel --------------------------------------------------------------------------------------------


def assert_both(net, X):
    """K to the last digits; Θ within four times what a unit in the last place of K after every layer moves it by: near
    correlation one the slope of a ReLU is that of a square root, and another square root may follow.
    """
    K, T = interpret(net, X, "ntk")
    assert error(K, reference.kernel(net, X)) < 1e-12
    found = compare(net, X, T, np.dtype("float64"), "ntk")
    if found is None:  # Θ is zero
        assert not T.any()
    else:
        assert found.error <= 4.0 * max(found.bound, 1e-8)  # half an ulp of a correlation of one is 2e-9 at each ReLU


@given(drawn=networks_with_shapes(st.one_of(relu_like, smooth), max_pixels=100), seed=st.integers(0, 10**6))
@settings(max_examples=40)
def test_a_program_computes_the_tangent_kernel_too(drawn, seed):
    assert_both(drawn[0], images(drawn[1], 4, seed))


@given(drawn=pooled_networks(st.one_of(relu_like, smooth), max_elements=600), seed=st.integers(0, 10**6))
@settings(max_examples=30)
def test_a_program_of_sheets_computes_the_tangent_kernel_too(drawn, seed):
    assert_both(drawn[0], images(drawn[1], 3, seed))


@pytest.mark.parametrize("name", [name for name in SPECIAL if name != "every nonlinearity"])
def test_lowering_to_both_kernels_is_right_for(name):
    assert_both(SPECIAL[name], images((2, 5, 6), 4, 7))


@pytest.mark.parametrize("net", [zoo.resnet(8), zoo.residual_cnn(), zoo.convnet()], ids=["resnet", "resid", "convnet"])
def test_the_papers_networks_are_lowered_rightly_to_both_kernels(net):
    assert_both(net, images((1, 9, 8), 3, 0))


def test_a_slope_stands_right_before_its_value_and_no_map_is_copied():
    for net in (zoo.resnet(32), zoo.convnet()):
        program, without = lower(net, (1, 28, 28), "ntk"), lower(net, (1, 28, 28))
        slopes = [i for i, op in enumerate(program.ops) if op.tangent is not None]
        assert len(slopes) == len(program.activations)
        for i in slopes:
            slope, value = program.ops[i], program.ops[i + 1]
            assert (slope.src, slope.activation, slope.sums) == (value.src, value.activation, value.sums)
        # Beside K's operations: one for each slope, one for each box of T without a nonlinearity in it, and Θ = T + K.
        plain = sum(op.activation is None for op in without.ops)
        assert len(program.ops) <= len(without.ops) + len(slopes) + plain + 1
        assert len(program.buffers) <= 2 * len(without.buffers)


def test_a_step_has_no_tangent_kernel_and_says_where_it_stands():
    with pytest.raises(NetworkError, match=r"layers\[1\]: Step\(\) has no tangent kernel: its slope is zero almost"):
        lower(Sequential(Conv(3), Step(), Dense()), (1, 4, 4), "ntk")


@given(drawn=networks_with_shapes(st.just(STEP), max_pixels=100), seed=st.integers(0, 1000))
@settings(max_examples=30)
def test_step_networks_are_lowered_rightly(drawn, seed):
    net, shape = drawn
    X = images(shape, 4, seed)
    # θ near 0 or π has a square-root slope: one half-ulp of the correlation moves Step by 1e-8. Each further Step takes
    # the root again: 1e-4 after two, 1e-2 after three, 1e-1 after four.
    steps = repr(net).count("Step()")
    assume(steps <= 4)  # beyond, the roots of a rounding are of order one
    assert error(interpret(net, X), reference.kernel(net, X)) < (2e-8, 2e-8, 1e-4, 3e-2, 0.2)[steps]


@pytest.mark.parametrize("net", [zoo.resnet(8), zoo.residual_cnn(), zoo.convnet()], ids=["resnet", "resid", "convnet"])
def test_the_papers_networks_are_lowered_rightly(net):
    X = images((1, 9, 8), 3, 0)
    assert error(interpret(net, X), reference.kernel(net, X)) < 1e-12


def test_a_program_does_not_depend_on_how_the_layers_are_nested():
    flat = lower(Sequential(Conv(3), ReLU(), Conv(3), ReLU(), Dense()), (1, 8, 8))
    nested = lower(Sequential(Sequential(Conv(3), Identity(), ReLU()), Sequential(Conv(3), ReLU()), Dense()), (1, 8, 8))
    assert [(op.shape, op.sums, op.scale) for op in flat.ops] == [(op.shape, op.sums, op.scale) for op in nested.ops]


def test_nonlinearities_and_constants_fold_into_the_next_operation():
    program = lower(zoo.resnet(32), (1, 28, 28))
    assert len(program.activations) == 31  # 30 in the blocks and one between the dense layers
    # Left on their own: the ReLU that both branches of a projection read, thrice, and the one on a single location.
    assert sum(op.sums is None for op in program.ops) == 4
    convnet = lower(zoo.convnet(), (1, 28, 28))
    assert len(convnet.ops) == 8
    assert all(math.frexp(op.scale)[0] == 0.5 for op in convnet.ops)  # nothing but powers of two is left


def test_a_residual_network_needs_few_maps_at_a_time():
    assert len(lower(zoo.resnet(110), (1, 28, 28)).buffers) <= 4
    assert len(lower(zoo.convnet(), (1, 28, 28)).buffers) == 2


@given(drawn=networks_with_shapes())
@settings(max_examples=40)
def test_an_image_keeps_one_variance_for_each_element_of_each_nonlinearity(drawn):
    program = lower(*drawn)
    offset = 0
    for i, a in enumerate(sorted(program.activations, key=lambda a: a.site)):
        assert (a.site, a.offset) == (i, offset)
        offset += a.size
    assert program.elements == offset


# ---- units ---------------------------------------------------------------------------------------------------------


def search_space_network(depth, last=8.5):
    """The widest of the paper's search space: 6 × 6 filters, weight_var 8.5, the variance growing 306-fold a layer."""
    conv = Conv(6, weight_var=8.5, bias_var=7.0, fan_in="channels")
    return Sequential(*[layer for _ in range(depth) for layer in (conv, ReLU(math.sqrt(2.0)))], Dense(last))


def pixels(n=6, size=16, seed=0):
    X = np.random.default_rng(seed).random((n, 1, size, size))
    X[0, :, :8] = 0.0
    return X.astype(np.float32).astype(np.float64)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fifteen_layers_of_the_papers_search_space_reach_1e37_and_agree(dtype):
    net, X = search_space_network(15), pixels()
    R = reference.kernel(net, X)
    assert 1e36 < R.max() < 3e38
    K = Kernel(net, device="cpu", dtype=dtype)(X)
    assert error(K.astype(np.float64), R) < (1e-6 if dtype == "float32" else 1e-12)


def test_what_does_not_fit_float32_at_the_end_is_refused_and_float64_is_offered():
    net, X = search_space_network(17), pixels()
    for call in (lambda k: k(X), lambda k: k(X, X[:2]), lambda k: k.diag(X), lambda k: k(X[:1] * 1e-30, X)):
        with pytest.raises(RangeError, match=r"which does not fit float32; use dtype='float64', or rescale the images"):
            call(Kernel(net, device="cpu"))
    R = reference.kernel(net, X)
    assert R.max() > 3.4e38
    assert error(Kernel(net, device="cpu", dtype="float64")(X), R) < 1e-12


@pytest.mark.parametrize("last", [1e-30, 1e-40])
def test_what_is_large_only_inside_is_carried_in_float32(last):
    net, X = search_space_network(25, last=last), pixels()
    R = reference.kernel(net, X)
    assert R.max() / last > 1e58
    assert error(Kernel(net, device="cpu")(X).astype(np.float64), R) < 1e-6


def test_what_is_tiny_only_inside_is_carried_in_float32():
    layers = [Conv(3, weight_var=1e-4), ReLU()] * 15
    net, X = Sequential(*layers, Dense(1e60)), pixels()
    R = reference.kernel(net, X)
    assert R.max() < 1e-1
    assert error(Kernel(net, device="cpu")(X).astype(np.float64), R) < 1e-6


@given(
    factors=st.lists(st.integers(-12, 12), min_size=4, max_size=12),
    skip=st.booleans(),
    bias=st.sampled_from([0.0, 1e-8, 1e8]),
)
@settings(max_examples=40)
def test_any_course_of_powers_keeps_float32_exact(factors, skip, bias):
    """Weight variances of 10^−12 … 10^12 in any order; a last layer brings the result back to order one."""
    layers = []
    for f in factors:
        conv = Conv(3, weight_var=10.0**f, bias_var=bias)
        if not skip:
            layers += [conv, ReLU()]
        else:
            layers.append(Sum(Identity(), Sequential(ReLU(), conv)) if layers else conv)
    X = pixels(4, 6)
    net = Sequential(*layers, Dense())
    size = reference.kernel(net, X).max()
    net = Sequential(*layers, Dense(1.0 / size))
    R = reference.kernel(net, X)
    assert error(Kernel(net, device="cpu")(X).astype(np.float64), R) < 1e-6


def test_rescaling_by_powers_of_two_changes_no_bit():
    """The same network with weight variances split differently by powers of two: 2^20 · 2^−20 = 1."""
    X = pixels()
    plain = Sequential(Conv(3), ReLU(), Conv(3), ReLU(), Dense())
    shifted = Sequential(Conv(3, weight_var=2.0**40), ReLU(), Conv(3, weight_var=2.0**-40), ReLU(), Dense())
    for dtype in ("float32", "float64"):
        K, S = (Kernel(net, device="cpu", dtype=dtype)(X) for net in (plain, shifted))
        assert np.array_equal(K, S)


@pytest.mark.parametrize(("weight_var", "pixel"), [(1.3, 1e-7), (1e-3, 1e12), (1e-3, 1e7)])
def test_a_unit_beyond_float32_is_no_hindrance_where_the_value_fits(weight_var, pixel):
    conv = Conv(6, weight_var=weight_var, fan_in="channels")
    net = Sequential(*[layer for _ in range(30) for layer in (conv, ReLU(math.sqrt(2.0)))], Dense())
    X = (pixels(4, 12) * pixel).astype(np.float32).astype(np.float64)
    R = reference.kernel(net, X)
    assert error(Kernel(net, device="cpu")(X).astype(np.float64), R) < 1e-6


@pytest.mark.parametrize(
    "layers",
    [
        [Conv(3, weight_var=1e200), ReLU(), Conv(3, weight_var=1e200), ReLU()],
        [Conv(3, weight_var=1e-200), ReLU(), Conv(3, weight_var=1e-200), ReLU(), Conv(3, weight_var=1e300), ReLU()],
        [Conv(1, weight_var=1e-200), ReLU(), Conv(1, weight_var=1e-200), ReLU(), Conv(1, weight_var=1e300), ReLU()],
        [Conv(3), ReLU(1e200)],
        [Conv(3), LeakyReLU(1e154), Conv(3), LeakyReLU(1e10)],
        [Conv(3, weight_var=1e8), ReLU()] * 60,
    ],
    ids=lambda layers: repr(layers[:6]),
)
def test_variances_beyond_float64_are_refused(layers):
    with pytest.raises((NetworkError, RangeError), match=r"beyond float64|does not fit|cannot carry"):
        Kernel(Sequential(*layers, Dense()), device="cpu", dtype="float64")(pixels())


# ---- scales of the images ------------------------------------------------------------------------------------------

NETS = {
    "resnet": zoo.resnet(8),
    "with bias": Sequential(Conv(3, bias_var=0.5), ReLU(), Conv(3, stride=2), LeakyReLU(0.1), Dense(1.0, 0.1)),
    "smooth": Sequential(Conv(3), Erf(), Conv(3, bias_var=0.1), GELU(), Dense()),
}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [1e-9, 1e-6, 1e-3, 255.0, 65535.0])
def test_images_of_any_usual_scale_agree_with_the_reference(name, dtype, scale):
    X = (pixels(5, 8) * scale).astype(np.float32).astype(np.float64)
    R = reference.kernel(NETS[name], X)
    K = Kernel(NETS[name], device="cpu", dtype=dtype)(X)
    # Erf at variance v: a half-ulp of K moves it by √v half-ulps.
    loose = 30.0 if name == "smooth" and scale > 1.0 else 1.0
    assert error(K.astype(np.float64), R) < loose * (1e-6 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_images_of_different_scales_go_together(dtype):
    X = pixels(6, 8)
    X *= np.array([1.0, 1e-9, 255.0, 1e-5, 0.0, 1.0])[:, None, None, None]
    X = X.astype(np.float32).astype(np.float64)
    R = reference.kernel(zoo.resnet(8), X)
    K = Kernel(zoo.resnet(8), device="cpu", dtype=dtype)(X).astype(np.float64)
    d = np.sqrt(R.diagonal())
    scale = np.outer(d, d)
    assert (np.abs(K - R) <= (2e-6 if dtype == "float32" else 2e-12) * scale).all()  # each entry on its own scale
    assert not K[4].any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_pixels_whose_squares_leave_the_working_precision_are_refused_or_right(dtype, scale):
    X = (pixels(3, 8) * scale).astype(np.float32).astype(np.float64)
    kernel = Kernel(zoo.resnet(8), device="cpu", dtype=dtype)
    if dtype == "float64":
        assert error(kernel(X), reference.kernel(zoo.resnet(8), X)) < 1e-12
        return
    with pytest.raises(RangeError, match=r"float32( cannot carry)?; use dtype='float64'"):
        kernel(X)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "phi",
    [
        *(ReLU(), LeakyReLU(0.2), Abs(), Erf(), Sin(), GELU(), Elementwise("tanh"), Step(), Cos(), Rbf(2.0)),
        Elementwise("sigmoid"),
    ],
    ids=repr,
)
def test_blank_images_give_the_limit_and_never_nan(dtype, phi):
    """φ(0) = 0 gives 0, also for Step; cos(0) = 1, also of an Rbf, sigmoid(0) = ½."""
    net = Sequential(Conv(3), phi, Dense())
    X = np.zeros((5, 1, 6, 6))
    X[4] = pixels(1, 6)[0]
    kernel = Kernel(net, device="cpu", dtype=dtype)
    K = kernel(X)
    assert np.isfinite(K).all()
    constant = {Cos(): 1.0, Rbf(2.0): 1.0, Elementwise("sigmoid"): 0.25}.get(phi, 0.0)
    np.testing.assert_allclose(K[:4, :4], np.full((4, 4), constant), rtol=1e-6, atol=0.0)
    np.testing.assert_allclose(K, reference.kernel(net, X), rtol=2e-6, atol=1e-12)
    with_bias = Sequential(Conv(3), ReLU(), Dense(1.0, 0.25))
    assert (Kernel(with_bias, device="cpu", dtype=dtype)(X)[:4] == 0.25).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_partly_blank_images_agree_with_the_reference(dtype):
    X = np.zeros((9, 1, 9, 9))
    for i in range(9):
        X[i, 0, i, : i + 1] = 1.0  # a stroke each, on rows of its own
    R = reference.kernel(zoo.resnet(8), X)
    assert error(Kernel(zoo.resnet(8), device="cpu", dtype=dtype)(X).astype(np.float64), R) < (
        1e-6 if dtype == "float32" else 1e-12
    )
