"""No two threads of a block meet at a number without a barrier between them, in the kernels of a gradient."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cnngp import GELU, AvgPool, Conv, Dense, Elementwise, GlobalAvgPool, LeakyReLU, Network, Sequential
from cnngp.kernel.engines.cuda.cuda_source import CudaSource, generate_gradient
from cnngp.kernel.engines.cuda.kernel_frame import SHARED_LIMIT
from cnngp.kernel.program.reverse import Reverse, reverse
from cnngp.kernel.series.packed import SeriesTables
from helpers import adjoint
from helpers.cuda_races import sanitizer_works, watched
from helpers.kernels import SMALL, random_images

pytestmark = pytest.mark.slow

POOLED = Sequential(
    Conv(3, bias_var=0.1), LeakyReLU(0.3), AvgPool(2), Conv(3, bias_var=0.2), GELU(), GlobalAvgPool(), Dense()
)
TANH = Sequential(Conv(3, bias_var=0.1), Elementwise("tanh"), AvgPool(2), Dense())
CASES = {"plain": (SMALL, (2, 9, 10)), "pooled": (POOLED, (1, 5, 4)), "series": (TANH, (1, 3, 3))}
G = np.random.default_rng(0).uniform(0.5, 1.0, (3, 3))


@pytest.fixture(autouse=True)
def _sanitizer() -> None:
    if not sanitizer_works():
        pytest.skip("needs g++ with a thread sanitizer")


def made(net: Network, shape: tuple[int, ...], limit: int) -> tuple[Reverse, CudaSource, np.ndarray]:
    found = reverse(net, shape, to_images=True)
    series = SeriesTables(found.program, np.dtype("float32"))
    return found, generate_gradient(found, "float32", series.rows(None), limit), series.panels


@pytest.mark.parametrize("limit", [SHARED_LIMIT, 0], ids=["shared memory", "global memory"])
@pytest.mark.parametrize("name", CASES)
def test_there_are_no_races(name: str, limit: int, tmp_path: Path) -> None:
    net, shape = CASES[name]
    backwards, source, panels = made(net, shape, limit)
    X = random_images(3, shape)
    found, told = watched(source, X, G, panels, tmp_path)
    assert not told
    expected = adjoint.gradient(net, X, None, G)
    derivatives = {name: backwards.program.unit * found.get(name, 0.0) for name in expected}
    assert derivatives == pytest.approx(expected, rel=0, abs=1e-5 * max(map(abs, expected.values())))


@pytest.mark.parametrize(
    ("name", "line", "without"),
    [
        ("pooled", "            __syncthreads();  // a place that is first", "            // a place that is first"),
        ("plain", "all_parts[k % 2]", "all_parts[0]"),
        ("plain", "        if (op.extra_slot >= 0) leave_sum(extra, parts + 32);\n        __syncthreads();", ""),
    ],
)
def test_a_missing_barrier_is_found(name: str, line: str, without: str, tmp_path: Path) -> None:
    net, shape = CASES[name]
    _, source, panels = made(net, shape, SHARED_LIMIT)
    assert line in source.body
    spoiled = replace(source, body=source.body.replace(line, without))
    _, told = watched(spoiled, random_images(3, shape), G, panels, tmp_path)
    assert "ThreadSanitizer: data race" in told
