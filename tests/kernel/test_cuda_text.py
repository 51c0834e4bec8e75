"""The generated CUDA as text, which compiles for a card and is of bounded length, and the plans behind it."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnngp import AvgPool, Conv, Dense, Elementwise, GlobalAvgPool, Identity, LeakyReLU, Rbf, ReLU, Sequential, Sum, zoo
from cnngp.kernel.engines.cuda.cuda_source import generate, generate_gradient
from cnngp.kernel.engines.cuda.registers import in_registers
from cnngp.kernel.engines.cuda.sheets.sheet_chain import Shifts, chain, runs
from cnngp.kernel.engines.cuda.warp.warp_kernel import fold_from
from cnngp.kernel.program import Kind, lower
from cnngp.kernel.program.reverse import reverse
from cnngp.kernel.series.packed import SeriesTables
from cnngp.network import Network
from helpers.cuda_cases import EVERY, NETWORKS, NO_SLOPE, SHRINKING

C: list[Network] = [Conv(3), ReLU()]
MYRTLE = Sequential(*C * 3, AvgPool(2), *C * 3, AvgPool(2), *C * 3, GlobalAvgPool(), Dense())
SLOPES = Sequential(
    *(Conv(3, bias_var=0.1), Sum(Identity(), Sequential(LeakyReLU(0.2), Conv(3)), Sequential(Rbf(0.3), Conv(3)))),
    *(ReLU(1.5), AvgPool(2), Dense()),
)
TEXTS = EVERY | {"resnet(32)": (zoo.resnet(32), (1, 28, 28))}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize(
    ("name", "kind", "dtype"),
    [
        ("resnet(32)", "nngp", "float32"),
        ("two pools", "nngp", "float32"),
        *(
            pytest.param(name, kind, dtype, marks=pytest.mark.slow)
            for name in TEXTS
            for kind in ("nngp", "ntk", "gradient")
            for dtype in ("float32", "float64")
            if kind == "nngp" or name not in NO_SLOPE
        ),
    ],
)
def test_source_compiles_with_next_to_no_spills(name: str, kind: Any, dtype: str, tmp_path: Path) -> None:
    """Of kernels of either kind, or of a "gradient" by the images, which has the general kernel beside it."""
    net, shape = TEXTS[name]
    found = reverse(net, shape, to_images=True) if kind == "gradient" else None
    program = lower(net, shape, kind) if found is None else found.program
    rows = SeriesTables(program, np.dtype(dtype)).rows(None)
    source = generate(program, dtype, None, rows) if found is None else generate_gradient(found, dtype, rows)
    (tmp_path / "kernels.cu").write_text(source.text)
    command = ["nvcc", "-std=c++17", "-arch=sm_90", "-cubin", "-Xptxas", "-v", "-o", "kernels.cubin", "kernels.cu"]
    told = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stderr
    assert "pairs" in told
    assert max(int(n) for n in re.findall(r"(\d+) bytes spill stores", told)) <= (128 if kind == "gradient" else 64)


RESIDUAL, DEEP = zoo.resnet(20), zoo.resnet(110)


@pytest.mark.parametrize(
    ("net", "large", "kind", "most"),
    [
        ((RESIDUAL, 28), (DEEP, 28), "nngp", 1.1),
        ((RESIDUAL, 28), (DEEP, 28), "ntk", 1.1),
        ((Sequential(*C * 20, Dense()), 28), (Sequential(*C * 300, Dense()), 28), "nngp", 1.1),
        ((MYRTLE, 8), (MYRTLE, 16), "nngp", 2.0),
    ],
    ids=["ResNet", "tangents", "chain", "shifts below pools"],
)
def test_the_code_does_not_grow_with_the_work(
    net: tuple[Network, int], large: tuple[Network, int], kind: Kind, most: float
) -> None:
    """Operations are numbers beside the text, blocks are turns of a loop, and shifts are tasks of one loop."""
    few, many = (generate(lower(of, (1, n, n), kind), "float32") for of, n in (net, large))
    assert len(many.data.ops) > 3 * len(few.data.ops)
    start = 'extern "C" __global__ void __launch_bounds__'
    one, other = (source.body[source.body.index(start) :] for source in (few, many))
    assert len(other) < most * len(one)


def test_no_address_is_in_the_text() -> None:
    bare = [Sequential(Dense(), Elementwise(lambda x: np.tanh(x)), Dense()) for _ in range(3)]
    programs = [lower(net, (3,)) for net in bare]
    rows = [SeriesTables(p, np.dtype("float32")).rows(None) for p in programs]
    assert len({generate(p, "float32", series=r).text for p, r in zip(programs, rows, strict=True)}) == 1


@pytest.mark.parametrize(
    ("net", "gradient"), [(zoo.resnet(8), True), (zoo.residual_cnn(), True), (SLOPES, True), (SLOPES, False)]
)
def test_a_walk_does_not_depend_on_the_parameters(net: Network, gradient: bool) -> None:
    """A search over variances compiles once, also where they move units: all or every second one are far larger."""
    sources = []
    for times in ([1.0, 1.0], [1024.0, 1024.0], [1e-3, 1e3], [1.1, 1.2]):
        changed = {}
        for i, (name, value) in enumerate(net.parameters().items()):
            variance = name.endswith("_var")
            changed[name] = times[i % 2] * (value or 0.1) if variance else (0.2 + times[i % 2] / 1e4) * value
        moved = net.with_parameters(changed)
        if gradient:
            sources.append(generate_gradient(reverse(moved, (1, 8, 8)), "float32"))
        else:
            sources.append(generate(lower(moved, (1, 8, 8)), "float32", "walk"))
    assert len({source.text for source in sources}) == 1
    assert len({source.content for source in sources}) == len(sources)


# ---- plans -----------------------------------------------------------------------------------------------------------


def test_lanes_hold_two_columns_where_that_pays() -> None:
    folds = {"convnet": 28, "folded, then not": 12, "resnet": 0, "residual": 0, "padding modes": 0}
    assert {name: fold_from(lower(*NETWORKS[name])) for name in folds} == folds


def test_a_slope_and_its_nonlinearity_are_one_step() -> None:
    """In every block of a ResNet, so that they share most of the work."""
    steps = in_registers(lower(zoo.resnet(32), (1, 28, 28), "ntk")).steps
    curved = [s for s in steps if s.activation is not None]
    assert len(curved) == len(lower(zoo.resnet(32), (1, 28, 28)).activations)
    assert all(s.beside is not None and s.beside.op.tangent is not None for s in curved)


@pytest.mark.parametrize(
    ("net", "shape", "counts"),
    [
        (Sequential(*C, AvgPool(2), *C, AvgPool(2), Dense()), (1, 28, 28), [(7, 7), (3, 3)]),
        (MYRTLE, (1, 16, 16), [(16, 16), (8, 8), (4, 4)]),
        (Sequential(*C, Conv(3, stride=2), ReLU(), GlobalAvgPool(), Dense()), (1, 8, 12), [(4, 6)]),
        (Sequential(*C * 2, AvgPool(2), *C, AvgPool(3, 1), Dense()), (1, 12, 12), [(11, 11), (5, 5)]),
        (*SHRINKING["convolutional GP"], [(7, 6)]),
        (*SHRINKING["uneven patches"], [(6, 9)]),
        (*SHRINKING["same, then smaller twice"], [(7, 9)]),
        (*SHRINKING["a pool of almost all"], [(9, 8)]),
    ],
)
def test_shifts_follow_from_the_output(net: Network, shape: tuple[int, ...], counts: list[tuple[int, int]]) -> None:
    """The sets of docs/gpu.md: few for small pools before a Dense layer, as many as places for a global pool; maps that
    shrink share those of the largest.
    """
    found = chain(lower(net, shape))
    assert found is not None
    assert [(s.rows.count, s.columns.count) for s in found.segments] == counts
    assert bool(found.cycles) == ((net, shape) in SHRINKING.values()), (
        "maps that shrink share the shifts of the largest"
    )


def test_a_run_of_shifts_stores_each_pooled_sheet_once() -> None:
    """Each coarse shift gets the even rows of its own run, and odd rows late only where another run ends before it."""
    for n in (8, 16, 28):
        fine, coarse = (
            Shifts(m, {m: tuple(range(m))}, tuple(map(frozenset, [{s} for s in range(m)]))) for m in (n, n // 2)
        )
        for count in (1, 2, 3, n // 2):
            found = runs(fine, coarse, n // 2, count)
            assert sorted(t for t in found.own if t >= 0) == list(range(n // 2))
            assert len(found.late) == found.count
            assert all(s % 2 == 0 for s in found.starts)


@pytest.mark.parametrize(
    ("net", "dtype", "path"),
    [(zoo.resnet(32), "float64", "warp"), (Sequential(*C * 3, GlobalAvgPool(), Dense()), "float32", "sheets")],
)
def test_cards_with_less_shared_memory_get_smaller_blocks(net: Network, dtype: str, path: str) -> None:
    program = lower(net, (1, 16, 16))
    most = generate(program, dtype).pairs.shared
    for limit in (227 * 1024, 99 * 1024, most - 1):
        source = generate(program, dtype, shared_limit=limit)
        assert source.path == path
        assert max(launch.shared for launch in source.launches.values()) <= limit
