"""`python -m experiments.baselines`: a fully connected network, an RBF kernel, and another set of images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from sklearn.gaussian_process.kernels import RBF

from cnngp import GPClassifier, zoo
from cnngp.paper import table1
from cnngp.paper.setting import Setting
from cnngp.paper.table1 import SplitImages
from experiments import baselines
from helpers.experiments import cell, digits_in_three
from helpers.idx_files import write_as_fashion_mnist

DATA = digits_in_three(200, 100, 500)
PLAN = baselines.BaselinesPlan(200, 100, 500, baselines.DENSE[1:9:7], chosen_on=40, lengthscale_on=120)


def test_the_best_of_a_few_networks_and_the_rbf_kernel(tmp_path: Path) -> None:
    found = baselines.run(Setting(tmp_path, device="cpu"), PLAN, DATA)
    choice = found["details"]["networks"]["Dense NNGP"]["choice"]
    few = [GPClassifier(baselines._dense(c), device="cpu").fit(DATA.X[:40], DATA.y[:40]) for c in PLAN.dense]
    assert choice["validation_errors"] == pytest.approx(
        [100 - 100 * clf.score(DATA.X_validation, DATA.y_validation) for clf in few]
    )
    best = choice["candidates"][int(np.argmin(choice["validation_errors"]))]
    assert f"hidden layers {best[0]}, {best[3]}" in cell(found, "Dense NNGP", "test")["note"]
    assert cell(found, "Dense NNGP", "test")["published"] == 1.21
    K = RBF(found["details"]["networks"]["RBF GP"]["lengthscale"])(DATA.X.reshape(200, -1).astype(float))
    clf = GPClassifier().fit(y=DATA.y, K=K)
    assert cell(found, "RBF GP", "leave-one-out")["ours"] == pytest.approx(100 * clf.loo_error_)


def test_the_kernel_is_scikit_learns_and_its_lengthscale_the_most_likely_one(tmp_path: Path) -> None:
    setting = Setting(tmp_path, device="cpu")
    images, y = DATA.X[:80], DATA.y[:80]
    X = images.reshape(80, -1).astype(np.float64)
    kernel = baselines.rbf(setting, 1.7, images.shape[1:])
    np.testing.assert_allclose(kernel(images, progress=False), RBF(1.7)(X), rtol=0, atol=1e-12)
    Y = np.where(y[:, None] == np.arange(10), 1.0, -1.0)

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
