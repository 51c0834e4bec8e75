"""Points of a group are left out together: against models that are fitted without the group."""

from __future__ import annotations

import numpy as np
import pytest

from cnngp.gp import groups as grouping
from cnngp.gp.checks import MatrixError
from cnngp.gp.exact import ExactGP

RNG = np.random.default_rng(3)
POINTS = RNG.normal(size=(17, 4))
K = np.exp(-0.3 * ((POINTS[:, None] - POINTS[None]) ** 2).sum(-1))
Y = np.sin(POINTS[:, :2]) + 0.2 * RNG.normal(size=(17, 2))
GROUPS = np.array(list("abbacccadefgghiij"))


def without(rows: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """What the other points predict for the targets of these, and the variance of those targets, for amplitude 1."""
    others = np.setdiff1d(np.arange(len(K)), rows)
    A = K[np.ix_(others, others)] + noise * np.eye(len(others))
    k = K[np.ix_(rows, others)]
    return k @ np.linalg.solve(A, Y[others]), K[rows, rows] + noise - (k * np.linalg.solve(A, k.T).T).sum(1)


def left_out(noise: float) -> tuple[np.ndarray, np.ndarray]:
    mean, variance = np.empty_like(Y), np.empty(len(K))
    for name in np.unique(GROUPS):
        rows = np.flatnonzero(name == GROUPS)
        mean[rows], variance[rows] = without(rows, noise)
    return mean, variance


def grouped(**options) -> ExactGP:
    return ExactGP(K, Y, **({"noise": 0.07, "amplitude": 1.0, "groups": GROUPS} | options))


def assert_same(found: ExactGP, expected: tuple[np.ndarray, np.ndarray], rtol: float) -> None:
    for a, b in zip(found.leave_one_out(), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol)


def test_leaving_groups_out_is_fitting_without_them():
    assert_same(grouped(), left_out(0.07), 1e-9)


def test_groups_of_one_are_the_usual_leave_one_out():
    alone, usual = (grouped(noise="loo", amplitude="loo", groups=g) for g in (np.arange(17), None))
    assert alone.noise == pytest.approx(usual.noise, rel=1e-4)
    assert alone.amplitude == pytest.approx(usual.amplitude, rel=1e-4)
    assert_same(alone, usual.leave_one_out(), 1e-3)  # the two searches end within 1e-6 of log₁₀ noise of each other


def test_noise_and_amplitude_are_the_likeliest_where_groups_are_left_out():
    gp = grouped(noise="loo", amplitude="loo")

    def loss(noise: float, amplitude: float) -> float:
        mean, variance = left_out(noise)
        return float(((Y - mean) ** 2 / (amplitude * variance[:, None])).sum() + 2 * np.log(amplitude * variance).sum())

    best = loss(gp.noise, gp.amplitude)
    for factor in (0.9, 1.1):
        assert loss(gp.noise * factor, gp.amplitude) > best
        assert loss(gp.noise, gp.amplitude * factor) > best


def test_points_that_are_added_are_groups_of_their_own():
    n = 12
    gp = ExactGP(K[:n, :n], Y[:n], noise=0.07, amplitude=1.0, groups=GROUPS[:n])
    gp.add(K[n:, :n], K[n:, n:], Y[n:])
    assert_same(gp, grouped(groups=[*GROUPS[:n], *"vwxyz"]).leave_one_out(), 1e-9)


def test_many_groups_are_done_in_several_pieces(monkeypatch):
    whole = grouped().leave_one_out()
    monkeypatch.setattr(grouping, "_COLUMNS", 3)
    assert_same(grouped(), whole, 1e-12)


def test_every_point_is_in_one_group():
    codes = np.unique(GROUPS, return_inverse=True)[1]
    members = list(grouping.of_one_size(codes))
    assert sorted(np.concatenate([m.ravel() for m in members])) == list(range(17))
    assert [m.shape[1] for m in members] == [1, 2, 3]
    for m in members:
        assert (codes[m] == codes[m][:, :1]).all()


def test_groups_are_drawn_whole():
    codes = np.repeat(np.arange(6), [1, 2, 3, 4, 5, 9])
    for seed in range(20):
        rows = grouping.whole_groups(codes, 10, np.random.default_rng(seed))
        assert 5 <= len(rows) <= 10
        for g in np.unique(codes[rows]):
            assert (codes[rows] == g).sum() == (codes == g).sum()
    np.testing.assert_array_equal(grouping.whole_groups(np.repeat([0, 2], [4, 3]), 2, RNG), [4, 5, 6])


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (np.arange(5), r"groups has shape \(5,\); expected 17 names or numbers"),
        (np.zeros(17), "puts all images together"),
        (np.array([np.nan] * 17), "expected 17 names or numbers"),
        (np.array([1, "a"] * 8 + [2], dtype=object), "cannot be compared"),
    ],
)
def test_groups_that_cannot_be_meant_are_refused(groups, message):
    with pytest.raises(MatrixError, match=message):
        grouped(groups=groups)
