"""The generated CUDA as text: a pure function of the program, of bounded length, that compiles for a card."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from cnngp import (
    AvgPool,
    Conv,
    Dense,
    Elementwise,
    GlobalAvgPool,
    LeakyReLU,
    Network,
    Rbf,
    ReLU,
    Sequential,
    zoo,
)
from cnngp.kernel.engines.cuda.cuda_source import CudaSource, generate, generate_gradient
from cnngp.kernel.program import Kind, lower
from cnngp.kernel.program.reverse import reverse
from cnngp.kernel.series.packed import SeriesTables
from helpers.cuda_cases import NETWORKS, POOLED

C: list[Network] = [Conv(3), ReLU()]
MYRTLE = Sequential(*C * 3, AvgPool(2), *C * 3, AvgPool(2), *C * 3, GlobalAvgPool(), Dense())
EVERY = (
    NETWORKS
    | POOLED
    | {
        "resnet(32)": (zoo.resnet(32), (1, 28, 28)),
        "tanh": (Sequential(Conv(3), Elementwise("tanh"), AvgPool(2), Dense()), (1, 6, 6)),
    }
)
NO_SLOPE = {"step", "signs"}


def source_of(name: str, kind: Kind | str, dtype: str, path: str | None = None) -> CudaSource:
    """The source of a kernel of either kind, or of a "gradient" to the images."""
    net, shape = EVERY[name]
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
            for name in EVERY
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
def test_there_are_no_empty_arrays(kind: str) -> None:
    """CUDA has none, though g++ does."""
    for name in EVERY:
        if kind == "nngp" or name not in NO_SLOPE:
            assert not re.search(r"\[\] = \{\s*\}", source_of(name, kind, "float32").text), name


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


@pytest.mark.parametrize("name", ["resnet(32)", "two pools", "3-D"])
def test_source_is_a_pure_function(name: str) -> None:
    one, again = (source_of(name, "nngp", "float32") for _ in range(2))
    assert one.content == again.content


def test_source_of_registers_names_the_layers() -> None:
    program = lower(zoo.resnet(14), (1, 28, 28))
    text = generate(program, "float32").text
    for a in program.activations:
        assert a.place.split(".")[0] in text
    assert "ReLU()" in text


def test_source_of_a_bare_function_does_not_depend_on_where_it_lies() -> None:
    def text() -> str:
        net = Sequential(Dense(), Elementwise(lambda x: np.tanh(x)), Dense())
        program = lower(net, (3,))
        return generate(program, "float32", series=SeriesTables(program, np.dtype("float32")).rows(None)).text

    assert len({text() for _ in range(3)}) == 1


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
        assert one.digest != other.digest


def test_a_kernel_has_nothing_of_the_tangent_kernel() -> None:
    for name in ("resnet", "3-D", "LeNet"):
        plain, both = (source_of(name, kind, "float32") for kind in ("nngp", "ntk"))
        assert not re.search("theta_mirror|_slope", plain.text)
        assert re.search("theta_mirror", both.text)
        assert plain.digest != both.digest
