"""The generated CUDA against the reference, run as C++ on fibers (cuda_on_cpu.hpp), and with -m gpu on a card."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from cnngp import Conv, Dense, Identity, ReLU, Sequential, Step, Sum
from cnngp.kernel.engines.base import RangeError
from cnngp.kernel.engines.cuda.engine import KINDS
from cnngp.kernel.program import Kind, lower
from helpers import cuda_cases, pooled
from helpers.cuda_cases import EVERY, GENERAL, NETWORKS, NO_SLOPE, PATHS, POOLED, SERIES, OnCard, agrees
from helpers.fake_cards import MakeCards
from helpers.generator import RELU_LIKE, Random, random_network

# Warps of a pair, pairs of a block, blocks, segments whose tables are in shared memory: the warp's own pool in shared
# memory, and the block's in global memory.
OWN, TOGETHER = (1, 2, 1, 0), (2, 2, 1, 1)
F, D = "float32", "float64"
Options = dict[str, Any]
# Name, type, kind, options. What the default run leaves out: large maps, and whatever differs in the type alone.
QUICK: list[tuple[str, str, Kind, Options]] = [
    *((name, F, "nngp", {}) for name in NETWORKS if name not in ("convnet", "wide convolutions")),
    *((name, D, "nngp", {}) for name in ("resnet", "smooth", "step", "one location", "lanes outside maps")),
    *((name, F, "ntk", {}) for name in ("residual", "3-D", "dense skips", "global pool", "any pool at the end")),
    ("resnet", F, "ntk", {"tile": 2, "devices": [0, 0]}),
    *((name, D, "ntk", {}) for name in ("smooth", "series")),
    *((name, F, "nngp", {"launch_shape": OWN}) for name in ("two pools", "strides", "a pool of wide maps")),
    *(
        (name, F, "nngp", {"launch_shape": TOGETHER})
        for name in ("two pools", "any pool at the end", "a pool of wide maps")
    ),
    *((name, D, "nngp", {}) for name in ("global pool", "smooth pools", "same, then smaller twice", *SERIES)),
    *((name, F, "nngp", {}) for name in ("convolutional GP", *GENERAL, "series", "series at one location")),
    ("strides", F, "ntk", {"launch_shape": OWN}),
    ("LeNet", F, "ntk", {"launch_shape": (2, 1, 1, 0)}),
    ("sizes that do not halve", F, "nngp", {}),
    ("sizes that do not halve", D, "ntk", {"path": "walk"}),
    *((name, D, "nngp", {"path": "walk"}) for name in ("resnet", "padding modes", "loop")),
    ("folded, then not", D, "nngp", {}),
]
SLOW: list[tuple[str, str, Kind, Options]] = [
    *((name, dtype, "nngp", {}) for name in EVERY for dtype in (F, D)),
    *((name, dtype, "ntk", {}) for name in EVERY if name not in NO_SLOPE for dtype in (F, D)),
    *(
        (name, dtype, kind, {"launch_shape": shape})
        for name in POOLED
        for dtype, kind, shape in (
            *((F, "nngp", OWN), (F, "nngp", TOGETHER), (F, "nngp", (3, 1, 1, 2)), (D, "nngp", (1, 3, 1, 1))),
            *((D, "nngp", TOGETHER), (F, "ntk", OWN), (F, "ntk", (2, 1, 1, 0))),
        )
    ),
    *((name, D, "ntk", {"path": "walk"}) for name in ("skips in skips", "smooth", *POOLED)),
]
CASES = [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW if case not in QUICK)]


@pytest.mark.parametrize(("name", "dtype", "kind", "options"), CASES)
def test_kernels_agree_with_the_reference(on: str, name: str, dtype: str, kind: Kind, options: Options) -> None:
    net, shape = EVERY[name]
    run = OnCard(net, shape, dtype, kind, **options)
    assert run.source.path == options.get("path", PATHS[name])
    assert run.source.pairs.scratch or name != "maps beyond shared memory"
    tolerance = 0.0
    if name in SERIES:  # at correlation one a ReLU's slope moves by the root of what rounding moves K
        tolerance = {F: 1e-6, D: 1e-10 if kind == "ntk" else 1e-11}[dtype]
    elif name in cuda_cases.TOLERANCE:
        tolerance = cuda_cases.TOLERANCE[name] if dtype == F else cuda_cases.TOLERANCE[name] ** 2
    agrees(run, net, shape, tolerance, name in cuda_cases.ONE_PIXEL)


def test_a_tangent_kernel_far_smaller_than_k(cards: MakeCards) -> None:
    """Θ = T + own·K is held in a unit that suits the larger of the two, also where float32 would not hold the other."""
    branch = Sequential(ReLU(), Conv(3, weight_var=1e-36))
    net = Sequential(Conv(3), Sum(Identity(), branch), ReLU(), Dense())
    agrees(OnCard(net, (1, 6, 6), F, "ntk"), net, (1, 6, 6))


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(k, marks=pytest.mark.slow) for k in range(4, 40))])
def test_random_networks(cards: MakeCards, seed: int) -> None:
    """Of all dimensions, every second one with its tangent kernel; and with pools, on their way and the general one."""
    rng = np.random.default_rng(seed)
    net, shape = random_network(rng, max_pixels=600, axes=(1, 2, 2, 2, 3), scale=2.5)
    for dtype in (F, D):
        agrees(OnCard(net, shape, dtype, KINDS[seed % 2]), net, shape, one_pixel=True)
    net, shape = pooled.network(Random(rng), lambda: RELU_LIKE[seed % len(RELU_LIKE)], 4000)
    for path in (None, "walk") if lower(net, shape).input is None else (None,):
        agrees(OnCard(net, shape, D, path=path), net, shape)


def test_images_out_of_range_are_refused(on: str) -> None:
    """Above what float32 carries; and a step's locations too faint for it."""
    X = np.random.default_rng(0).standard_normal((2, 1, 6, 6)).astype(np.float32)
    for factor, layer, told in (
        (1e30, ReLU(), "image 1"),
        (1e-12, Step(), ""),
        (1e-20, Step(), "image 1 has locations .* too small beside"),
    ):
        run, images = OnCard(Sequential(Conv(3), layer, Dense()), (1, 6, 6)), X.copy()
        images[1, :, :, 2:] *= np.float32(factor)
        with pytest.raises(RangeError, match=told) if told else nullcontext():
            run.diagonals(images)
