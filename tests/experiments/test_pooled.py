"""`python -m experiments.pooled`: the ResNet without and with its pools, at a size that shows that all works."""

from __future__ import annotations

from pathlib import Path

import pytest

from cnngp import GPClassifier, zoo
from cnngp.paper import table1
from cnngp.paper.setting import Setting
from experiments import pooled
from helpers.experiments import cell, digits_in_three

DATA = digits_in_three(40, 20, 30)


def test_every_pool_has_a_row_beside_the_dense_layer(tmp_path: Path) -> None:
    told: list[str] = []
    here = Setting(tmp_path, device="cpu", say=lambda name, text: told.append(f"{name}: {text}"))
    plan = pooled.PooledPlan(depth=8, pools=(2,), train=40, validation=20, test=30)
    found = pooled.run(here, plan, DATA)
    for name, net in (
        ("dense layer", zoo.resnet(8)),
        ("pool of 2 × 2", zoo.resnet(8, pool=2)),
        ("global pool", zoo.resnet(8, pool="global")),
    ):
        clf = GPClassifier(net, device="cpu").fit(DATA.X, DATA.y)
        expected = {"test": 100 * (1 - clf.score(DATA.X_test, DATA.y_test)), "leave-one-out": 100 * clf.loo_error_}
        for quantity, value in expected.items():
            assert cell(found, f"ResNet-8 GP, {name}", quantity)["ours"] == pytest.approx(value)
    assert told[0].startswith(f"plan: {60 * 59 // 2 + 60 * 30:,} pairs for each network, about: resnet ")
    assert all(r["published"] is None for r in found["rows"])


def test_at_full_size_the_published_errors_stand_beside_ours() -> None:
    plain, *pools = pooled.FULL.cases()
    paper = table1.paper_cases()[-1]
    assert (plain.network, plain.validation, plain.test) == (paper.network, paper.validation, paper.test)
    assert plain.label == paper.label  # so that the piece of table1 is used
    assert [(case.network, case.test) for case in pools] == [(zoo.resnet(32, pool=p), None) for p in (2, 4, "global")]  # type: ignore[arg-type]
