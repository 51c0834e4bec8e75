"""A tiny Figure 3: its numbers against plain counting, kept pieces, and the figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnngp import datasets, zoo
from cnngp.paper import figure3
from cnngp.paper.figure3 import Figure3Plan
from cnngp.paper.setting import Setting
from cnngp.paper.sparse import Training, fit

PLAN = Figure3Plan(train=400, test=300, inducing=80, network=zoo.small_cnn(), epochs=8, batch_size=100)
DATA = datasets.digits()


pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("figure3")


@pytest.fixture(scope="module")
def found(folder: Path) -> Any:
    return figure3.run(Setting(folder, quick=True, device="cpu", threads=1), PLAN, DATA)


def test_numbers_against_counting(found: Any) -> None:
    training = Training(inducing=80, epochs=8, batch_size=100)
    P = fit(zoo.small_cnn(), DATA.X[:400], DATA.y[:400], training, "cpu", 1).predict_proba(DATA.X_test[:300])
    y = DATA.y_test[:300]
    values = found["details"]["curves"]["resnet"]
    assert values["error"] == pytest.approx(100 * np.mean(P.argmax(1) != y))
    assert values["nll"] == pytest.approx(-np.mean(np.log(P[np.arange(300), y])))
    last = P.max(1) >= 0.95
    bins = values["bins"]
    assert bins["count"][-1] == last.sum()
    assert bins["accuracy"][-1] == pytest.approx(np.mean(P.argmax(1)[last] == y[last]))
    assert sum(bins["count"]) == values["test"] == 300


def test_every_curve_is_sane_and_stands_beside_the_published_error(found: Any) -> None:
    assert (figure3.FULL.train, figure3.FULL.test, figure3.FULL.inducing) == (50_000, 10_000, 1_000)  # the paper's
    rows = {(r["result"], r["quantity"]): r for r in found["rows"]}
    errors = [rows[case.name, "test error"] for case in figure3.CASES]
    assert [r["published"] for r in errors] == [2.4, 3.4, None]
    assert all(0 < r["ours"] < 15 for r in errors)  # of ten classes; guessing gives 90
    exact, sparse = errors[2]["ours"], errors[0]["ours"]
    assert exact <= sparse + 2.0  # 80 inducing points do not beat all 400 images, but for noise
    for case in figure3.CASES:
        curve = found["details"]["curves"][case.label]
        assert 0 <= curve["ece"] < 0.2
        assert curve["hardware"]
    assert found["details"]["curves"]["rbf"]["lengthscale"] > 0
    elbo = found["details"]["curves"]["resnet"]["elbo"]
    assert len(elbo) == 8
    assert elbo[-1] > elbo[0]


def test_the_written_numbers_alone_make_the_figure(found: Any, folder: Path) -> None:
    paths = figure3.draw(json.loads(json.dumps({"details": found["details"]})), folder)
    assert [p.name for p in paths] == ["figure3.png", "figure3.svg"]
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in paths[1].read_bytes()


def test_finished_pieces_are_kept(found: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(figure3, "_sparse", refuse)
    monkeypatch.setattr(figure3, "_exact", refuse)
    setting = Setting(folder, quick=True, device="cpu", threads=1)
    again = figure3.run(setting, PLAN, DATA)
    assert again["rows"] == found["rows"]
    assert all(piece.reused for piece in setting.done)
    for changed in (Figure3Plan(**(PLAN.__dict__ | {"inducing": 81})), Figure3Plan(**(PLAN.__dict__ | {"train": 399}))):
        with pytest.raises(AssertionError, match="computed again"):
            figure3.run(setting, changed, DATA)
