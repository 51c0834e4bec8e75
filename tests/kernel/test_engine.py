"""Every engine against the float64 reference: generated networks, and networks with something special about them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnngp import (
    GELU,
    Abs,
    AvgPool,
    Conv,
    Cos,
    Dense,
    Elementwise,
    Erf,
    GlobalAvgPool,
    Identity,
    Kernel,
    LayerNorm,
    LeakyReLU,
    NetworkError,
    Rbf,
    ReLU,
    Sequential,
    Sign,
    Sin,
    Step,
    Sum,
    zoo,
)
from cnngp.kernel.check import compare
from cnngp.kernel.making import make_engine, make_gradient
from cnngp.kernel.program import PIXELS, lower
from cnngp.network import Network, reference
from helpers.differences import by_differences
from helpers.examples import examples
from helpers.kernels import DTYPES, SMALL, each_device, error, random_images
from helpers.networks import images, networks_with_shapes, relu_like, smooth
from helpers.pooled import pooled_networks

TOLERANCE = {"float32": 1e-6, "float64": 1e-12}
# Erf, Sin, Cos, Rbf and GELU are not homogeneous: a half-ulp of a covariance K moves the exponent of Sin and Cos by
# K/2^24, that of Rbf by 2γK/2^24, and 1 − x² of Erf and GELU likewise, so the bound is the ReLU's times the largest
# variance they see (below 30 here).
SMOOTH_TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
each_dtype = pytest.mark.parametrize("dtype", DTYPES)
C, R, D = Conv(3, weight_var=2.0, bias_var=0.1), ReLU(), Dense()


def check(net, shape, dtype, tolerance, *, device="cpu", seed=0, n=5):
    X, Z = images(shape, n, seed), images(shape, 19, seed + 1)
    kernel = Kernel(net, device=device, dtype=dtype, check=False)
    assert error(kernel(X, Z), reference.kernel(net, X, Z)) <= tolerance
    K = kernel(X)
    assert error(K, reference.kernel(net, X)) <= tolerance
    assert (K == K.T).all()
    assert (kernel.diag(X) == K.diagonal()).all()


@each_dtype
@given(drawn=st.one_of(networks_with_shapes(relu_like), pooled_networks(relu_like)), seed=st.integers(0, 10**6))
@examples(400)
def test_relu_like_networks(dtype, drawn, seed):
    check(*drawn, dtype, TOLERANCE[dtype], seed=seed)


@each_dtype
@given(
    drawn=st.one_of(networks_with_shapes(smooth), pooled_networks(smooth, max_elements=2000)),
    seed=st.integers(0, 10**6),
)
@examples(260)
def test_smooth_networks(dtype, drawn, seed):
    check(*drawn, dtype, SMOOTH_TOLERANCE[dtype], seed=seed)


# Every height and width that has a compiled function of its own, and one beyond them.
@pytest.mark.parametrize("window", [(2, 2), (3, 5), (4, 4), (5, 9), (6, 3), (7, 7), (8, 6), (9, 8), (11, 11)], ids=str)
@pytest.mark.parametrize("padding", ["same", "valid", (1, 3)], ids=str)
def test_windows_of_every_size(window, padding):
    """Behind a ReLU, behind another nonlinearity, behind none; written, added to a skip; odd and even sizes."""
    tail = [R, Conv(window, bias_var=0.1), Erf(), Conv(window, padding=padding, weight_var=1.5), R, D]
    block = Sum(Identity(), Sequential(R, Conv(window, bias_var=0.2)))
    for shape in ((1, 25, 26), (2, 24, 23)):
        check(Sequential(Conv(window, padding=padding), block, *tail), shape, "float32", TOLERANCE["float32"], seed=3)


# Step has a square-root slope at correlation one: a rounding of 2^-24 moves θ by √(2·2^-24) = 3.5e-4 and V by 5.5e-5 of
# ½. A second Step takes the root of that again: √(2·1.1e-4)/2π = 2.4e-3. In float64 2^-53 gives 2.4e-9 and 1.5e-5. Sign
# moves by (2/π)θ of 1, twice as much, and the second time √2 · 4 times Step's V. Under a pool every two blank places
# have correlation one, in the engine and in the reference, and their difference may be the sum.
def steps(act: Network, count: int) -> Network:
    return Sequential(*[Conv(3, bias_var=0.1), act] * count, D)


@pytest.mark.parametrize(
    ("net", "single", "double"),
    [
        (steps(Step(), 1), 1.2e-4, 5e-9),
        (steps(Step(), 2), 5e-3, 3e-5),
        (steps(Sign(), 1), 2.4e-4, 1e-8),
        (steps(Sign(), 2), 1.4e-2, 9e-5),
        (Sequential(Conv(3, bias_var=0.1), Step(), AvgPool(2), D), 2.4e-4, 1e-8),
    ],
    ids=repr,
)
@given(seed=st.integers(0, 10**6))
@examples(30)
def test_step_networks(net, single, double, seed):
    check(net, (2, 5, 4), "float32", single, seed=seed)
    check(net, (2, 5, 4), "float64", double, seed=seed)


def residual_of(act: Network) -> Network:
    block = Sum(Identity(), Sequential(act, Conv(3)))
    return Sequential(Conv(3, weight_var=2.0), act, Conv(2, stride=2, bias_var=0.1), block, act, D)


SERIES = [residual_of(Elementwise(name)) for name in ("tanh", "silu", "softplus", "sigmoid", "gelu_tanh")]
SERIES += [Sequential(C, Elementwise("tanh"), AvgPool(2), Conv(2), Elementwise("tanh"), GlobalAvgPool(), D)]


@each_dtype
@pytest.mark.parametrize("net", SERIES, ids=repr)
def test_elementwise_networks(dtype, net):
    check(net, (1, 5, 4), dtype, TOLERANCE[dtype])


ALL, NORM = LayerNorm("all"), LayerNorm("all", eps=0.1)
B, L = Conv(3, bias_var=0.1), Dense(bias_var=0.2)
SPECIAL: dict[str, tuple[Network, tuple[int, ...]]] = {
    "no operation at all": (Dense(2.0), (2, 5, 6)),
    "a change of unit only": (Sequential(Conv(1, weight_var=3.0), R, Dense(0.5)), (2, 5, 6)),
    "weights that are all zero": (Sequential(Conv(3, weight_var=0.0), R, D), (2, 5, 6)),
    "zero weights with a bias": (Sequential(Conv(3, weight_var=0.0, bias_var=2.0), R, Dense(0.0, 0.5)), (2, 5, 6)),
    "a skip that stands last": (Sequential(Conv(3), Sum(Sequential(R, Conv(3)), Identity()), R, D), (2, 5, 6)),
    "a skip of the input": (Sequential(Sum(Identity(), Conv(3, bias_var=1.0)), D), (2, 5, 6)),
    "only skips with weights": (Sequential(Sum(Conv(1), Conv(1, weight_var=2.0), Conv(1, bias_var=3.0)), D), (2, 5, 6)),
    "a sum of one": (Sequential(Sum(Conv(3)), Sum(Sum(Identity())), R, D), (2, 5, 6)),
    "branches that are bare nonlinearities": (
        Sequential(Conv(3), Sum(R, Sequential(Conv(3), LeakyReLU(0.3)), allow_non_gaussian=True), D),
        (2, 5, 6),
    ),
    "very different branches": (
        Sequential(Conv(3), Sum(Conv(3, weight_var=1e-12), Conv(3, weight_var=1e12)), R, Dense(1e-12)),
        (2, 5, 6),
    ),
    "one map read twice by one operation": (Sequential(Conv(3), R, Sum(Conv(1), Conv(3)), R, D), (2, 5, 6)),
    "pools over some axes": (Sequential(C, R, AvgPool((1, 4, 3)), C, R, GlobalAvgPool(), D), (2, 3, 4, 3)),
    "pools over planes": (Sequential(C, R, AvgPool((3, 1, 3)), C, R, GlobalAvgPool(), D), (2, 3, 4, 3)),
    "a norm before a ReLU": (Sequential(B, NORM, R, L), (2, 5, 4)),
    "a norm before a sum of boxes": (Sequential(B, NORM, Conv((2, 3), stride=2, bias_var=0.2), L), (1, 6, 5)),
    "a norm in a branch": (Sequential(B, Sum(B, Sequential(ALL, B)), R, L), (1, 4, 4)),
    "norms under a pool": (Sequential(B, NORM, R, AvgPool(2), B, ALL, R, L), (2, 4, 6)),
    "norms of volumes": (Sequential(B, NORM, R, Conv(2, padding="valid", bias_var=0.1), NORM, L), (1, 3, 4, 3)),
    "a norm of features": (Sequential(L, NORM, R, L), (7,)),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECIAL)
def test_special_networks(name):
    """K to the last digits; Θ within four times what a unit in the last place of K after every layer moves it by: near
    correlation one the slope of a ReLU is that of a square root, and another square root may follow.
    """
    net, shape = SPECIAL[name]
    for dtype in DTYPES if "norm" in name or "pool" in name else ("float64",):
        check(net, shape, dtype, TOLERANCE[dtype], seed=7)
    X = images(shape, 4, 7)
    T = Kernel(net, device="cpu", dtype="float64", check=False).both(X)[1]
    found = compare(net, X, T, np.dtype("float64"), "ntk")
    if found is None:  # Θ is zero
        assert not T.any()
    else:
        assert found.error <= 4.0 * max(found.bound, 1e-8)  # half an ulp of a correlation of one is 2e-9 a ReLU


NORMS = [name for name in SPECIAL if "norm" in name]


@pytest.mark.parametrize("name", NORMS)
def test_gradients_of_norms_over_all_locations(name: str) -> None:
    net, shape = SPECIAL[name]
    rng, kernel = np.random.default_rng(0), Kernel(net, device="cpu", dtype="float64", check=False)
    X, Z = random_images(3, shape).astype(np.float64), random_images(2, shape, seed=1).astype(np.float64)
    for other, G in ((None, rng.normal(size=(3, 3))), (Z, rng.normal(size=(3, 2)))):
        expected = by_differences(net, X, other, G)
        assert kernel.gradient(X, other, G) == pytest.approx(expected, rel=1e-6, abs=1e-7)
        found = kernel.gradient(X, other, G, wrt="images")
        for _ in range(4):
            step = np.zeros_like(X)
            step[tuple(rng.integers(n) for n in X.shape)] = 1e-5
            up, down = ((G * reference.kernel(net, X + moved, other)).sum() for moved in (step, -step))
            of_x = found if other is None else found[0]
            assert of_x[step > 0] == pytest.approx((up - down) / 2e-5, rel=1e-5, abs=1e-7)


def test_cards_refuse_norms_over_all_locations_by_their_place() -> None:
    for make in (lambda: make_engine(*SPECIAL["norms under a pool"], "nngp", "cuda", "float32"),
                 lambda: make_gradient(*SPECIAL["norms under a pool"], False, "cuda", "float32")):  # fmt: skip
        with pytest.raises(NetworkError, match=r"layers\[1\]: LayerNorm\(over='all', eps=0.1\) runs on the CPU alone"):
            make()


FEATURES = zoo.dense_nngp(2)
SHAPES = {
    "photographs": (Sequential(Conv(7, stride=4, weight_var=2.0), R, Conv(3, stride=2), R, D), (3, 224, 224)),
    "whole photographs": (Sequential(Conv(3), R, D), (3, 224, 224)),
    "volumes": (Sequential(Conv((3, 3, 2)), R, Conv(3, (2, 1, 2), padding_mode="circular"), R, D), (2, 6, 7, 8)),
    "signals": (Sequential(Conv(9, stride=3), R, Conv(16, dilation=2, padding="valid"), R, D), (1, 400)),
    "thousands of features": (zoo.dense_nngp(3), (3072,)),
    "features": (FEATURES, (20,)),
    "features as one location": (FEATURES, (20, 1, 1)),
    "features as an image": (FEATURES, (1, 4, 5)),
}


@each_device
@each_dtype
@pytest.mark.parametrize("name", SHAPES)
def test_images_of_every_kind(device, dtype, name):
    net, shape = SHAPES[name]
    X = random_images(4, shape)
    assert error(Kernel(net, device=device, dtype=dtype)(X), reference.kernel(net, X)) < TOLERANCE[dtype]


@each_device
@each_dtype
@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 16, 17, 33, 65])
def test_any_number_of_images(device, dtype, n):
    X = random_images(n)
    kernel = Kernel(SMALL, device=device, dtype=dtype)
    assert error(kernel(X), reference.kernel(SMALL, X)) < TOLERANCE[dtype]
    for m in (1, 8, 18):
        assert error(kernel(X, X[:m]), reference.kernel(SMALL, X, X[:m])) < TOLERANCE[dtype]


@each_device
@each_dtype
@pytest.mark.parametrize("name", ["resnet", "convnet", "residual_cnn"])
def test_the_papers_networks_on_mnist(device, dtype, name, mnist_images):
    net = getattr(zoo, name)()
    X, Z = mnist_images[:5], mnist_images[5:16]
    kernel = Kernel(net, device=device, dtype=dtype)
    # The images are k/255 and are rounded to float32 first: the reference sees what the engine sees.
    x, z = (a.astype(dtype).astype(np.float64) for a in (X, Z))
    assert error(kernel(X), reference.kernel(net, x)) < TOLERANCE[dtype]
    assert error(kernel(X, Z), reference.kernel(net, x, z)) < TOLERANCE[dtype]


# ---- images that are hard on rounding ------------------------------------------------------------------------------


@each_device
@each_dtype
def test_duplicate_images_correlate_fully(device, dtype):
    X = random_images(5)
    K = Kernel(SMALL, device=device, dtype=dtype)(np.concatenate([X, X]))
    assert np.array_equal(K[:5, :5], K[5:, 5:])
    # The pair formula at correlation one, against the exact variance recursion.
    np.testing.assert_allclose(np.diagonal(K[:5, 5:]), np.diagonal(K[:5, :5]), rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("act", [Sin(), Cos(), Rbf(0.5)], ids=repr)
def test_no_covariance_is_larger_than_the_variances(act):
    """Of variances near 10^5 float32 keeps 2⁻⁸, so K is above √(K₁K₂) as often as below; no exponent is above 0."""
    X = np.random.default_rng(0).normal(size=(60, 7)).astype(np.float32) * 300
    kernel = Kernel(Sequential(Dense(), act, Dense()), device="cpu", check=False)
    for across, own in zip(kernel.both(X, X), kernel.both(X), strict=True):
        assert np.abs(across).max() <= own.diagonal().max() * (1 + 1e-6)


@pytest.mark.parametrize("act", [ReLU(), LeakyReLU(-2.0), Abs(), Step()], ids=repr)
def test_a_kernel_is_not_called_wrong_where_the_reference_rounds_as_well(act):
    """Two numbers have correlation one. There an angle is the root of a rounding, in float64 also that of the reference
    itself, and what a unit in the last place does is not all that rounding explains.
    """
    kind = "nngp" if isinstance(act, Step) else "ntk"  # a step's own kernel is that angle
    net = Sequential(Conv(1, weight_var=2.345), act, Dense(weight_var=0.481))
    kernel = Kernel(net, device="cpu", dtype="float64", kind=kind, check=False)
    for seed in range(200):
        X = np.random.default_rng(seed).normal(size=(1, 1, 1)).astype(np.float32).repeat(2, axis=0)
        found = compare(net, X, kernel(X), np.dtype("float64"), kind)
        assert found is not None
        assert found.error <= 4 * found.bound


@pytest.mark.parametrize("size", [30.0, 1e3, 3e4, 1e6])
def test_gelu_is_as_exact_for_large_variances_as_a_relu(size):
    """Images on a scale of 0 to 255 have variances of 10⁴, and each meets itself at correlation one."""
    X = (np.random.default_rng(0).normal(size=(60, 7)) * size).astype(np.float32)
    net = Sequential(Dense(), GELU(), Dense())
    R = reference.kernel(net, X, X)
    found = Kernel(net, device="cpu", check=False)(X, X)
    assert (np.abs(found - R) <= 1e-6 * np.sqrt(np.outer(R.diagonal(), R.diagonal()))).all()


def test_float32_holds_its_bound_where_a_million_terms_are_added():
    net = Sequential(Conv(3), R, GlobalAvgPool(), Dense())
    X = images((1, 32, 32), 2, 0)
    K, M = (Kernel(net, device="cpu", dtype=dtype)(X) for dtype in DTYPES)
    assert error(K, M) <= 5e-7
    assert M[0, 1] == pytest.approx(reference.kernel(net, X[:1], X[1:])[0, 0], rel=1e-12)


# ---- programs are short --------------------------------------------------------------------------------------------


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


def test_nonlinearities_and_constants_fold_into_the_next_operation():
    program = lower(zoo.resnet(32), (1, 28, 28))
    assert len(program.activations) == 31  # 30 in the blocks and one between the dense layers
    # Left on their own: the ReLU that both branches of a projection read, thrice, and the one on a single location.
    assert sum(op.sums is None for op in program.ops) == 4
    convnet = lower(zoo.convnet(), (1, 28, 28))
    assert len(convnet.ops) == 8
    assert all(math.frexp(op.scale)[0] == 0.5 for op in convnet.ops)  # nothing but powers of two is left
    assert len(convnet.buffers) == 2
    assert len(lower(zoo.resnet(110), (1, 28, 28)).buffers) <= 4


def test_a_program_does_not_depend_on_how_the_layers_are_nested():
    """Nor on pools of one location."""
    flat = lower(Sequential(Conv(3), ReLU(), Conv(3), ReLU(), Dense()), (1, 8, 8))
    for net in (
        Sequential(Sequential(Conv(3), Identity(), ReLU()), Sequential(Conv(3), ReLU()), Dense()),
        Sequential(Conv(3), ReLU(), Conv(3), ReLU(), AvgPool(1), Dense()),
    ):
        other = lower(net, (1, 8, 8))
        assert [(op.shape, op.sums, op.scale) for op in flat.ops] == [(op.shape, op.sums, op.scale) for op in other.ops]


def test_sheets_of_one_chain_share_few_buffers():
    """One sheet after the other: memory does not grow with their number, only with what the pool holds."""
    few, many = (lower(Sequential(*[C, R] * 3, GlobalAvgPool(), D), (1, n, n)) for n in (8, 16))
    assert len(many.ops) > 3.5 * len(few.ops)
    assert sum(few.buffers) <= 4 * 8 * 8
    assert sum(many.buffers) <= 4 * 16 * 16


def test_variances_come_before_what_reads_them():
    block = Sum(Identity(), Sequential(R, C))
    program = lower(Sequential(C, R, AvgPool(2), C, block, R, GlobalAvgPool(), D), (1, 6, 6))
    seen = set()
    for op in program.ops:
        if op.activation is not None:
            assert op.is_still or op.activation.site in seen
            seen.add(op.activation.site)
    assert program.input is None
    assert sum(op.src == PIXELS for op in program.ops) == 11 * 11


def test_stores_of_networks_whose_bits_changed_have_a_version_of_their_own():
    """The order of additions under pools changed, and the formulas of GELU, Sin and Cos; all else did not."""
    plain, pooled = Sequential(C, R, Dense()), Sequential(C, R, GlobalAvgPool(), Dense())
    others = [Sequential(C, act, Dense()) for act in (GELU(), Sin(), Cos(), Erf())]
    identities = [Kernel(net, device="cpu").engine_for((1, 5, 5)).identity for net in (plain, pooled, *others)]
    assert [identity[:6] for identity in identities] == ["cpu-3-", "cpu-6-", "cpu-4-", "cpu-4-", "cpu-4-", "cpu-3-"]
