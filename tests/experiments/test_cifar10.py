"""`python -m experiments.cifar10` from small made files in CIFAR-10's format, to the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments.command import commands

from cnngp import AvgPool, Conv, Dense, GPClassifier, Kernel, ReLU, Sequential, datasets
from cnngp.cli import run
from cnngp.common.errors import DatasetError
from cnngp.datasets import preparation, sets
from cnngp.paper import results
from cnngp.paper.setting import Setting
from experiments import cifar10

NAMES = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
COMMANDS = commands("cifar10", ("cifar10",))
PLAN = cifar10.CifarPlan(depth=5, train=12, test=6)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder above cifar10/: six batches of 12 images, one noisy colour a class, so that a few are enough."""
    monkeypatch.setattr(sets, "CIFAR_IMAGES", 12)
    folder = tmp_path / "data" / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for seed, name in enumerate(NAMES):
        rng = np.random.default_rng(seed)
        y = rng.integers(0, 3, 12)
        X = 40 * np.eye(3)[y][:, :, None, None] + rng.normal(120, 25, (12, 3, 32, 32))
        records = np.concatenate([y[:, None], X.clip(0, 255).reshape(12, -1)], axis=1).astype(np.uint8)
        (folder / f"{name}.bin").write_bytes(records.tobytes())
    return tmp_path / "data"


def test_batches_of_another_length_or_with_other_labels_are_refused(files: Path) -> None:
    batch = files / "cifar10" / "cifar-10-batches-bin" / "data_batch_1.bin"
    other_labels = b"\x0b" + bytes(12 * 3073 - 1)
    for content, message in ((bytes(99), "has 99 bytes; a batch of"), (other_labels, "labels up to 11")):
        batch.write_bytes(content)
        with pytest.raises(DatasetError, match=message):
            sets.original("cifar10", files)


def test_the_command_from_files_to_the_table(files: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    # A Myrtle network's variances take half a second an image on a processor; the recipe is the same with another.
    net = Sequential(Conv(3), ReLU(), AvgPool(4), Dense())
    monkeypatch.setattr(cifar10, "myrtle", lambda depth: net)
    monkeypatch.setattr(cifar10, "QUICK", PLAN)
    monkeypatch.setattr(cifar10, "LONG", 0.0)  # with stores, as the whole set
    out = tmp_path / "out"
    words = ["--quick", "--device", "cpu", "--data", str(files), "--out", str(out), "--json"]
    assert run(words, COMMANDS) == 0
    printed = capsys.readouterr()
    pairs = 3 * (6 * 12 + 12 * 11 // 2)
    assert f"{'plan':<22} {pairs:,} pairs of Myrtle-5, about" in printed.err
    assert "GB of memory and" in printed.err
    rows = json.loads(printed.out)["rows"]
    doc = results.read(out / "cifar10.json")
    assert [r["ours"] for r in rows] == [r["ours"] for r in doc["rows"]]
    assert all(r["published"] is None for r in rows)  # of 50,000 images, not of these
    # The recipe written out.
    data = datasets.load("cifar10", data=files)
    white = preparation.as_preparation("zca").fit(data.X[:12])
    X, T = white.transform(data.X[:12]), white.transform(data.X_test[:6])
    kernel, symmetric = (Kernel(net, device="cpu", symmetry=symmetry) for symmetry in (None, "flip"))
    for name, K, K_test in (
        ("Myrtle-5 GP", kernel(X), kernel(T, X)),
        ("Myrtle-5 GP, flips", symmetric(X), symmetric(T, X)),
    ):
        clf = GPClassifier(noise="loo").fit(y=data.y[:12], K=K)
        error = 100 * float((clf.predict(K=K_test) != data.y_test[:6]).mean())
        of_it = {r["quantity"]: r["ours"] for r in rows if r["result"] == name}
        assert of_it == {"test": pytest.approx(error), "leave-one-out": pytest.approx(100 * clf.loo_error_)}
        assert error < 50.0
    # Run again, nothing is computed.
    assert run(words, COMMANDS) == 0
    assert capsys.readouterr().err.count("kept from an earlier run") == 2


def test_the_plan_for_the_whole_set_is_shown_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """50,000 images: 5.2 billion pairs, about five hours on the card that was measured, and 30 GB."""
    told: list[str] = []
    here = Setting(tmp_path, device="cpu", say=lambda name, text: told.append(f"{name}: {text}"))
    monkeypatch.setattr(Setting, "actual_device", "cuda")
    monkeypatch.setattr("cnngp.common.memory.require", lambda *_: None)
    data = datasets.Dataset("cifar10", np.zeros((1, 3, 32, 32), np.float32), np.zeros(1, int), *(np.zeros((1, 1)),) * 2)
    cifar10._tell_plan(here, cifar10.FULL, data)
    assert told[0].startswith("plan: 5,249,925,000 pairs of Myrtle-10, about 5 h 6 min here, 30.0 GB of memory")
    assert 100 - cifar10.PUBLISHED["plain"] == pytest.approx(87.5)
    assert "flips" not in cifar10.PUBLISHED  # the published one is of another nonlinearity
