"""Estimators without a network: what they choose by leave-one-out, what they say about it, and what it may cost."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cnngp import GPClassifier, GPRegressor, Kernel, datasets, zoo
from cnngp.common.arrays import DataError
from cnngp.estimators import Recipe, Term, choosing
from cnngp.estimators import candidates as table
from cnngp.estimators.candidates import Row, candidates
from cnngp.estimators.kernels import kernel_of
from cnngp.estimators.labels import ClassTargets, RealTargets, coding_of
from cnngp.gp.checks import MatrixError
from cnngp.network.layers import Dense
from cnngp.network.names import AN_IMAGE, IN_ALL, default_names, network_by_name, zoo_name

DATA = datasets.digits().take(60, 40)


def make(network: Any, symmetry: Any = None) -> Kernel:
    return Kernel(network, device="cpu", symmetry=symmetry)


def test_what_is_chosen_is_what_is_fitted_and_said() -> None:
    """And the same for whole numbers, other threads and a second fit."""
    chosen = GPClassifier(device="cpu").fit(DATA.X, DATA.y)
    choice = chosen.choice_
    assert choice is not None
    assert chosen.recipe_.terms == choice.recipe.terms
    best, *others = choice.compared
    assert best.name == choice.name
    assert len(others) >= len(candidates(DATA.X)) - 1
    assert choice.reason.startswith(f"the usual one; none of {len(others)} others is clearly better by leave-one-out")
    ordered = replace(choice, compared=tuple(sorted(choice.compared, key=lambda row: row.loss)), relatives=True)
    assert ordered.reason.startswith("the best of 12 by leave-one-out of smaller relatives on 60 images")
    said = str(chosen.fit_report_)
    assert f"{choice.name}, {choice.reason}" in said
    assert "effort='best'" in said
    assert chosen.gp_.noise > 0.0
    given = GPClassifier("small_cnn", device="cpu").fit(DATA.X, DATA.y)
    assert given.choice_ is given.fit_report_.choice is None
    again = GPClassifier("auto", device="cpu", threads=1).fit((DATA.X * 16).round().astype(np.uint8) / 16, DATA.y)
    assert again.choice_ == chosen.choice_


def test_what_is_given_leaves_less_to_choose() -> None:
    """Noise is 0 for a network or a matrix of one's own, and what is usual is taken where nothing can be compared."""
    usual = candidates(DATA.X)[0][-1].term.network
    K, few = Kernel(usual, device="cpu")(DATA.X), (DATA.X[:15], DATA.y[:15])
    assert GPClassifier("small_cnn", device="cpu").fit(*few).gp_.noise == 0.0
    assert GPClassifier().fit(K=K, y=DATA.y).gp_.noise == 0.0
    assert GPClassifier(device="cpu").fit(DATA.X, DATA.y, K=K).network_ == usual
    for options, noise in (({"noise": 0.0}, 0.0), ({"noise": 0.1}, 0.1), ({"solver": "cg"}, 0.0)):
        clf = GPClassifier(device="cpu", **options).fit(*few)  # type: ignore[arg-type]
        assert (clf.network_, clf.gp_.noise, clf.choice_.images) == (usual, noise, 0)  # type: ignore[union-attr]
    assert "the usual one for images of this size and number" in str(clf.choice_)
    rows = GPClassifier(device="cpu").fit(few[0].reshape(15, -1), few[1])
    assert rows.recipe_.terms == (Term("dense_nngp", preparation="standardised"),)


def test_a_preparation_that_is_given_is_kept_and_loo_chooses_one_for_a_given_network() -> None:
    clf = GPClassifier(preparation="edges", device="cpu").fit(DATA.X, DATA.y)
    assert {t.preparation for t in clf.recipe_.terms} == {"edges"}
    X, y = bars(60, 0)
    loo = GPClassifier("small_cnn", preparation="loo", device="cpu").fit(X, y)
    assert loo.network_ == zoo.small_cnn()
    assert loo.recipe_.main.preparation != "plain"


@pytest.mark.parametrize(
    "shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8), (3, 8, 8), (3, 20, 24), (1, 6, 6, 6), (2, 30), (1, 1, 1), (7,)]
)
def test_all_candidates_fit_the_images_and_are_named(shape: tuple[int, ...]) -> None:
    X = np.random.default_rng(0).random((4, *shape))
    rows = candidates(X)
    found = [c for sizes in rows for c in sizes]
    assert len({str(c) for c in found}) == len(found) >= 3
    for c in found:
        assert network_by_name(c.name) == c.term.network
        assert c.elements > 0
    for sizes in rows:
        assert len({(c.term.preparation, c.term.symmetry) for c in sizes}) == 1
        assert all(small.elements < large.elements for small, large in itertools.pairwise(sizes))
    assert {c.term.preparation for sizes in candidates(X, preparation="plain") for c in sizes} == {"plain"}
    if len(shape) > 1 and shape != (1, 1, 1) and (shape[0] < 3 or min(shape[1:]) < 16):
        assert [c.name for c in rows[0]] == default_names(shape)[-2::-1]


def test_the_double_sum_of_networks_that_do_not_commute_with_a_symmetry_is_counted() -> None:
    even, odd = (
        {(c.name, c.term.symmetry): c.elements for sizes in candidates(np.ones((2, 1, side, side))) for c in sizes}
        for side in (28, 27)
    )
    name = "pooled_cnn-small-exp"
    assert (even[name, "flip"], even[name, "d4"]) == (2 * even[name, None], 8 * even[name, None])
    assert (odd[name, "flip"], odd[name, "d4"]) == (4 * odd[name, None], 64 * odd[name, None])


@pytest.mark.parametrize("effort", ["quick", "normal", "best"])
@pytest.mark.parametrize("n", [60, 400])
def test_what_a_choice_and_its_fit_may_cost_is_bounded_by_the_effort(
    n: int, effort: choosing.Effort, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, spent, rounds = table.Tried._grow, [], []

    def grow(tried: Any, X: Any) -> None:
        spent.append(tried.cost(len(X), tried.at))
        rounds.append(len(X))
        own(tried, X)

    monkeypatch.setattr(table.Tried, "_grow", grow)
    images = choosing.Images(np.random.default_rng(0).random((n, 1, 28, 28), np.float32), np.dtype(np.float32))
    pairs, y = n * (n - 1) // 2, np.arange(n) % 2
    choice = choosing.choose(images, ClassTargets(coding_of(y), y), lambda *_: make(Dense()), pairs, effort)
    limit = min(AN_IMAGE * n, IN_ALL) * choosing.EFFORTS[effort]
    assert choice.elements * pairs <= limit
    usual = [c.elements * pairs for c in candidates(images.at(slice(0, 200)))[0]]
    fit = max(cost for cost in usual if cost <= limit)
    allowed = max(fit / 2, choosing._AT_LEAST * choosing.EFFORTS[effort])
    first = sum(cost for cost, size in zip(spent, rounds, strict=True) if size == rounds[0])
    assert first <= max(allowed, choosing._FIRST_ROUND * choosing.EFFORTS[effort])
    assert sum(spent) - first <= allowed
    assert max(rounds) == n or (effort == "quick" and max(rounds) >= 100)
    if choice.dearest is not None:
        assert effort != "best"
        assert choice.dearest[1] * pairs > limit


def tried_as(losses: Any) -> table.Tried:
    """A row that was compared, with these losses."""
    sizes = candidates(np.ones((2, 1, 28, 28)))[0]
    return table.Tried(sizes, None, np.dtype(np.float32), images=len(losses), losses=np.asarray(losses))  # type: ignore[arg-type]


def test_the_better_half_goes_on_to_more_images_and_at_last_to_larger_networks() -> None:
    rows = [tried_as(np.full(100, float(i))) for i in range(12)]
    usual = rows[9]
    search = choosing._Search(rows, None, None, None, np.arange(150), 1e12)  # type: ignore[arg-type]
    assert search._next(usual) == (150, [0] * 7)
    assert search.alive == [*rows[:6], usual]
    assert [c.loss for c in search.gone] == [6.0, 7.0, 8.0, 10.0, 11.0]
    for row in search.alive:
        row.images = 150
    assert search._next(usual) == (150, [1] * 5)
    for row in search.alive:
        row.at = 2
    assert search._next(usual) is None
    search.order = np.arange(10_000)
    search.left = 4 * sum(t.cost(300, 2) for t in search.alive)
    assert search._next(usual) == (300, [2] * 4)
    search.left /= 3
    assert search._next(usual) is None


def test_few_groups_are_compared_with_all_their_images() -> None:
    """Whole groups are left out, and what a group says in one voice is one voice."""
    X, y = bars(80, 0)
    groups = np.arange(80) // 8
    images, targets = choosing.Images(X.astype(np.float32), np.dtype(np.float32)), ClassTargets(coding_of(y), y)
    order = choosing._order(targets, groups)
    with_images = np.stack([groups, np.arange(80) % 79], 1)
    assert sorted(order) == list(range(80))
    assert [len(set(groups[order[at : at + 10]])) for at in (0, 10, 70)] == [10, 10, 10]
    np.testing.assert_array_equal(choosing._order(targets, with_images), order)

    choice = choosing.choose(images, targets, make, 80 * 79 // 2, groups=groups)
    assert choice.images == 80
    assert choice.gain > 0.0
    gain = np.repeat([1.0, -0.8] * 5, 8)
    assert not table.clear(np.tile([-1.0, 1.001], 50))
    assert not table.clear(np.full(100, 0.005))
    assert table.clear(np.tile([1.0, 2.0], 50))
    assert table.clear(np.tile([1.0, -0.8], 400)) is True
    assert table.clear(gain, groups) is table.clear(gain, with_images) is False
    assert not table.clear(np.tile([1.0, -0.9], 20), np.arange(40) // 20)  # two groups that gain alike by chance


def test_a_larger_network_is_taken_unless_it_is_clearly_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    """By as many images as there are covariances left for it; where there are none, the large one is taken unseen."""
    for module in (choosing, table):
        monkeypatch.setattr(module, "left_out", lambda K, targets, groups: np.full(len(K), float(K[0, 0])))
    monkeypatch.setattr(table, "_matrix", lambda kernel, X, Z=None: np.full((len(X), len(X)), kernel))
    images = choosing.Images(np.ones((100, 1, 28, 28), np.float32), np.dtype(np.float32))
    targets = ClassTargets(coding_of(np.arange(100) % 2), np.arange(100) % 2)
    for worse, left, taken in ((0.0, 1e10, 2), (0.5, 1e10, 0), (0.5, 1e3, 2)):
        best = tried_as(np.ones(100))
        best.K, best.kernel_of = np.ones((100, 100)), lambda recipe, few, worse=worse: 1.0 + worse  # type: ignore[assignment, misc]
        search = choosing._Search([best], images, targets, None, np.arange(100), left)
        with choosing.progress_bar(None, "", "", wanted=False) as bar:
            fitted = search._enlarged(best, bar)
        assert (fitted is best, fitted.at, best.at) == (taken == 0, taken, 0)


@pytest.mark.parametrize("left", [1e10, 0.0])
def test_a_sum_is_compared_with_the_network_that_is_fitted(left: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another row adds to the small network, the large one may know already, or nobody could see."""
    x = np.random.default_rng(0).standard_normal((160, 3)).astype(np.float32)
    y = RealTargets((x[:, :1] + np.abs(x[:, 1:2])).astype(float))
    linear, even = x @ x.T, np.abs(x) @ np.abs(x.T)
    monkeypatch.setattr(table, "_matrix", lambda kernel, X, Z=None: (linear + even)[: len(X), : len(X)])
    best, other = (replace(tried_as(table.left_out(K, y)), K=K) for K in (linear, even))
    best.kernel_of = lambda recipe, few: None  # type: ignore[assignment, misc, return-value]
    search = choosing._Search([best, other], choosing.Images(x, x.dtype), y, None, np.arange(160), left)
    choice = choosing.Choice(Recipe([best.candidate.term]), "best", 160, compared=(best.said(), other.said()))
    with choosing.progress_bar(None, "", "", wanted=False) as bar:
        large = search._enlarged(best, bar)
        as_compared = search._with_sum(choice, best, best, 1e12, bar)
        as_fitted = search._with_sum(choice, best, large, 1e12, bar)
    assert large.at == 2
    assert len(as_compared.recipe.terms) == 2
    assert as_fitted == choice


def test_a_sum_is_taken_where_two_kernels_know_different_things() -> None:
    """An even function and a linear one: neither kernel has both."""
    x = np.random.default_rng(0).standard_normal((160, 3)).astype(np.float32)
    y = RealTargets((x[:, :1] + np.abs(x[:, 1:2])).astype(float))
    among = candidates(x, [Row(("linear",)), Row(("dense_even",))])
    images = choosing.Images(x, x.dtype)
    choice = choosing.choose(images, y, make, 160 * 80, among=among)
    assert {t.network for t in choice.recipe.terms} == {sizes[0].term.network for sizes in among}
    assert sum(t.weight for t in choice.recipe.terms) == pytest.approx(1.0)
    assert choice.compared[0].loss < min(c.loss for c in choice.compared[1:]) - 0.05
    assert choice.name == " + ".join(f"{t.weight:g} × ({zoo_name(t.network)})" for t in choice.recipe.terms)


# ---- drawn images that each hide something from the usual network ---------------------------------------------------


def bars(n: int, seed: int, light: float = 1.0) -> tuple[Any, Any]:
    """Upright or level bars of 12 × 12 somewhere in the middle, lighter or darker than a ground of any brightness."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    X = np.empty((n, 1, 12, 12))
    for image, upright in zip(X[:, 0], y, strict=True):
        image[:] = 20.0 * rng.uniform(-light, light)
        at = rng.integers(4, 8)
        image[(slice(2, 10), at) if upright else (at, slice(2, 10))] += rng.choice([-1.0, 1.0])
    return X + 0.3 * rng.standard_normal(X.shape), y


def anywhere(n: int, seed: int) -> tuple[Any, Any]:
    """Rising or falling lines anywhere in noise of 16 × 16."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    X = 0.1 * rng.standard_normal((n, 1, 16, 16))
    line = np.arange(4)
    for image, rising in zip(X[:, 0], y, strict=True):
        top, left = rng.integers(0, 13, 2)
        image[top + line, left + (line if rising else line[::-1])] += 1.0
    return X, y


def levels(n: int, seed: int) -> tuple[Any, Any]:
    """Noise of 8 × 8 in three degrees of brightness."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    return 0.3 + 0.15 * y[:, None, None, None] + 0.2 * rng.standard_normal((n, 1, 8, 8)), y


def nothing_local(n: int, seed: int) -> tuple[Any, Any]:
    """Images whose class is the sign of a weighted sum of all pixels."""
    weights = np.random.default_rng(99).standard_normal(64)
    X = np.random.default_rng(seed).standard_normal((n, 1, 8, 8))
    return X, (X.reshape(n, 64) @ weights > 0.0).astype(int)


def signed(n: int, seed: int) -> tuple[Any, Any]:
    """Four patterns in noise, each image with a sign at random: neighbours are not near."""
    rng, patterns = np.random.default_rng(seed), np.random.default_rng(99).standard_normal((4, 1, 8, 8))
    y = np.arange(n) % 4
    return rng.choice([-1.0, 1.0], (n, 1, 1, 1)) * patterns[y] + 1.2 * rng.standard_normal((n, 1, 8, 8)), y


@pytest.mark.parametrize(
    ("drawn", "n", "most"),
    [(bars, 80, 0.05), (anywhere, 80, 0.25), (levels, 80, 0.12), (nothing_local, 120, 0.3), (signed, 100, 0.1)],
)
def test_the_default_finds_what_the_usual_network_does_not_see(drawn: Any, n: int, most: float) -> None:
    X, y = drawn(n, 0)
    X_test, y_test = drawn(200, 1)
    clf = GPClassifier(device="cpu").fit(X, y)
    usual = GPClassifier(candidates(X)[0][-1].term.network, noise="loo", device="cpu").fit(X, y)
    wrong, before = (1.0 - model.score(X_test, y_test) for model in (clf, usual))
    assert wrong < most
    assert wrong < before
    assert clf.choice_ is not None
    assert clf.choice_.gain > 0.0


def test_a_target_that_is_largest_at_a_middle_brightness_is_found_by_regression() -> None:
    rng = np.random.default_rng(0)
    light = rng.uniform(0.1, 0.9, 160)
    X, y = light[:, None, None, None] + 0.1 * rng.standard_normal((160, 1, 8, 8)), -((light - 0.5) ** 2)
    usual = candidates(X)[0][-1].term.network
    models = (GPRegressor(device="cpu"), GPRegressor(usual, noise="loo", device="cpu"))
    wrong, before = (np.mean((model.fit(X[:60], y[:60]).predict(X[60:]) - y[60:]) ** 2) for model in models)
    assert wrong < 0.25 * before


def test_blank_images_give_one_error_and_a_few_of_them_do_no_harm() -> None:
    small: dict[str, Any] = {"network": zoo.pooled_cnn("small", 0)}
    of_network = [(small | {"noise": noise}, (1, 8, 8)) for noise in ("loo", "ml", 0.0)]
    for options, shape in [({}, (1, 12, 12)), ({}, (3, 20, 20)), *of_network]:
        with pytest.raises(MatrixError, match="the kernel of all 30 points is zero: blank images give zero"):
            GPClassifier(device="cpu", **options).fit(np.zeros((30, *shape)), np.arange(30) % 3)
    X, y = bars(60, 0)
    X[:4] = 0.0
    assert GPClassifier(device="cpu").fit(X, y).choice_.gain > 0.0  # type: ignore[union-attr]


@pytest.mark.parametrize("shape", [(1, 4, 4, 4), (2, 3, 10), (1, 1, 1), (1, 64)])
def test_other_shapes_are_fitted_too(shape: tuple[int, ...]) -> None:
    X = np.random.default_rng(0).random((12, *shape))
    clf = GPClassifier(device="cpu", input_shape=shape).fit(X, np.arange(12) % 3)
    assert clf.predict_proba(X[:2]).shape == (2, 3)


@pytest.mark.slow
def test_the_demo_has_the_error_that_the_readme_says() -> None:
    data = datasets.digits()
    clf = GPClassifier(device="cpu").fit(data.X, data.y)
    assert 1.0 - clf.score(data.X_test, data.y_test) == pytest.approx(0.002)


def test_one_image_or_one_group_of_each_class_is_no_proof_of_noise() -> None:
    """Without an image nothing is left of its class: leave-one-out is wrong about all of them, whatever the noise, and
    would ask for as much of it as there can be.
    """
    data = datasets.digits()
    rows = np.array([np.flatnonzero(data.y == digit)[3] for digit in range(10)])
    X, y = data.X[rows], data.y[rows]
    clf = GPClassifier(device="cpu").fit(X, y)
    assert clf.gp_.noise == 0.0
    assert clf.score(X, y) == 1.0
    for images, labels, groups in ((X, y, None), (DATA.X, DATA.y, DATA.y)):
        with pytest.warns(UserWarning, match="no class has two images; noise 0 is used"):
            clf = GPClassifier(zoo.small_cnn(), noise="loo", device="cpu").fit(images, labels, groups=groups)
        assert clf.gp_.noise == 0.0
    with pytest.raises(DataError, match=r"learn='loo' judges an image by others of its class.* use 'likelihood'"):
        GPClassifier(zoo.small_cnn(), learn="loo", device="cpu").fit(X, y)


def test_targets_far_from_zero_are_warned_of() -> None:
    """Where the process of mean zero fails, and nowhere else."""
    y = DATA.X[:, 0, 2:5, 2:5].mean((1, 2))
    plain, shifted = GPRegressor("small_cnn", device="cpu"), GPRegressor("small_cnn", device="cpu")
    assert plain.fit(DATA.X, y).fit_report_.no_better is None
    with pytest.warns(UserWarning, match=r"targets lie around 1e\+06, far from the 0 .* with normalize_y=True"):
        shifted.fit(DATA.X, y + 1e6)
    assert shifted.fit_report_.verdict.startswith("No better than the mean of all targets")
    normal = GPRegressor("small_cnn", normalize_y=True, device="cpu").fit(DATA.X, y + 1e6)
    assert normal.fit_report_.no_better is None
    assert normal.loo_error_ < 0.5 * y.std()


def test_of_noise_a_whitening_says_no_more_than_there_is_to_say() -> None:
    """It is learned from the images that are left out as well, and must not be praised for that."""
    X, y = np.random.default_rng(0).standard_normal((120, 3, 16, 16)).astype(np.float32), np.arange(120) % 2
    (among,) = candidates(X, [Row(("small_cnn",), "spectral", "flip")])
    tried = table.Tried(among, lambda recipe, few: kernel_of(recipe, few, make), X.dtype)
    tried.judge(X, ClassTargets(coding_of(y), y), None, 0)
    assert tried.loss > np.log(2) - 0.02
