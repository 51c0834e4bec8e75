"""`python -m experiments.…` at a size for tests: kernels beside the paper's, CIFAR-10, and the time of a whole run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments.command import commands
from sklearn.gaussian_process.kernels import RBF

from cnngp import AvgPool, Conv, Dense, GPClassifier, Kernel, ReLU, Sequential, datasets, zoo
from cnngp.cli import run
from cnngp.common.errors import DatasetError
from cnngp.datasets import preparation, sets
from cnngp.paper import setting, table1
from cnngp.paper.setting import Setting
from experiments import baselines, beyond, cifar10, pooled, timings, whole_run
from helpers.experiments import cell, digits_in_three
from helpers.idx_files import write_as_fashion_mnist

DATA = digits_in_three(200, 100, 500)


def errors(net: Any, train: int, test: int) -> dict[str, Any]:
    """Percent of wrong predictions of a fit of its own."""
    clf = GPClassifier(net, device="cpu").fit(DATA.X[:train], DATA.y[:train])
    wrong = 1 - clf.score(DATA.X_test[:test], DATA.y_test[:test])
    return {"test": pytest.approx(100 * wrong), "leave-one-out": pytest.approx(100 * clf.loo_error_)}


def test_baselines_are_the_best_of_a_few_networks_and_the_most_likely_rbf_kernel(tmp_path: Path) -> None:
    plan = baselines.BaselinesPlan(200, 100, 500, baselines.DENSE[1:9:7], chosen_on=40, lengthscale_on=120)
    found = baselines.run(Setting(tmp_path, device="cpu"), plan, DATA)
    choice = found["details"]["networks"]["Dense NNGP"]["choice"]
    few = [GPClassifier(baselines._dense(c), device="cpu").fit(DATA.X[:40], DATA.y[:40]) for c in plan.dense]
    wrong = [100 - 100 * clf.score(DATA.X_validation, DATA.y_validation) for clf in few]
    assert choice["validation_errors"] == pytest.approx(wrong)
    best = choice["candidates"][int(np.argmin(wrong))]
    assert f"hidden layers {best[0]}, {best[3]}" in cell(found, "Dense NNGP", "test")["note"]
    assert cell(found, "Dense NNGP", "test")["published"] == 1.21
    lengthscale = found["details"]["networks"]["RBF GP"]["lengthscale"]
    X = DATA.X.reshape(200, -1).astype(float)
    clf = GPClassifier().fit(y=DATA.y, K=RBF(lengthscale)(X))
    assert cell(found, "RBF GP", "leave-one-out")["ours"] == pytest.approx(100 * clf.loo_error_)

    def log_likelihood(lengthscale: float) -> float:
        """Of the targets of the first 120 images, with the most likely amplitude."""
        return GPClassifier().fit(y=DATA.y[:120], K=RBF(lengthscale)(X[:120])).log_marginal_likelihood_

    assert log_likelihood(lengthscale) > max(log_likelihood(lengthscale * factor) for factor in (0.3, 0.9, 1.1))


NETS = {"pooled": beyond.pooled(Conv(3, weight_var=2.0), AvgPool(3, stride=1)), "dense": zoo.dense_nngp(1)}
PLAN = beyond.BeyondPlan(train=120, validation=60, test=80, chosen_on=60, candidates=NETS)


def test_beyond_fits_the_best_by_leave_one_out_and_keeps_long_kernels_tile_by_tile(tmp_path: Path, monkeypatch: Any):
    found = beyond.run(Setting(tmp_path, device="cpu"), PLAN, DATA)
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

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    # A run that dies in its fits computes no kernel again.
    monkeypatch.setattr(beyond, "LONG", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(table1, "fits", killed)
        with pytest.raises(KeyboardInterrupt):
            beyond.run(Setting(tmp_path / "killed", device="cpu"), PLAN, DATA)
    monkeypatch.setattr("cnngp.kernel.kernel.Kernel.__call__", killed)
    resumed = beyond.run(Setting(tmp_path / "killed", device="cpu"), PLAN, DATA)
    assert [r["ours"] for r in resumed["rows"]] == [r["ours"] for r in found["rows"]]


def test_every_pool_has_a_row_beside_the_dense_layer(tmp_path: Path) -> None:
    here = Setting(tmp_path, device="cpu")
    found = pooled.run(here, pooled.PooledPlan(depth=8, pools=(2,), train=40, validation=20, test=30), DATA)
    nets = {"dense layer": zoo.resnet(8), "pool of 2 × 2": zoo.resnet(8, pool=2)}
    for name, net in (nets | {"global pool": zoo.resnet(8, pool="global")}).items():
        expected = errors(net, 40, 30)
        assert {q: cell(found, f"ResNet-8 GP, {name}", q)["ours"] for q in expected} == expected


def test_cifar10_of_another_length_or_with_other_labels_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(sets, "CIFAR_IMAGES", 12)
    (tmp_path / "cifar10").mkdir()
    other_labels = b"\x0b" + bytes(12 * 3073 - 1)
    for content, message in ((bytes(99), "has 99 bytes; a batch of"), (other_labels, "labels up to 11")):
        (tmp_path / "cifar10" / "data_batch_1.bin").write_bytes(content)
        with pytest.raises(DatasetError, match=message):
            sets.original("cifar10", tmp_path)


def test_the_command_cifar10_from_images_to_the_table(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 18)  # one noisy colour a class, so that a few images are enough
    X = (0.16 * np.eye(3)[y][:, :, None, None] + rng.normal(0.5, 0.1, (18, 3, 32, 32))).astype(np.float32)
    images = datasets.Dataset("cifar10", X[:12], y[:12], X[12:], y[12:])
    monkeypatch.setattr(setting, "load", lambda name, split, data: images)
    # A Myrtle network's variances take half a second an image on a processor; the recipe is the same with another.
    net = Sequential(Conv(3), ReLU(), AvgPool(4), Dense())
    monkeypatch.setattr(cifar10, "myrtle", lambda depth: net)
    monkeypatch.setattr(cifar10, "QUICK", cifar10.CifarPlan(depth=5, train=12, test=6))
    monkeypatch.setattr(cifar10, "LONG", 0.0)  # with stores, as the whole set
    words = ["--quick", "--device", "cpu", "--out", str(tmp_path / "out"), "--json"]
    assert run(words, commands("cifar10", ("cifar10",))) == 0
    printed = capsys.readouterr()
    assert f"{'plan':<22} {3 * (6 * 12 + 12 * 11 // 2):,} pairs of Myrtle-5, about" in printed.err
    rows = json.loads(printed.out)["rows"]
    # The recipe written out.
    white = preparation.as_preparation("zca").fit(X[:12])
    X, T = white.transform(X[:12]), white.transform(X[12:])
    kernel, symmetric = (Kernel(net, device="cpu", symmetry=symmetry) for symmetry in (None, "flip"))
    for name, K, K_test in (
        ("Myrtle-5 GP", kernel(X), kernel(T, X)),
        ("Myrtle-5 GP, flips", symmetric(X), symmetric(T, X)),
    ):
        clf = GPClassifier(noise="loo").fit(y=y[:12], K=K)
        error = 100 * float((clf.predict(K=K_test) != y[12:]).mean())
        of_it = {r["quantity"]: r["ours"] for r in rows if r["result"] == name}
        assert of_it == {"test": pytest.approx(error), "leave-one-out": pytest.approx(100 * clf.loo_error_)}
        assert error < 50.0


def test_timings_from_the_files_to_the_errors(tmp_path: Path) -> None:
    write_as_fashion_mnist(tmp_path / "data" / "fashion_mnist")
    setting = Setting(tmp_path, device="cpu", data=tmp_path / "data")
    case = table1.Case("resnet", "ResNet GP", zoo.resnet(8))
    sizes = table1.Table1Plan(100, 40, 60, (case,))
    data = setting.dataset("fashion_mnist", "paper")
    found = timings.run(setting, timings.TimingsPlan(sizes, "fashion_mnist", depth=8), data)
    whole, piece = found["details"]["whole_run"], found["details"]["networks"]["ResNet GP"]
    for key in ("validation_error", "test_error", "loo_error"):
        assert whole[key] == piece[key]
    assert whole["test_error"] < 40
    assert whole["pairs"] == 100 * 99 // 2 + 100 * 100
    timing = whole["timing"]
    parts = [seconds for part, seconds in timing.items() if part not in ("whole", "leave_one_out")]
    assert sum(parts) <= timing["whole"] < whole["seconds"]
    assert cell(found, "ResNet GP", "kernels")["ours"] == piece["kernel_seconds"]
    assert cell(found, "kernels", "seconds")["published"] == 13_200
    assert [p.name for p in timings.draw(found, tmp_path)] == ["timings.png", "timings.svg"]
    json.dumps(found["details"])


@pytest.mark.gpu
def test_a_whole_run_on_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_as_fashion_mnist(tmp_path / "fashion_mnist")
    monkeypatch.setenv("CNNGP_DATA", str(tmp_path))
    request = {"data": "fashion_mnist", "depth": 8, "threads": None, "sizes": [100, 40, 60]}
    card, cpu = (whole_run.whole_run({**request, "device": device}) for device in ("cuda", "cpu"))
    assert card["test_error"] == pytest.approx(cpu["test_error"], abs=1.7)  # one image of 60 on the border
