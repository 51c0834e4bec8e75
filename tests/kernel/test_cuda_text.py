"""The generated CUDA as text: a pure function of the program, of bounded length, that compiles for a card.

And the plans behind it: shifts below pools, folded maps, shared memory.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cnngp import AvgPool, Conv, Dense, Elementwise, GlobalAvgPool, LeakyReLU, Rbf, ReLU, Sequential, zoo
from cnngp.common.devices import EngineError, has_card
from cnngp.kernel.engines.cuda.cuda_source import CudaSource, generate, generate_gradient
from cnngp.kernel.engines.cuda.engine import CudaEngine
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
TEXTS = EVERY | {"resnet(32)": (zoo.resnet(32), (1, 28, 28))}


def source_of(name: str, kind: Kind | str, dtype: str, path: str | None = None) -> CudaSource:
    """The source of a kernel of either kind, or of a "gradient" to the images."""
    net, shape = TEXTS[name]
    if kind == "gradient":
        found = reverse(net, shape, to_images=True)
        return generate_gradient(found, dtype, SeriesTables(found.program, np.dtype(dtype)).rows(None))
    program = lower(net, shape, kind)  # type: ignore[arg-type]
    return generate(program, dtype, path, SeriesTables(program, np.dtype(dtype)).rows(None))  # type: ignore[arg-type]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize(
    ("name", "kind", "dtype", "path"),
    [
        ("resnet(32)", "nngp", "float32", None),
        ("two pools", "nngp", "float32", "sheets"),
        *(
            pytest.param(name, kind, dtype, path, marks=pytest.mark.slow)
            for name in TEXTS
            for kind in ("nngp", "ntk", "gradient")
            for dtype in ("float32", "float64")
            for path in ((None, "walk") if kind == "nngp" else (None,))
            if kind == "nngp" or name not in NO_SLOPE
        ),
    ],
)
def test_source_compiles_with_next_to_no_spills(
    name: str, kind: str, dtype: str, path: str | None, tmp_path: Path
) -> None:
    (tmp_path / "kernels.cu").write_text(source_of(name, kind, dtype, path).text)
    command = ["nvcc", "-std=c++17", "-arch=sm_90", "-cubin", "-Xptxas", "-v", "-o", "kernels.cubin", "kernels.cu"]
    told = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stderr
    assert "pairs" in told
    assert max(int(n) for n in re.findall(r"(\d+) bytes spill stores", told)) <= (128 if kind == "gradient" else 64)


@pytest.mark.parametrize("kind", ["nngp", "ntk", "gradient"])
def test_every_text_has_what_its_kind_needs(kind: str) -> None:
    for name in TEXTS:
        if kind != "nngp" and name in NO_SLOPE:
            continue
        text = source_of(name, kind, "float32").text
        assert not re.search(r"\[\] = \{\s*\}", text), "CUDA has no empty arrays, though g++ does"
        assert bool(re.search("theta_mirror", text)) == (kind == "ntk"), name
        assert kind != "nngp" or not re.search("_slope", text) or "series" in name, name


@pytest.mark.parametrize(
    ("name", "depth", "kind"), [("resnet", 110, "nngp"), ("chain", 300, "nngp"), ("resnet", 110, "ntk")]
)
def test_deep_networks_do_not_grow_the_code(name: str, depth: int, kind: Kind) -> None:
    def text(deep: int) -> str:
        net = zoo.resnet(deep) if name == "resnet" else Sequential(*C * deep, Dense())
        source = generate(lower(net, (1, 28, 28), kind), "float32")
        return source.body[source.body.index('extern "C" __global__ void __launch_bounds__') :]

    assert len(text(depth)) < 1.1 * len(text(20))


def test_the_text_does_not_grow_with_the_shifts() -> None:
    """Operations are numbers beside the text, and shifts are tasks of one loop."""
    small, large = (generate(lower(MYRTLE, (1, n, n)), "float32") for n in (8, 16))
    assert len(large.data.ops) > 3 * len(small.data.ops)
    assert len(large.text) < 2 * len(small.text)


def test_source_is_a_pure_function() -> None:
    for name in ("resnet(32)", "two pools", "3-D"):
        one, again = (source_of(name, "nngp", "float32") for _ in range(2))
        assert one.content == again.content
    bare = [Sequential(Dense(), Elementwise(lambda x: np.tanh(x)), Dense()) for _ in range(3)]
    programs = [lower(net, (3,)) for net in bare]
    texts = {generate(p, "float32", series=SeriesTables(p, np.dtype("float32")).rows(None)).text for p in programs}
    assert len(texts) == 1, "an address is in the text"


@pytest.mark.parametrize("gradient", [False, True])
def test_a_walk_does_not_depend_on_the_parameters(gradient: bool) -> None:
    """A search over variances compiles once."""
    for layer in (LeakyReLU(0.2), ReLU(1.5), Rbf(0.3)):
        net = Sequential(Conv(3, bias_var=0.1), layer, AvgPool(2), Conv(3), layer, Dense())
        values = {name: 1.1 * value + 0.01 for name, value in net.parameters().items()}
        one, other = (
            generate_gradient(reverse(of, (1, 6, 6)), "float32")
            if gradient
            else generate(lower(of, (1, 6, 6)), "float32", "walk")
            for of in (net, net.with_parameters(values))
        )
        assert one.text == other.text
        assert not np.array_equal(one.data.reals, other.data.reals)
        assert one.content != other.content


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
    ],
)
def test_shifts_follow_from_the_output(net: Network, shape: tuple[int, ...], counts: list[tuple[int, int]]) -> None:
    """The sets of docs/gpu.md: few for small pools before a Dense layer, as many as places for a global pool."""
    found = chain(lower(net, shape))
    assert found is not None
    assert [(s.rows.count, s.columns.count) for s in found.segments] == counts


@pytest.mark.parametrize("name", SHRINKING)
def test_maps_that_shrink_share_the_shifts_of_the_largest(name: str) -> None:
    net, shape = SHRINKING[name]
    found = chain(lower(net, shape))
    assert found is not None
    assert found.cycles
    assert all(segment.rows.count <= shape[1] for segment in found.segments)


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


def test_without_cupy_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert not has_card()
    with pytest.raises(EngineError, match=r'pip install "cnngp\[cuda\]"'):
        CudaEngine(lower(Dense(), (2, 3, 3)), "float32")
