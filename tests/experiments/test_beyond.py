"""`python -m experiments.beyond`: the choice by leave-one-out, the fit of the best, and what is told beforehand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cnngp import AvgPool, Conv, GPClassifier, zoo
from cnngp.paper import table1
from cnngp.paper.setting import Setting
from experiments import beyond
from helpers.experiments import digits_in_three

PLAN = beyond.BeyondPlan(
    train=120,
    validation=60,
    test=80,
    chosen_on=60,
    candidates={
        "pooled": beyond.pooled(Conv(3, weight_var=2.0), AvgPool(3, stride=1)),
        "dense": zoo.dense_nngp(1),
    },
)


DATA = digits_in_three(200, 100, 150)


def test_the_best_by_leave_one_out_is_fitted(tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []
    here = Setting(tmp_path, device="cpu", say=lambda name, text: told.append((name, text)))
    found = beyond.run(here, PLAN, DATA)
    choice = found["details"]["choice"]["networks"]
    best = min(choice, key=lambda name: choice[name]["loo_log_loss"])
    assert found["details"]["chosen"] == best
    # The choice written out: the same images, the same exact GP.
    few = np.sort(np.random.default_rng(0).choice(120, 60, replace=False))
    assert PLAN.candidates is not None
    clf = GPClassifier(PLAN.candidates[best], device="cpu").fit(DATA.X[few], DATA.y[few])
    right = clf.loo_probabilities_[np.arange(60), DATA.y[few]]
    assert choice[best]["loo_log_loss"] == pytest.approx(-np.log(right).mean())
    # And the fit, which the test images are asked of once.
    clf = GPClassifier(PLAN.candidates[best], device="cpu").fit(DATA.X[:120], DATA.y[:120])
    ours = {r["quantity"]: r["ours"] for r in found["rows"] if r["result"] == "pooled CNN GP"}
    assert ours["test"] == pytest.approx(100 * (1 - clf.score(DATA.X_test[:80], DATA.y_test[:80])))
    assert ours["leave-one-out"] == pytest.approx(100 * clf.loo_error_)
    # Told before the first piece: 180 images with each other and with 80 test images.
    assert told[0][0] == "plan"
    assert f"{180 * 179 // 2 + 180 * 80:,} pairs" in told[0][1]
    pieces = [p.name for p in here.done]
    again = Setting(tmp_path, device="cpu")
    assert beyond.run(again, PLAN, DATA)["rows"] == found["rows"]
    assert [p.name for p in again.done] == pieces
    assert all(p.reused for p in again.done)


def test_long_kernels_are_kept_tile_by_tile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that dies in its fits computes no kernel again."""
    monkeypatch.setattr(beyond, "LONG", 0.0)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    whole = beyond.run(Setting(tmp_path / "whole", device="cpu"), PLAN, DATA)
    with monkeypatch.context() as patch:
        patch.setattr(table1, "fits", killed)
        with pytest.raises(KeyboardInterrupt):
            beyond.run(Setting(tmp_path / "killed", device="cpu"), PLAN, DATA)
    stores = sorted(p.name for p in (tmp_path / "killed" / "stores").iterdir())
    assert len(stores) == 2
    monkeypatch.setattr("cnngp.kernel.kernel.Kernel.__call__", killed)
    found = beyond.run(Setting(tmp_path / "killed", device="cpu"), PLAN, DATA)
    assert [r["ours"] for r in found["rows"]] == [r["ours"] for r in whole["rows"]]


def test_every_candidate_is_cheap_enough_and_has_a_fast_path_on_cards() -> None:
    from cnngp.kernel.engines.cuda.cuda_source import generate
    from cnngp.kernel.program import lower

    for name, net in beyond.candidates().items():
        assert net.shapes((1, 28, 28)).elements <= 70_000, name
        assert generate(lower(net, (1, 28, 28)), "float32").path == "sheets", name
