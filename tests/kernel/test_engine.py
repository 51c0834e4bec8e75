"""Every engine against the float64 reference: generated networks, and networks with something special about them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnngp import AvgPool, Conv, ConvTranspose, Dense, GlobalAvgPool, Identity, Kernel, Sequential, Sum, zoo
from cnngp.kernel.check import _rounded, compare, documented_bound
from cnngp.kernel.making import make_engine, make_gradient
from cnngp.kernel.program import Kind
from cnngp.network import Network, NetworkError, Rbf, Sign, Sin, Step, reference
from cnngp.network.layers import GELU, Abs, Cos, Elementwise, Erf, LayerNorm, LeakyReLU, ReLU, as_layer
from helpers.derivatives import by_differences
from helpers.examples import examples
from helpers.kernels import DTYPES, TOLERANCE, each_device, each_dtype, error, random_images
from helpers.networks import Case, images, of, relu_like, smooth
from helpers.nonlinearities import DIFFERENTIABLE
from helpers.pooled import either

# Erf, Sin, Cos, Rbf and GELU are not homogeneous: a half-ulp of a covariance K moves the exponent of Sin and Cos by
# K/2^24, that of Rbf by 2γK/2^24, and 1 − x² of Erf and GELU likewise, so the bound is the ReLU's times the largest
# variance they see (below 30 here).
SMOOTH_TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
C, R, D = Conv(3, weight_var=2.0, bias_var=0.1), ReLU(), Dense()


def check(net, shape, dtype, tolerance, *, device="cpu", seed=0, n=5, m=19):
    X, Z = images(shape, n, seed), images(shape, m, seed + 1)
    kernel = Kernel(net, device=device, dtype=dtype, check=False)
    assert error(kernel(X, Z), reference.kernel(net, X, Z)) <= tolerance
    K = kernel(X)
    assert error(K, reference.kernel(net, X)) <= tolerance
    assert (K == K.T).all()
    assert (kernel.diag(X) == K.diagonal()).all()


# Over 600 drawn networks no entry was further off than 0.9 of what `moved_by_rounding` and the documented bound allow.
MARGIN = 2.0


def moved_by_rounding(net: Network, X: np.ndarray, Z: np.ndarray, dtype: str, kind: Kind) -> np.ndarray:
    """How far each entry moves at most: with all covariances smaller, larger, and each in a random direction.

    A single number for a whole matrix is as weak as its worst entry. Here each entry has its own, so that one pair of
    equal images, whose angle is the square root of a rounding, excuses no other pair. An engine rounds K, an entry of
    the table of either image and their product.
    """
    size = 4 * max(float(np.finfo(dtype).eps), float(np.finfo(np.float64).eps))
    true = _kernel(net, X, Z, kind, lambda shape: np.ones(shape))
    rng = np.random.default_rng(0)
    most = np.zeros_like(true)
    for draw in (
        lambda shape: np.full(shape, 1.0 - size),
        lambda shape: np.full(shape, 1.0 + size),
        *[lambda shape: 1.0 + size * rng.uniform(-1.0, 1.0, shape)] * 4,
    ):
        most = np.maximum(most, np.abs(_kernel(net, X, Z, kind, draw) - true))
    return most


def _kernel(net: Network, X: np.ndarray, Z: np.ndarray, kind: Kind, factors: Any) -> np.ndarray:
    layer = as_layer(net)
    with np.errstate(all="ignore"):
        end = reference.propagate(
            layer,
            reference.begin(layer, X, Z, kind),
            lambda maps: maps.map(lambda V: _rounded(V, lambda K: K * factors(K.shape))),
        )
    return (end.K if end.theta is None else end.theta).xz.reshape(len(X), len(Z))


def both_are_close(net, X, dtype):
    """Both kernels against the reference, each entry by what rounding does to that entry: of one set of images, and of
    two that are the same, where every image meets itself at correlation one.
    """
    kernel = Kernel(net, device="cpu", dtype=dtype, check=False)
    own, across = kernel.both(X), kernel.both(X, X)
    for found, other, kind in zip(own, across, ("nngp", "ntk"), strict=True):
        R = reference.kernel(net, X, X, kind)
        most = documented_bound(net, np.dtype(dtype), kind) * np.abs(R).max()
        moved = moved_by_rounding(net, X, X, dtype, kind)
        assert (np.abs(other - R) <= MARGIN * (most + moved)).all(), kind
        # The diagonal has a recursion of its own, in float64.
        np.fill_diagonal(moved, moved_by_rounding(net, X, X, "float64", kind).diagonal())
        assert (np.abs(found - reference.kernel(net, X, kind=kind)) <= MARGIN * (most + moved)).all(), kind


@each_dtype
@given(drawn=either(relu_like), seed=st.integers(0, 10**6))
@examples(400)
def test_relu_like_networks(dtype, drawn, seed):
    check(*drawn, dtype, TOLERANCE[dtype], seed=seed)


@each_dtype
@given(drawn=either(smooth, max_elements=2000), seed=st.integers(0, 10**6))
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


ALL, NORM = LayerNorm("all"), LayerNorm("all", eps=0.1)
B, L = Conv(3, bias_var=0.1), Dense(bias_var=0.2)
BARE = Sum(R, Sequential(Conv(3), LeakyReLU(0.3)), allow_non_gaussian=True)
FAR_APART = Sum(Conv(3, weight_var=1e-12), Conv(3, weight_var=1e12))
SPECIAL: dict[str, Case] = {
    "no operation at all": of((2, 5, 6), Dense(2.0)),
    "a change of unit only": of((2, 5, 6), Conv(1, weight_var=3.0), R, Dense(0.5)),
    "weights that are all zero": of((2, 5, 6), Conv(3, weight_var=0.0), R, D),
    "zero weights with a bias": of((2, 5, 6), Conv(3, weight_var=0.0, bias_var=2.0), R, Dense(0.0, 0.5)),
    "a skip that stands last": of((2, 5, 6), Conv(3), Sum(Sequential(R, Conv(3)), Identity()), R, D),
    "a skip of the input": of((2, 5, 6), Sum(Identity(), Conv(3, bias_var=1.0)), D),
    "only skips with weights": of((2, 5, 6), Sum(Conv(1), Conv(1, weight_var=2.0), Conv(1, bias_var=3.0)), D),
    "a sum of one": of((2, 5, 6), Sum(Conv(3)), Sum(Sum(Identity())), R, D),
    "branches that are bare nonlinearities": of((2, 5, 6), Conv(3), BARE, D),
    "very different branches": of((2, 5, 6), Conv(3), FAR_APART, R, Dense(1e-12)),
    "one map read twice by one operation": of((2, 5, 6), Conv(3), R, Sum(Conv(1), Conv(3)), R, D),
    "pools over some axes": of((2, 3, 4, 3), C, R, AvgPool((1, 4, 3)), C, R, GlobalAvgPool(), D),
    "pools over planes": of((2, 3, 4, 3), C, R, AvgPool((3, 1, 3)), C, R, GlobalAvgPool(), D),
    "a norm before a ReLU": of((2, 5, 4), B, NORM, R, L),
    "a norm before a sum of boxes": of((1, 6, 5), B, NORM, Conv((2, 3), stride=2, bias_var=0.2), L),
    "a norm in a branch": of((1, 4, 4), B, Sum(B, Sequential(ALL, B)), R, L),
    "norms under a pool": of((2, 4, 6), B, NORM, R, AvgPool(2), B, ALL, R, L),
    "norms of volumes": of((1, 3, 4, 3), B, NORM, R, Conv(2, padding="valid", bias_var=0.1), NORM, L),
    "a norm of features": of((7,), L, NORM, R, L),
    "a resnet": (zoo.resnet(8), (1, 9, 8)),
    "one axis": of((2, 17), Conv(3), R, Conv(4, dilation=2), R, D),
    "three axes": of((1, 4, 3, 4), Conv(2), R, B, R, GlobalAvgPool(), D),
    "a transposed convolution": of((1, 5, 4), Conv(3), GELU(), ConvTranspose(3, stride=2), R, D),
    "linear layers": of((1, 5, 5), B, Conv(3, bias_var=0.2), R, D, Dense(1.0, 0.3)),
    "large windows": of((1, 12, 11), Conv(7), R, Conv(5), R, Conv((3, 5)), R, Conv(9), D),
    "dense layers": of((6,), Dense(2.0, 0.1), R, D, Erf(), D),
    "one layer": of((3,), D),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_special_networks(name):
    net, shape = SPECIAL[name]
    for dtype in DTYPES:
        check(net, shape, dtype, TOLERANCE[dtype], seed=7)
        both_are_close(net, images(shape, 4, 7), dtype)


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
        step = 1e-5 * rng.normal(size=X.shape)
        up, down = ((G * reference.kernel(net, X + moved, other)).sum() for moved in (step, -step))
        of_x = found if other is None else found[0]
        assert 2 * (of_x * step).sum() == pytest.approx(up - down, rel=1e-5, abs=1e-12)


def test_cards_refuse_norms_over_all_locations_by_their_place() -> None:
    case = SPECIAL["norms under a pool"]
    told = r"layers\[1\]: LayerNorm\(over='all', eps=0.1\) runs on the CPU alone"
    with pytest.raises(NetworkError, match=told):
        make_engine(*case, "nngp", "cuda", "float32")
    with pytest.raises(NetworkError, match=told):
        make_gradient(*case, False, "cuda", "float32")


SHAPES: dict[str, Case] = {
    "photographs": of((3, 224, 224), Conv(7, stride=4, weight_var=2.0), R, Conv(3, stride=2), R, D),
    "whole photographs": of((3, 224, 224), Conv(3), R, D),
    "volumes": of((2, 6, 7, 8), Conv((3, 3, 2)), R, Conv(3, (2, 1, 2), padding_mode="circular"), R, D),
    "signals": of((1, 400), Conv(9, stride=3), R, Conv(16, dilation=2, padding="valid"), R, D),
    "thousands of features": (zoo.dense_nngp(3), (3072,)),
    "digits for the paper's ResNet": (zoo.resnet(), (1, 28, 28)),
    "digits for the paper's ConvNet": (zoo.convnet(), (1, 28, 28)),
    "digits for the paper's residual CNN": (zoo.residual_cnn(), (1, 28, 28)),
}


@each_device
@each_dtype
@pytest.mark.parametrize("name", SHAPES)
def test_images_of_every_kind(device, dtype, name):
    check(*SHAPES[name], dtype, TOLERANCE[dtype], device=device, m=4)


# ---- images that are hard on rounding ------------------------------------------------------------------------------


@pytest.mark.parametrize("act", [Sin(), Cos(), Rbf(0.5)], ids=repr)
def test_no_covariance_is_larger_than_the_variances(act):
    """Of variances near 10^5 float32 keeps 2⁻⁸, so K is above √(K₁K₂) as often as below; no exponent is above 0."""
    X = np.random.default_rng(0).normal(size=(60, 7)).astype(np.float32) * 300
    kernel = Kernel(Sequential(Dense(), act, Dense()), device="cpu", check=False)
    for across, own in zip(kernel.both(X, X), kernel.both(X), strict=True):
        assert np.abs(across).max() <= own.diagonal().max() * (1 + 1e-6)


@each_dtype
@pytest.mark.parametrize("act", [R, LeakyReLU(-0.5), Erf(), Cos(), GELU()], ids=repr)
def test_images_from_far_apart_to_equal(act, dtype):
    """An angle near 0 is known to the root of a rounding: θ of a ReLU loses most of all (docs/ntk.md)."""
    rng = np.random.default_rng(0)
    x = rng.random((1, 1, 6, 6))
    X = np.concatenate([x, *(x + 2.0**-k * rng.normal(size=x.shape) for k in range(0, 40, 3))]).astype(np.float32)
    both_are_close(Sequential(*[Conv(3), act] * 4, D), X.astype(np.float64), dtype)


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


# ---- the tangent kernel ---------------------------------------------------------------------------------------------


@each_dtype
@given(drawn=either(st.one_of(relu_like, smooth), 120, 800), seed=st.integers(0, 10**6))
@examples(40)
def test_both_kernels_of_generated_networks(dtype, drawn, seed):
    both_are_close(drawn[0], images(drawn[1], 5, seed), dtype)


EVERY = [*DIFFERENTIABLE, LeakyReLU(-0.5), LayerNorm(eps=0.1), Elementwise("softplus")]


@each_dtype
@pytest.mark.parametrize("act", EVERY, ids=repr)
def test_every_nonlinearity_in_every_kind_of_operation(act, dtype):
    """Alone, before a window, a strided box and a dense layer, and under a pool."""
    conv = Conv(3, weight_var=1.5, bias_var=0.2)
    plain = Sequential(conv, Sum(Identity(), Sequential(act, Conv(3))), act, Conv(2, stride=2), act, Dense())
    pooled = Sequential(conv, act, AvgPool(2), Conv(3), act, GlobalAvgPool(), Dense())
    # The reference takes a quadrature for each number of a series.
    size, n, m = (2, 2, 2) if isinstance(act, Elementwise) else (4, 5, 3)
    both_are_close(plain, images((2, size + 1, size), n, 1), dtype)
    both_are_close(pooled, images((1, size, size), m, 2), dtype)
