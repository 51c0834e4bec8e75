"""Points of a group are left out together: against models that are fitted without the group."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from cnngp.common import memory
from cnngp.gp import groups as grouping
from cnngp.gp import iterative, leave_one_out
from cnngp.gp import noise as noise_module
from cnngp.gp.checks import MatrixError
from cnngp.gp.conformal import intervals
from cnngp.gp.exact import ExactGP
from cnngp.gp.iterative import IterativeGP
from cnngp.gp.linalg import namespace
from cnngp.gp.near_copies import near_copies
from cnngp.gp.selection import chosen
from cnngp.gp.solving.matrices import SymmetricMatrix
from helpers import fake_cupy

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
    for a, b in zip(found.leave_one_out().moments, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol)


def test_leaving_groups_out_is_fitting_without_them():
    assert_same(grouped(), left_out(0.07), 1e-9)


def test_groups_of_one_are_the_usual_leave_one_out():
    alone, usual = (grouped(noise="loo", amplitude="loo", groups=g) for g in (np.arange(17), None))
    assert alone.noise == pytest.approx(usual.noise, rel=1e-4)
    assert alone.amplitude == pytest.approx(usual.amplitude, rel=1e-4)
    # The two searches end within 1e-6 of log₁₀ noise of each other.
    assert_same(alone, usual.leave_one_out().moments, 1e-3)


@dataclass(frozen=True)
class Grouped:
    """Points in groups of random sizes, of which some are copies, near copies or strangers."""

    K: np.ndarray
    Y: np.ndarray
    groups: np.ndarray
    images: np.ndarray
    """The number of each point's image, which may stand in several groups."""

    @classmethod
    def drawn(cls, seed: int, kind: str) -> Grouped:
        rng = np.random.default_rng(seed)
        groups = np.repeat(np.arange(14), rng.integers(1, 4, 14))
        images = np.arange(len(groups))
        points = rng.standard_normal((14, 2))[groups]
        points += rng.choice([0.0, 1e-4, 0.1, 1.0], 14)[groups, None] * rng.standard_normal(points.shape)
        if kind == "shared":
            images[groups % 3 == 0] = 0
            points = points[images]
        errors = rng.standard_normal((len(points), 2))
        Y = np.sin(points) + rng.choice([0.05, 0.3]) * (errors[groups] if kind == "agree" else errors)
        return cls(rbf(points), Y, groups, images)

    def deviations(self, noise: float) -> tuple[float, float, float]:
        """Σ d²/v of points, Σ dᵀS⁻¹d of what is left out with each and Σ log v, by refitting without that."""
        alone = jointly = logs = 0.0
        for i in range(len(self.Y)):
            out = (self.groups == self.groups[i]) | (self.images == self.images[i])
            A, k = self.K[~out][:, ~out] + noise * np.eye((~out).sum()), self.K[out][:, ~out]
            d = self.Y[out] - k @ np.linalg.solve(A, self.Y[~out])
            S = self.K[out][:, out] + noise * np.eye(out.sum()) - k @ np.linalg.solve(A, k.T)
            own = int(out[:i].sum())
            alone += float((d[own] ** 2 / S[own, own]).sum())
            jointly += float((d * np.linalg.solve(S, d)).sum()) / out.sum()
            logs += math.log(S[own, own])
        return alone, jointly, logs

    def loss(self, noise: float) -> float:
        alone, jointly, logs = self.deviations(noise)
        return self.Y.size * math.log(max(alone, jointly)) + self.Y.shape[1] * logs


def rbf(points: np.ndarray) -> np.ndarray:
    return np.exp(-0.3 * ((points[:, None] - points[None]) ** 2).sum(-1))


@pytest.mark.parametrize("kind", ["agree", "contradict", "shared"])
@pytest.mark.parametrize("seed", range(5))
def test_noise_is_the_likeliest_by_refitting_without_each_group(seed, kind):
    drawn = Grouped.drawn(seed, kind)
    groups = np.stack([drawn.groups, drawn.images], 1) if kind == "shared" else drawn.groups
    gp = ExactGP(drawn.K, drawn.Y, noise="loo", groups=groups)
    tried = np.concatenate([gp.noise * np.array([0.8, 0.95, 1.05, 1.25]), 10.0 ** np.arange(-6.0, 3.0)])
    assert drawn.loss(gp.noise) < min(map(drawn.loss, tried)) + 0.1
    assert gp.amplitude == pytest.approx(drawn.deviations(gp.noise)[0] / drawn.Y.size, rel=1e-5)


@pytest.mark.parametrize("apart", [0.0, 1e-6, 1e-3])
def test_measurements_that_contradict_each_other_are_noise(apart):
    """Too few points of too many dimensions to learn from: only the repeated ones say how exact a measurement is."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        points = np.repeat(rng.standard_normal((40, 30)), 2, axis=0)
        points += apart * rng.standard_normal(points.shape)
        new, weights = rng.standard_normal((200, 30)), rng.standard_normal((30, 1))
        f, f_new = (np.tanh(x @ weights / 6) for x in (points, new))
        K = 1.0 + 0.1 * points @ points.T + rbf(points / 8)
        k = 1.0 + 0.1 * new @ points.T + np.exp(-0.3 / 64 * ((new[:, None] - points) ** 2).sum(-1))
        gp = ExactGP(K, f + 0.3 * rng.standard_normal(f.shape), noise="loo", groups=np.repeat(np.arange(40), 2))
        assert 0.15 < math.sqrt(gp.amplitude * gp.noise) < 0.45
        error = math.sqrt(float(((gp.mean(k) - f_new) ** 2).mean()))
        std = math.sqrt(float(gp.variance(k, 2.0 + 0.1 * (new**2).sum(1)).mean()))
        assert 0.5 < std / error < 2.0


@pytest.mark.parametrize(("copies", "least"), [(3, 0.83), (12, 0.55)])
def test_copies_that_agree_hardly_make_predictions_surer(copies, least):
    """Below 95 %, as the model has no noise that copies share; the amplitude by likelihood covers 78 and 44 %."""
    covered = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        points, new = rng.standard_normal((30, 3)), rng.standard_normal((100, 3))
        f, f_new = (np.sin(1.5 * x[:, :1]) + 0.5 * x[:, 1:2] for x in (points, new))
        groups = np.repeat(np.arange(30), copies)
        Y = (f + 0.3 * rng.standard_normal(f.shape))[groups]
        everything = rbf(np.concatenate([points, new]))
        gp = ExactGP(everything[:30, :30][np.ix_(groups, groups)], Y, noise="loo", groups=groups)
        k = everything[30:, :30][:, groups]
        covered.append(np.abs(gp.mean(k) - f_new)[:, 0] < 2.0 * np.sqrt(gp.variance(k, np.ones(100))))
    assert np.mean(covered) > least


def test_a_given_noise_that_contradictions_exceed_is_told_of():
    groups = np.repeat(np.arange(20), 2)
    Y = np.sin(np.arange(40.0))[:, None]
    with pytest.warns(UserWarning, match="contradict each other by more than the noise explains"):
        ExactGP(rbf(RNG.normal(size=(20, 9)))[np.ix_(groups, groups)], Y, noise=1e-6, groups=groups)


def test_thinned_points_keep_the_contradictions_inside_groups():
    for groups in (np.repeat(np.arange(50), 2), np.arange(100) % 50, np.arange(100) % 3):
        rows = grouping.thinned(groups, 40)
        assert 30 <= len(rows) <= 40
        assert (np.diff(rows) > 0).all()
        together = groups[rows][:, None] == groups[rows]
        assert (together.sum(1) > 1).all()
        assert len(np.unique(groups[rows])) >= 3


def test_noise_of_many_points_sees_the_contradictions(monkeypatch):
    groups = np.arange(120) % 60
    points = RNG.normal(size=(60, 2))[groups]
    Y = np.sin(2.0 * points[:, :1]) + 0.3 * RNG.standard_normal((120, 1))
    K = rbf(points)
    monkeypatch.setattr(noise_module, "_MOST_POINTS", 60)
    gp = ExactGP(K, Y, noise="loo", groups=groups)
    assert 0.1 < math.sqrt(gp.amplitude * gp.noise) < 0.5


def test_points_that_are_added_are_groups_of_their_own():
    n = 12
    gp = ExactGP(K[:n, :n], Y[:n], noise=0.07, amplitude=1.0, groups=GROUPS[:n])
    gp.add(K[n:, :n], K[n:, n:], Y[n:])
    assert_same(gp, grouped(groups=[*GROUPS[:n], *"vwxyz"]).leave_one_out().moments, 1e-9)


def test_many_groups_are_done_in_several_pieces(monkeypatch):
    whole = grouped().leave_one_out().moments
    monkeypatch.setattr(leave_one_out, "_POINTS", 3)
    assert_same(grouped(), whole, 1e-12)


@pytest.mark.parametrize("kind", ["contradict", "shared"])
def test_the_iterative_posterior_leaves_out_whole_sets(monkeypatch, kind):
    drawn = Grouped.drawn(1, kind)
    groups = np.stack([drawn.groups, drawn.images], 1) if kind == "shared" else drawn.groups
    exact = ExactGP(drawn.K, drawn.Y, noise=0.1, amplitude=2.0, groups=groups)
    for sample in (256, 12):
        monkeypatch.setattr(iterative, "SAMPLE", sample)
        gp = IterativeGP(SymmetricMatrix(drawn.K), drawn.Y, np, noise=0.1, amplitude=2.0, groups=groups)
        assert len(gp.loo_rows) == (len(drawn.Y) if sample == 256 else min(len(gp.loo_rows), 12))
        for found, expected in zip(gp.leave_one_out().moments, exact.leave_one_out().moments, strict=True):
            np.testing.assert_allclose(found, expected[gp.loo_rows], rtol=1e-6)
        np.testing.assert_array_equal(gp.groups, exact.groups[gp.loo_rows])


def test_every_point_is_in_one_group():
    codes = np.unique(GROUPS, return_inverse=True)[1]
    sets = list(grouping.sets_left_out(codes))
    assert sorted(np.concatenate([m.ravel() for m, _ in sets])) == list(range(17))
    assert [m.shape[1] for m, _ in sets] == [1, 2, 3]
    for m, predicted in sets:
        assert predicted.all()
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


def test_groups_on_a_card_take_the_same_path(monkeypatch):
    """Noise, leave-one-out, conformal intervals and near copies, on a stand-in that refuses what CuPy refuses."""
    drawn = Grouped.drawn(2, "contradict")
    here = ExactGP(drawn.K, drawn.Y, noise="loo", groups=drawn.groups)
    fake_cupy.install(monkeypatch)
    monkeypatch.setattr(memory, "available", lambda device="cpu": None)
    card = fake_cupy.ndarray
    there = ExactGP(card(drawn.K), card(drawn.Y), noise="loo", groups=drawn.groups)
    assert there.noise == pytest.approx(here.noise, rel=1e-6)
    for theirs, ours in zip(there.leave_one_out().moments, here.leave_one_out().moments, strict=True):
        np.testing.assert_allclose(theirs.get(), ours, rtol=1e-6)
    K_new = drawn.K[:3]
    np.testing.assert_allclose(
        intervals(there, card(K_new), np.full(3, 1.1), 0.5), intervals(here, K_new, np.full(3, 1.1), 0.5), rtol=1e-6
    )
    np.testing.assert_array_equal(near_copies(there, None), near_copies(here, None))
    picked = [chosen(4, move(drawn.K), gp, move(drawn.K)).rows for gp, move in ((here, np.asarray), (there, card))]
    np.testing.assert_array_equal(*picked)
    K, Y = card(drawn.K), card(drawn.Y)
    alone = IterativeGP(SymmetricMatrix(K), Y, namespace(K), noise=0.1, groups=drawn.groups)
    np.testing.assert_allclose(
        alone.leave_one_out().mean.get(),
        ExactGP(drawn.K, drawn.Y, noise=0.1, groups=drawn.groups).leave_one_out().mean,
        atol=1e-6,
    )
