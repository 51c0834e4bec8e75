"""The examples run and give what their text says; so do the benchmarks of faults and of few labels, on little."""

import importlib
import importlib.util
import json
import random
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from benchmarks import small_data
from benchmarks.faults.campaign import FOUND, REFUSED, SAME, Wrong, campaign, expect, refused, table

from cnngp.common.errors import StoreError

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pytestmark = pytest.mark.usefixtures("one_torch_thread")


def test_clean_labels(capsys: pytest.CaptureFixture[str]) -> None:
    found = _load("clean_labels").main()
    assert found["precision"] == 1.0
    assert found["after"] < found["before"] == pytest.approx(0.012)
    assert "training image" in capsys.readouterr().out


def test_few_labels(tmp_path: Path) -> None:
    errors, next_ = _load("few_labels").main(tmp_path, seeds=1, sizes=(50, 100), rounds=8)
    assert all(gp < cnn for gp, cnn in errors.values())
    assert next_["asked for"][-1] < 0.025 < next_["at random"][-1]
    assert (tmp_path / "few_labels.png").stat().st_size > 10_000


def test_features() -> None:
    """Features are better than pixels where labels are few, and wrong labels stand out."""
    found = _load("features").main(sizes=(40,))
    assert found["features"] < found["pixels"] - 0.01
    assert found["suspects"] >= 4


def test_sets(capsys: pytest.CaptureFixture[str]) -> None:
    """Ten draws have a standard error of about 1.2 %; the numbers of one fit are those that the tutorial shows."""
    found = _load("sets").main(draws=10)
    assert found["one draw"] == pytest.approx(0.966)
    assert found["right"] == pytest.approx(0.9, abs=0.04)
    assert found["spoilt"] == pytest.approx(0.9, abs=0.04)
    assert found["none"] > 0.9
    assert 0.8 < found["interval"] < 0.97
    assert "image 8: 3 or 8 (it is 8)" in capsys.readouterr().out


def test_million_images() -> None:
    found = _load("million_images").main()
    assert found["tiles that were kept"] == 14
    assert found["exact"] < 0.02
    assert found["inducing"] < 0.02
    assert found["hours"] == pytest.approx(1.9, abs=0.1)


def test_from_pytorch(capsys: pytest.CaptureFixture[str]) -> None:
    assert _load("from_pytorch").main() < 0.15
    assert "block2.shortcut" in capsys.readouterr().out


def test_check_the_limit() -> None:
    assert _load("check_the_limit").main() == ["agrees", "differs"]


def test_trained_ensembles(capsys: pytest.CaptureFixture[str]) -> None:
    """Training takes the networks from chance to few errors, and they differ less and less."""
    found = _load("trained_ensembles").main()
    assert found["errors"][0] > 0.8
    assert found["errors"][-1] == pytest.approx(0.09)
    assert found["spread"][0] == pytest.approx(found["start"])
    assert (np.diff(found["spread"]) < 0).all()
    assert "error   9.0%" in capsys.readouterr().out


def test_finite_networks() -> None:
    # 2,000 networks: the standard error of a variance is √(2/2000), some 3 %, and finite width adds to it.
    assert _load("finite_networks").main() < 0.25


def test_with_gpytorch() -> None:
    with warnings.catch_warnings():  # a dependency of gpytorch still compiles with torch.jit, which torch deprecates
        warnings.simplefilter("ignore", DeprecationWarning)
        pytest.importorskip("gpytorch")
    found = _load("with_gpytorch").main()
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
def test_every_method_gives_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "rows.json"
    small = ["--data", "digits", "--sizes", "60", "--test", "100", "--device", "cpu"]
    arguments = [*small, "--steps", "100", "--seeds", "1"]
    small_data.main([*arguments, "--json", str(written)])
    rows = {row["method"]: row for row in json.loads(written.read_text())}
    assert list(rows) == list(small_data.METHODS)
    assert all(row["error"] < 0.2 for name, row in rows.items() if name.startswith("GP"))
    assert all(row["error"] < 0.8 for row in rows.values())
    assert rows["GP, default"]["chosen"].startswith("pooled_cnn-large-halved0")
    assert rows["GP, default"]["error"] < rows["RBF SVM"]["error"]
    assert "ResNet, tuned" in capsys.readouterr().out


# ---- the campaign of faults: it runs, judges, and says when something is wrong ---------------------------------------


class Fault:
    name = "a fault"
    promise = "none"

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, rng: random.Random, folder: Path) -> str:
        assert not list(folder.iterdir())
        self.times += 1
        expect(self.times != 2, "a wrong number")
        if self.times == 3:
            raise KeyError("raw")
        return (SAME, FOUND, REFUSED)[self.times % 3]


def test_a_campaign_counts_what_came_of_its_faults() -> None:
    said: list[str] = []
    [row] = campaign([Fault()], 0.01, 1, said.append)
    assert row.outcomes[FOUND] >= 1
    assert [text.split(": ")[1] for text in row.wrong] == ["Wrong", "KeyError"]
    assert len(said) == 2
    assert table([row]).splitlines()[-1].endswith("| 2 |")


def test_an_error_is_a_refusal_only_if_it_is_one_line_of_ours() -> None:
    def fail(error: Exception) -> None:
        raise error

    assert refused(lambda: 3) == 3
    assert refused(lambda: fail(StoreError("it is full"))) is None
    with pytest.raises(Wrong, match="not one line"):
        refused(lambda: fail(StoreError("two\nlines")))
    with pytest.raises(KeyError):
        refused(lambda: fail(KeyError("raw")))


def test_the_command_prints_a_table() -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.faults",
        *["--minutes", "0.03", "--seed", "3", "--only"],
        "in a model file",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| one bit flipped in a model file |" in done.stdout
    assert "seed 3" in done.stdout
