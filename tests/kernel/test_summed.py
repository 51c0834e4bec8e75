"""A network that is a sum runs branch by branch: the same kernel, each branch on the path that it has alone."""

from unittest.mock import Mock

import numpy as np
import pytest

from cnngp import Conv, Dense, Erf, GlobalAvgPool, Kernel, RangeError, ReLU, Sequential, Sin, Sum, zoo
from cnngp.kernel import making
from cnngp.kernel.engines.cuda.cuda_source import generate
from cnngp.kernel.making import SummedEngine, branches
from cnngp.kernel.program import lower
from cnngp.network import reference
from helpers.kernels import TOLERANCE, each_dtype, error

SHAPE = (2, 6, 5)
POOLED = Sequential(Conv(3), ReLU(), GlobalAvgPool(), Dense(0.5))
DEEP = Sequential(Conv(3, bias_var=0.1), ReLU(), Conv(2), ReLU(), Dense())
SUM = Sum(POOLED, Sequential(Sum(Sequential(Dense(), Erf(), Dense(2.0)), DEEP)))
X = np.random.default_rng(0).normal(size=(7, *SHAPE))
Z = np.random.default_rng(1).normal(size=(4, *SHAPE))


@each_dtype
def test_the_branches_add_up_to_the_kernel(dtype: str) -> None:
    kernel = Kernel(SUM, device="cpu", dtype=dtype, threads=2)
    engine = kernel.engine_for(SHAPE)
    assert isinstance(engine, SummedEngine)
    assert len(engine.parts) == 3
    x, z = X.astype(dtype), Z.astype(dtype)
    K = kernel(x)
    assert error(K, reference.kernel(SUM, x)) <= TOLERANCE[dtype]
    np.testing.assert_array_equal(K, K.T)
    np.testing.assert_array_equal(K.diagonal(), kernel.diag(x))
    np.testing.assert_array_equal(kernel(x[:3], x[3:]), K[:3, 3:])
    for found, kind, times in zip(kernel.both(x, z), ("nngp", "ntk"), (1, 10), strict=True):
        assert error(found, reference.kernel(SUM, x, z, kind)) <= times * TOLERANCE[dtype]
    told: list[int] = []
    engine.cross(x.reshape(7, 2, -1), z.reshape(4, 2, -1), advance=told.append)
    assert sum(told) == 7 * 4, "each pair is counted once"


def test_each_branch_has_the_path_that_it_has_alone() -> None:
    found = {
        place: generate(lower(net, (1, 28, 28), place=place), "float32").path
        for place, net in branches(zoo.conv_gp(pixel_gamma=1.0))
    }
    assert found == {"branches[0]": "sheets", "branches[1]": "warp"}


def test_messages_name_places_of_the_whole_network() -> None:
    net = Sum(POOLED, Sequential(Dense(), Sin(), Dense()))
    with pytest.raises(RangeError, match=r"at branches\[1\]\.layers\[1\]"):
        Kernel(net, device="cpu", check=False)(1e5 * X)


def test_a_network_is_lowered_once_and_a_sum_once_more_for_each_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Mock(wraps=making.lower)
    monkeypatch.setattr(making, "lower", counted)
    net = Sequential(Conv(3), ReLU(), Dense())
    Kernel(net, device="cpu").engine_for((1, 4, 4))
    assert counted.call_count == 1
    Kernel(Sum(Dense(), net), device="cpu").engine_for((1, 4, 4))
    assert counted.call_count == 1 + 3
