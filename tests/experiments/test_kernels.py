"""`python -m experiments.baselines`, `.beyond` and `.pooled`: kernels beside the paper's, against separate fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.gaussian_process.kernels import RBF

from cnngp import AvgPool, Conv, GPClassifier, zoo
from cnngp.kernel.engines.cuda.cuda_source import generate
from cnngp.kernel.program import lower
from cnngp.paper import table1
from cnngp.paper.setting import Setting
from cnngp.paper.table1 import SplitImages
from experiments import baselines, beyond, pooled
from helpers.experiments import cell, digits_in_three
from helpers.idx_files import write_as_fashion_mnist

DATA = digits_in_three(200, 100, 500)


def telling(folder: Path) -> tuple[Setting, list[str]]:
    """A setting, and what it says."""
    told: list[str] = []
    return Setting(folder, device="cpu", say=lambda name, text: told.append(f"{name}: {text}")), told


def errors(net: Any, train: int, test: int) -> dict[str, Any]:
    """Percent of wrong predictions of a fit of its own."""
    clf = GPClassifier(net, device="cpu").fit(DATA.X[:train], DATA.y[:train])
    wrong = 1 - clf.score(DATA.X_test[:test], DATA.y_test[:test])
    return {"test": pytest.approx(100 * wrong), "leave-one-out": pytest.approx(100 * clf.loo_error_)}


# ---- baselines -------------------------------------------------------------------------------------------------------


def test_the_best_of_a_few_networks_and_the_rbf_kernel(tmp_path: Path) -> None:
    plan = baselines.BaselinesPlan(200, 100, 500, baselines.DENSE[1:9:7], chosen_on=40, lengthscale_on=120)
    found = baselines.run(Setting(tmp_path, device="cpu"), plan, DATA)
    choice = found["details"]["networks"]["Dense NNGP"]["choice"]
    few = [GPClassifier(baselines._dense(c), device="cpu").fit(DATA.X[:40], DATA.y[:40]) for c in plan.dense]
    wrong = [100 - 100 * clf.score(DATA.X_validation, DATA.y_validation) for clf in few]
    assert choice["validation_errors"] == pytest.approx(wrong)
    best = choice["candidates"][int(np.argmin(wrong))]
    assert f"hidden layers {best[0]}, {best[3]}" in cell(found, "Dense NNGP", "test")["note"]
    assert cell(found, "Dense NNGP", "test")["published"] == 1.21
    K = RBF(found["details"]["networks"]["RBF GP"]["lengthscale"])(DATA.X.reshape(200, -1).astype(float))
    clf = GPClassifier().fit(y=DATA.y, K=K)
    assert cell(found, "RBF GP", "leave-one-out")["ours"] == pytest.approx(100 * clf.loo_error_)


def test_the_kernel_is_scikit_learns_and_its_lengthscale_the_most_likely_one(tmp_path: Path) -> None:
    setting, images, y = Setting(tmp_path, device="cpu"), DATA.X[:80], DATA.y[:80]
    X, Y = images.reshape(80, -1).astype(np.float64), np.where(y[:, None] == np.arange(10), 1.0, -1.0)
    kernel = baselines.rbf(setting, 1.7, images.shape[1:])
    np.testing.assert_allclose(kernel(images, progress=False), RBF(1.7)(X), rtol=0, atol=1e-12)

    def log_likelihood(lengthscale: float) -> float:
        K = RBF(lengthscale)(X)
        amplitude = np.mean(Y * np.linalg.solve(K, Y))
        return float(sum(stats.multivariate_normal(cov=amplitude * K).logpdf(Y[:, c]) for c in range(10)))

    best = baselines.most_likely_lengthscale(setting, images, y)
    grid = best * np.exp(np.linspace(-2.0, 0.9, 40))
    assert log_likelihood(best) >= max(map(log_likelihood, grid)) - 0.01 * abs(log_likelihood(best))
    assert log_likelihood(best) > max(log_likelihood(1.1 * best), log_likelihood(best / 1.1))


def test_fashion_mnist_stands_in_a_table_of_its_own(tmp_path: Path) -> None:
    write_as_fashion_mnist(tmp_path / "data" / "fashion_mnist")
    setting = Setting(tmp_path, device="cpu", data=tmp_path / "data")
    images = SplitImages.of(setting.dataset("fashion_mnist", "paper"), 100, 40, 60)
    details, rows = baselines.fashion(setting, [table1.Case("cnn", "CNN", zoo.small_cnn(), 0.7, 0.9)], images)
    assert set(details) == {"CNN"}
    assert {r["table"] for r in rows} == {"Fashion-MNIST, error in percent, 100 training images"}
    assert all(r["published"] is None for r in rows)


# ---- beyond ----------------------------------------------------------------------------------------------------------

NETS = {"pooled": beyond.pooled(Conv(3, weight_var=2.0), AvgPool(3, stride=1)), "dense": zoo.dense_nngp(1)}
PLAN = beyond.BeyondPlan(train=120, validation=60, test=80, chosen_on=60, candidates=NETS)


def test_the_best_by_leave_one_out_is_fitted_and_long_kernels_are_kept_tile_by_tile(tmp_path: Path, monkeypatch: Any):
    here, told = telling(tmp_path)
    found = beyond.run(here, PLAN, DATA)
    choice = found["details"]["choice"]["networks"]
    best = min(choice, key=lambda name: choice[name]["loo_log_loss"])
    assert found["details"]["chosen"] == best
    # The choice written out: the same images, the same exact GP.
    few = np.sort(np.random.default_rng(0).choice(120, 60, replace=False))
    clf = GPClassifier(NETS[best], device="cpu").fit(DATA.X[few], DATA.y[few])
    right = clf.loo_probabilities_[np.arange(60), DATA.y[few]]
    assert choice[best]["loo_log_loss"] == pytest.approx(-np.log(right).mean())
    # And the fit, which the test images are asked of once.
    expected = errors(NETS[best], 120, 80)
    assert {quantity: cell(found, "pooled CNN GP", quantity)["ours"] for quantity in expected} == expected
    # Told before the first piece: 180 images with each other and with 80 test images.
    assert told[0].startswith("plan: ")
    assert f"{180 * 179 // 2 + 180 * 80:,} pairs" in told[0]
    again = Setting(tmp_path, device="cpu")
    assert beyond.run(again, PLAN, DATA)["rows"] == found["rows"]
    assert [(p.name, p.reused) for p in again.done] == [(p.name, True) for p in here.done]

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    # A run that dies in its fits computes no kernel again.
    monkeypatch.setattr(beyond, "LONG", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(table1, "fits", killed)
        with pytest.raises(KeyboardInterrupt):
            beyond.run(Setting(tmp_path / "killed", device="cpu"), PLAN, DATA)
    assert len(list((tmp_path / "killed" / "stores").iterdir())) == 2
    monkeypatch.setattr("cnngp.kernel.kernel.Kernel.__call__", killed)
    resumed = beyond.run(Setting(tmp_path / "killed", device="cpu"), PLAN, DATA)
    assert [r["ours"] for r in resumed["rows"]] == [r["ours"] for r in found["rows"]]


def test_every_candidate_is_cheap_enough_and_has_a_fast_path_on_cards() -> None:
    for name, net in beyond.candidates().items():
        assert net.shapes((1, 28, 28)).elements <= 70_000, name
        assert generate(lower(net, (1, 28, 28)), "float32").path == "sheets", name


# ---- pooled ----------------------------------------------------------------------------------------------------------


def test_every_pool_has_a_row_beside_the_dense_layer(tmp_path: Path) -> None:
    here, told = telling(tmp_path)
    found = pooled.run(here, pooled.PooledPlan(depth=8, pools=(2,), train=40, validation=20, test=30), DATA)
    nets = {"dense layer": zoo.resnet(8), "pool of 2 × 2": zoo.resnet(8, pool=2)}
    for name, net in (nets | {"global pool": zoo.resnet(8, pool="global")}).items():
        expected = errors(net, 40, 30)
        assert {q: cell(found, f"ResNet-8 GP, {name}", q)["ours"] for q in expected} == expected
    assert told[0].startswith(f"plan: {60 * 59 // 2 + 60 * 30:,} pairs for each network, about: resnet ")
    assert all(r["published"] is None for r in found["rows"])
    # At full size the published errors stand beside ours.
    plain, *pools = pooled.FULL.cases()
    paper = table1.paper_cases()[-1]
    assert (plain.network, plain.validation, plain.test) == (paper.network, paper.validation, paper.test)
    assert plain.label == paper.label  # so that the piece of table1 is used
    assert [(case.network, case.test) for case in pools] == [(zoo.resnet(32, pool=p), None) for p in (2, 4, "global")]  # type: ignore[arg-type]
