"""The examples run and give what their text says; benchmarks can be imported, and a campaign of faults finds none."""

import importlib
import json
import runpy
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import small_data

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def main_of(name: str) -> Callable[..., Any]:
    """The function of an example that does all of it."""
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]


pytestmark = pytest.mark.usefixtures("one_torch_thread")


def test_clean_labels(capsys: pytest.CaptureFixture[str]) -> None:
    found = main_of("clean_labels")()
    assert found["precision"] == 1.0
    assert found["after"] < found["before"] == pytest.approx(0.012)
    assert "training image" in capsys.readouterr().out


def test_few_labels(tmp_path: Path) -> None:
    errors, next_ = main_of("few_labels")(tmp_path, seeds=1, sizes=(50, 100), rounds=8)
    assert all(gp < cnn for gp, cnn in errors.values())
    assert next_["asked for"][-1] < 0.025 < next_["at random"][-1]
    assert (tmp_path / "few_labels.png").stat().st_size > 10_000


def test_features() -> None:
    """Features are better than pixels where labels are few, and wrong labels stand out."""
    found = main_of("features")(sizes=(40,))
    assert found["features"] < found["pixels"] - 0.01
    assert found["suspects"] >= 4


def test_sets(capsys: pytest.CaptureFixture[str]) -> None:
    """Ten draws have a standard error of about 1.2 %; the numbers of one fit are those that the tutorial shows."""
    found = main_of("sets")(draws=10)
    assert found["one draw"] == pytest.approx(0.966)
    assert found["right"] == pytest.approx(0.9, abs=0.04)
    assert found["spoilt"] == pytest.approx(0.9, abs=0.04)
    assert found["none"] > 0.9
    assert 0.8 < found["interval"] < 0.97
    assert "image 8: 3 or 8 (it is 8)" in capsys.readouterr().out


def test_million_images() -> None:
    found = main_of("million_images")()
    assert found["tiles that were kept"] == 14
    assert found["exact"] < 0.02
    assert found["inducing"] < 0.02
    assert found["hours"] == pytest.approx(1.9, abs=0.1)


def test_from_pytorch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_of("from_pytorch")() < 0.15
    assert "block2.shortcut" in capsys.readouterr().out


def test_check_the_limit() -> None:
    assert main_of("check_the_limit")() == ["agrees", "differs"]


def test_trained_ensembles(capsys: pytest.CaptureFixture[str]) -> None:
    """Training takes the networks from chance to few errors, and they differ less and less."""
    found = main_of("trained_ensembles")()
    assert found["errors"][0] > 0.8
    assert found["errors"][-1] == pytest.approx(0.09)
    assert found["spread"][0] == pytest.approx(found["start"])
    assert (np.diff(found["spread"]) < 0).all()
    assert "error   9.0%" in capsys.readouterr().out


def test_finite_networks() -> None:
    # 2,000 networks: the standard error of a variance is √(2/2000), some 3 %, and finite width adds to it.
    assert main_of("finite_networks")() < 0.25


def test_with_gpytorch() -> None:
    with warnings.catch_warnings():  # a dependency of gpytorch still compiles with torch.jit, which torch deprecates
        warnings.simplefilter("ignore", DeprecationWarning)
        pytest.importorskip("gpytorch")
    found = main_of("with_gpytorch")()
    assert found["variances too"] < found["scale and noise"] < 1.6


MODULES = [path for folder in ("benchmarks", "experiments") for path in sorted((ROOT / folder).rglob("[!_]*.py"))]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_benchmarks_and_experiments_can_be_imported(path: Path) -> None:
    """What measures the figures of the pages runs for minutes, and is not run here; at least its names are there."""
    if path.stem == "neural_tangents_worker":
        pytest.importorskip("jax")
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    assert Path(module.__file__ or "") == path


@pytest.mark.slow
def test_every_method_of_few_images_gives_a_row(tmp_path: Path) -> None:
    words = "--data digits --sizes 60 --test 100 --device cpu --steps 100 --seeds 1 --json"
    small_data.main([*words.split(), str(tmp_path / "rows.json")])
    rows = {row["method"]: row for row in json.loads((tmp_path / "rows.json").read_text())}
    assert list(rows) == list(small_data.METHODS)
    assert all(row["error"] < (0.2 if name.startswith("GP") else 0.8) for name, row in rows.items())
    assert rows["GP, default"]["error"] < rows["RBF SVM"]["error"]


def test_a_campaign_of_faults_prints_a_table() -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.faults",
        "--minutes",
        "0.03",
        "--seed",
        "3",
        "--only",
        "in a model file",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| one bit flipped in a model file |" in done.stdout
    assert "seed 3" in done.stdout
