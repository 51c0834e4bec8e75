"""Ensembles of trained wide networks: against the differential equation, closed cases and the limits in time."""

from typing import Any

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from cnngp import Conv, Dense, ReLU, Sequential
from cnngp.gp import trained_ensemble
from cnngp.gp.checks import MatrixError
from cnngp.gp.exact import ExactGP
from cnngp.gp.linalg import JitterWarning
from cnngp.network import reference

NET = Sequential(Conv(3), ReLU(), Conv(3), ReLU(), Dense(bias_var=0.1))
IMAGES = np.random.default_rng(0).normal(size=(12, 2, 5, 5))
N = 8  # of them are for training
KS, THETAS = (reference.kernel(NET, IMAGES, kind=kind) for kind in ("nngp", "ntk"))
Y = np.random.default_rng(1).normal(size=(N, 3))


(K, K_TEST, K_TEST_TEST), (THETA, THETA_TEST, _) = ((A[:N, :N], A[N:, :N], A[N:, N:]) for A in (KS, THETAS))


@pytest.mark.parametrize("ridge", [0.0, 0.3])
@pytest.mark.parametrize("t", [0.05, 2.0])
def test_moments_are_those_of_networks_that_follow_the_differential_equation(t: float, ridge: float) -> None:
    """Training is linear in the outputs at the start, f(t) = f₀ + B (y − f₀), so B gives both moments."""
    rate = 0.7

    def slope(_: float, state: Any) -> Any:
        # Weights move by Jᵀa: training outputs are f₀ + Θa, and the pull of the ridge is on a.
        a = state.reshape(N, N)
        return (rate * (np.eye(N) - THETA @ a - ridge * a)).ravel()

    moved = solve_ivp(slope, (0.0, t), np.zeros(N * N), rtol=1e-10, atol=1e-12).y[:, -1].reshape(N, N)
    B = THETA_TEST @ moved
    map_ = np.hstack([-B, np.eye(4)])  # of the outputs at the start, training and test, without the targets
    found = trained_ensemble(K, THETA, Y, learning_rate=rate, ridge=ridge).predict(K_TEST, THETA_TEST, K_TEST_TEST, t=t)
    np.testing.assert_allclose(found.mean, B @ Y, atol=1e-8)
    np.testing.assert_allclose(found.covariance, map_ @ KS @ map_.T, atol=1e-8)


def test_at_convergence_the_mean_is_kernel_regression_training_points_are_known_and_times_may_be_several() -> None:
    ensemble = trained_ensemble(K, THETA, Y)
    found = ensemble.predict(K_TEST, THETA_TEST, np.diag(K_TEST_TEST))
    np.testing.assert_allclose(found.mean, ExactGP(THETA, Y).mean(THETA_TEST), rtol=1e-9)
    long = ensemble.predict(K_TEST, THETA_TEST, K_TEST_TEST, t=1e9)
    np.testing.assert_allclose(found.mean, long.mean, rtol=1e-9)
    np.testing.assert_allclose(found.variance, long.variance, rtol=1e-8)
    known = ensemble.predict(K, THETA, K)
    np.testing.assert_allclose(known.mean, Y, atol=1e-9)
    assert np.abs(known.covariance).max() < 1e-9 * K.max()
    plain = ensemble.predict(K_TEST, THETA_TEST)
    assert plain.variance is plain.covariance is found.covariance is None
    many = ensemble.predict(K_TEST, THETA_TEST, K_TEST_TEST, t=[0.0, 1.0, np.inf])
    assert (many.mean.shape, many.covariance.shape) == ((3, 4, 3), (3, 4, 4))
    np.testing.assert_array_equal(many.covariance, many.covariance.swapaxes(1, 2))
    np.testing.assert_array_equal(many.mean[2], plain.mean)
    one = ensemble.predict(K_TEST, THETA_TEST, np.diag(K_TEST_TEST), t=1.0)
    np.testing.assert_allclose(one.variance, many.variance[1], rtol=1e-12)
    flat = trained_ensemble(K, THETA, Y[:, 1]).predict(K_TEST, THETA_TEST)
    np.testing.assert_allclose(flat.mean, plain.mean[:, 1], rtol=1e-12)


def test_repeated_points_need_jitter_with_a_warning_or_a_ridge() -> None:
    rows = [0, 1, 1, 2]
    K4, T4, y = K[np.ix_(rows, rows)], THETA[np.ix_(rows, rows)], np.array([1.0, 2.0, 4.0, 0.0])
    with pytest.warns(JitterWarning, match=r"Theta of 4 points is not positive definite.*set ridge="):
        ensemble = trained_ensemble(K4, T4, y)
    assert 0.0 < ensemble.jitter < 1e-9
    # Networks cannot tell the copies apart, so they end between the two targets.
    assert ensemble.predict(K4, T4).mean == pytest.approx([1.0, 3.0, 3.0, 0.0], abs=1e-2)
    assert trained_ensemble(K4, T4, y, ridge=1e-6).jitter == 0.0  # a warning is an error in tests


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"K": K[:7]}, r"K: the kernel matrix has shape \(7, 8\)"),
        ({"Theta": THETA[:7, :7]}, "K has 8 points and Theta 7"),
        ({"Theta": THETA * np.nan}, "Theta: the kernel matrix contains NaN"),
        ({"K": np.triu(K)}, "K: the kernel matrix is not symmetric"),
        ({"Theta": THETA - 3.0 * np.eye(N)}, "too low beside its mean diagonal"),
        ({"y": Y[:7]}, r"shape of the targets is \(7, 3\); expected \(8 points"),
        ({"y": Y * np.inf}, "NaN or infinity in the targets"),
        ({"learning_rate": 0.0}, "learning_rate=0.0: expected a positive number"),
        ({"ridge": -1.0}, "ridge=-1.0: expected a number of 0 or more"),
        ({"K": K - 5.0 * np.eye(len(K)) * K.diagonal().mean()}, "K has a negative number on its diagonal"),
        ({"K_test": K_TEST.T}, r"shape of K\(test, training\) is \(8, 4\)"),
        ({"Theta_test": THETA_TEST[:3]}, "has 4 rows, Theta"),
        ({"K_test_test": K_TEST_TEST[:3]}, r"shape of K\(test, test\) is \(3, 4\); expected \(4,\) or \(4, 4\)"),
        ({"K_test_test": -np.ones(4)}, "or a number below 0"),
        ({"t": -1.0}, "t=-1.0: expected a time of 0 or more"),
        ({"t": [1.0, np.nan]}, "expected a time of 0 or more"),
        ({"t": []}, r"t has shape \(0,\)"),
        ({"Theta_test": np.full_like(THETA_TEST, np.nan)}, r"NaN or infinity in Theta\(test, training\)"),
    ],
)
def test_bad_matrices_and_test_points_are_refused(change: dict[str, Any], message: str) -> None:
    given = {"K": K, "Theta": THETA, "y": Y, "K_test": K_TEST, "Theta_test": THETA_TEST} | change
    made = {name: given.pop(name) for name in ("K", "Theta", "y", "learning_rate", "ridge") if name in given}
    with np.errstate(invalid="ignore"), pytest.raises(ValueError, match=message) as raised:
        trained_ensemble(**made).predict(**given)
    assert raised.type in (ValueError, MatrixError)
