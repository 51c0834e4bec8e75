"""Known measurement errors of targets: amplitude, likelihood and predictions equal those of the joint density."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_normal

from cnngp import DataError, Dense, GPRegressor, Kernel, ReLU, Sequential
from cnngp.gp.checks import MatrixError
from cnngp.gp.exact import ExactGP

NET = Sequential(Dense(1.0, 0.1), ReLU(), Dense(1.0, 0.1), ReLU(), Dense())
RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 3))
K = np.asarray(Kernel(NET, device="cpu", dtype="float64", check=False)(X))
TRUTH = np.linalg.cholesky(50.0 * K + 1e-9 * np.eye(60)) @ RNG.standard_normal(60)
STD = np.exp(RNG.normal(-0.5, 1.0, 60))
Y = TRUTH + STD * RNG.standard_normal(60)
OLD, NEW = slice(0, 40), slice(40, 60)


def regressor(**options: Any) -> GPRegressor:
    return GPRegressor(NET, device="cpu", **{"dtype": "float64"} | options)


@pytest.mark.parametrize(("noise", "weight"), [(0.0, None), (0.3, None), (0.3, 1.0 + np.arange(40) % 3)])
def test_the_amplitude_is_the_likeliest_beside_the_errors(noise: float, weight: Any) -> None:
    own = noise / (np.ones(40) if weight is None else weight)

    def density(a: float) -> Any:
        return multivariate_normal(np.zeros(40), a * (K[OLD, OLD] + np.diag(own)) + np.diag(STD[OLD] ** 2))

    best = minimize_scalar(lambda log_a: -density(np.exp(log_a)).logpdf(Y[OLD]), bounds=(-5, 10), method="bounded").x
    reg = regressor(noise=noise).fit(X[OLD], Y[OLD], y_std=STD[OLD], sample_weight=weight)
    assert np.log(reg.gp_.amplitude) == pytest.approx(best, abs=5e-3)
    a = reg.gp_.amplitude
    assert reg.log_marginal_likelihood_ == pytest.approx(density(a).logpdf(Y[OLD]), rel=1e-9)
    gain = np.linalg.solve(density(a).cov, a * K[OLD, NEW])
    mean, cov = reg.predict(X[NEW], return_cov=True)
    np.testing.assert_allclose(mean, gain.T @ Y[OLD], rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(cov, a * K[NEW, NEW] - a * K[NEW, OLD] @ gain, rtol=1e-7, atol=1e-7)


def test_units_of_the_targets_do_not_matter() -> None:
    plain = regressor(noise="loo", normalize_y=True).fit(X[OLD], Y[OLD], y_std=STD[OLD])
    other = regressor(noise="loo", normalize_y=True).fit(X[OLD], 7.0 + 1e3 * Y[OLD], y_std=1e3 * STD[OLD])
    (mean, std), (other_mean, other_std) = (reg.predict(X, return_std=True) for reg in (plain, other))
    np.testing.assert_allclose(other_mean, 7.0 + 1e3 * mean, rtol=1e-6)
    np.testing.assert_allclose(other_std, 1e3 * std, rtol=1e-6)


def test_added_targets_bring_their_errors_and_files_keep_them(tmp_path: Path) -> None:
    reg = regressor(normalize_y=True).fit(X[OLD], Y[OLD], y_std=STD[OLD])
    scale = float(Y[OLD].std())
    together = ExactGP(
        K, ((Y - Y[OLD].mean()) / scale)[:, None], amplitude=reg.gp_.amplitude, errors=(STD / scale) ** 2
    )
    reg.add(X[NEW], Y[NEW], y_std=STD[NEW]).save(tmp_path / "model.gp")
    expected = Y[OLD].mean() + scale * together.mean(K)[:, 0], scale * np.sqrt(together.variance(K, K.diagonal()))
    for model in (reg, GPRegressor.load(tmp_path / "model.gp", device="cpu")):
        for found, right in zip(model.predict(X, return_std=True), expected, strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "y", "std", "message"),
    [
        ({}, Y, -STD, "y_std has -.* among its 60 standard deviations"),
        ({}, Y, STD[:59], r"y_std has shape \(59,\)"),
        ({}, np.stack([Y, Y], 1), STD, "y_std is for a single output"),
        ({"amplitude": "loo"}, Y, STD, "'ml' or a number, not 'loo'"),
        ({"inducing": 9}, Y, STD, "y_std needs the exact model"),
        ({"solver": "cg", "noise": 0.1}, Y, STD, "y_std needs the exact model"),
        ({"learn": "loo"}, Y, STD, "fit without y_std"),
    ],
)
def test_errors_that_cannot_be_used(options: Any, y: Any, std: Any, message: str) -> None:
    with pytest.raises((DataError, MatrixError), match=message):
        regressor(**options).fit(X, y, y_std=std)


def test_errors_cannot_come_later() -> None:
    with pytest.raises(MatrixError, match="need a model whose amplitude is a number"):
        regressor().fit(X[OLD], Y[OLD]).add(X[NEW], Y[NEW], y_std=STD[NEW])
