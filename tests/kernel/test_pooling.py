"""Networks with pools: programs of sheets, and the CPU engine against the reference with all covariances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnngp import (
    GELU,
    AvgPool,
    Conv,
    Cos,
    Dense,
    Elementwise,
    Erf,
    GlobalAvgPool,
    Identity,
    Kernel,
    NetworkError,
    ReLU,
    Sequential,
    Sin,
    Step,
    Sum,
    gram,
)
from cnngp.kernel.program import PIXELS, lower
from cnngp.network import reference
from helpers.examples import examples
from helpers.kernels import error
from helpers.networks import images, relu_like, smooth
from helpers.pooled import pooled_networks

C, R = Conv(3, weight_var=2.0, bias_var=0.1), ReLU()
LENET = Sequential(C, R, AvgPool(2), C, R, AvgPool(2), Dense())
GLOBAL = Sequential(C, R, C, R, GlobalAvgPool(), Dense())


def check(net, shape, dtype, seed, tolerance):
    X, Z = images(shape, 4, seed), images(shape, 5, seed + 1)
    kernel = Kernel(net, device="cpu", dtype=dtype)
    assert error(kernel(X, Z), reference.kernel(net, X, Z)) <= tolerance
    K = kernel(X)
    assert error(K, reference.kernel(net, X)) <= tolerance
    assert (K == K.T).all()
    assert (kernel.diag(X) == K.diagonal()).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(drawn=pooled_networks(relu_like), seed=st.integers(0, 10**6))
@examples(100)
def test_relu_like_networks_with_pools_agree_with_the_reference(dtype, drawn, seed):
    check(*drawn, dtype, seed, {"float32": 1e-6, "float64": 1e-12}[dtype])


# The smooth nonlinearities lose digits by their conditioning, with and without pools (test_engine.py).
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(drawn=pooled_networks(smooth, max_elements=2000), seed=st.integers(0, 10**6))
@examples(60)
def test_smooth_networks_with_pools_agree_with_the_reference(dtype, drawn, seed):
    check(*drawn, dtype, seed, {"float32": 1e-5, "float64": 1e-12}[dtype])


@pytest.mark.parametrize("size", [(1, 4, 3), (1, 4, 1), (3, 1, 3), (3, 4, 1)], ids=str)
def test_pools_over_some_axes_of_a_volume(size):
    """Such as over the whole of every picture of a film: a sum of all rows and columns, plane by plane."""
    check(Sequential(C, R, AvgPool(size), C, R, GlobalAvgPool(), Dense()), (2, 3, 4, 3), "float64", 0, 1e-12)
    check(Sequential(C, R, AvgPool(size), Dense()), (1, 3, 4, 3), "float32", 0, 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("fn", ["tanh", pytest.param("softplus", marks=pytest.mark.slow)])
def test_series_under_a_pool(dtype, fn):
    net = Sequential(
        Conv(3, weight_var=2.0), Elementwise(fn), AvgPool(2), Conv(2), Elementwise(fn), GlobalAvgPool(), Dense()
    )
    check(net, (1, 4, 5), dtype, 0, {"float32": 1e-6, "float64": 1e-12}[dtype])


def test_step_under_a_pool():
    """Step at correlation one has the slope of a root, and every two blank places have that correlation.

    So the bound of test_engine.py holds for the engine and for the reference, and their difference may be the sum.
    """
    net = Sequential(Conv(3, bias_var=0.1), Step(), AvgPool(2), Dense())
    check(net, (1, 5, 4), "float32", 0, 2.4e-4)
    check(net, (1, 5, 4), "float64", 0, 1e-8)


def test_float32_holds_its_bound_where_a_million_terms_are_added():
    net = Sequential(Conv(3), R, GlobalAvgPool(), Dense())
    X = images((1, 32, 32), 2, 0)
    K, L = (Kernel(net, device="cpu", dtype=dtype)(X) for dtype in ("float32", "float64"))
    assert error(K, L) <= 5e-7
    assert L[0, 1] == pytest.approx(reference.kernel(net, X[:1], X[1:])[0, 0], rel=1e-12)


def test_bits_do_not_depend_on_batch_threads_or_tiles():
    X = images((1, 8, 8), 40, 0)
    K = Kernel(GLOBAL, device="cpu", threads=1)(X)
    many = Kernel(GLOBAL, device="cpu", threads=3)
    assert (many(X) == K).all()
    assert (many(X[7:9], X[20:33]) == K[7:9, 20:33]).all()
    assert (gram(many, X, tile=16) == K).all()


def test_sheets_of_one_chain_share_few_buffers():
    """One sheet after the other: memory does not grow with their number, only with what the pool holds."""
    few = lower(Sequential(*[C, R] * 3, GlobalAvgPool(), Dense()), (1, 8, 8))
    many = lower(Sequential(*[C, R] * 3, GlobalAvgPool(), Dense()), (1, 16, 16))
    assert len(many.ops) > 3.5 * len(few.ops)
    assert sum(few.buffers) <= 4 * 8 * 8
    assert sum(many.buffers) <= 4 * 16 * 16


def test_variances_come_before_what_reads_them():
    block = Sum(Identity(), Sequential(R, C))
    program = lower(Sequential(C, R, AvgPool(2), C, block, R, GlobalAvgPool(), Dense()), (1, 6, 6))
    seen = set()
    for op in program.ops:
        if op.activation is not None:
            assert op.is_still or op.activation.site in seen
            seen.add(op.activation.site)
    assert program.input is None
    assert sum(op.src == PIXELS for op in program.ops) == 11 * 11


def test_a_pool_of_one_location_is_no_pool():
    plain, pooled = Sequential(C, R, Dense()), Sequential(C, R, AvgPool(1), Dense())
    X = images((1, 5, 5), 3, 0)
    assert (Kernel(pooled, device="cpu")(X) == Kernel(plain, device="cpu")(X)).all()
    assert lower(pooled, (1, 5, 5)).input is not None


def test_stores_of_networks_whose_bits_changed_have_a_version_of_their_own():
    """The order of additions under pools changed, and the formulas of GELU, Sin and Cos; all else did not."""
    plain, pooled = Sequential(C, R, Dense()), Sequential(C, R, GlobalAvgPool(), Dense())
    others = [Sequential(C, act, Dense()) for act in (GELU(), Sin(), Cos(), Erf())]
    identities = [Kernel(net, device="cpu").engine_for((1, 5, 5)).identity for net in (plain, pooled, *others)]
    assert [identity[:6] for identity in identities] == ["cpu-3-", "cpu-6-", "cpu-4-", "cpu-4-", "cpu-4-", "cpu-3-"]


def test_too_many_sheets_are_refused_before_any_work():
    with pytest.raises(NetworkError, match=r"layers\[4\]: GlobalAvgPool\(\) on 400 × 400 needs .* use strides"):
        Kernel(GLOBAL, device="cpu")(np.zeros((1, 1, 400, 400)))


def test_too_many_sums_of_sheets_are_refused_before_any_work():
    """Windows of many sizes make a part each of every two of them."""
    pool = AvgPool(5, stride=1, padding=2, count_include_pad=False)
    net = Sequential(C, R, pool, C, R, GlobalAvgPool(), Dense())
    with pytest.raises(NetworkError, match=r"layers\[2\]: AvgPool.* on 9 × 6 × 7 adds up .* count_include_pad=True"):
        net.shapes((1, 9, 6, 7))
    assert net.shapes((1, 3, 3, 3)).output == ()
