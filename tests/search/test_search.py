"""Random search: what is drawn, what it is worth, and that neither kills nor company change the outcome."""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.stats

from cnngp import (
    Conv,
    Dense,
    GPClassifier,
    Kernel,
    NetworkError,
    ReLU,
    Sequential,
    datasets,
    from_json,
    random_search,
    search,
    zoo,
)
from cnngp.cli import run
from cnngp.cli.common import network_by_name
from cnngp.common.errors import DatasetError
from cnngp.search import Draw, SearchResult, Space, SpaceError, StudyError, plot, scoring
from cnngp.search import work as search_work
from cnngp.search.claims import Claims
from cnngp.search.scoring import Problem, score
from cnngp.search.space import SPACES, Choice, Range
from cnngp.search.study import NAME
from helpers import fake_cupy

optuna = pytest.importorskip("optuna")
SMALL: dict[str, Any] = {"train": 60, "validation": 60, "device": "cpu", "threads": 1}
DIGITS = datasets.digits()


@functools.cache
def _alone() -> SearchResult:
    """The search that nothing disturbs."""
    return random_search(DIGITS, "paper-cnn", 10, **SMALL)


def _outcome(result: SearchResult) -> list[tuple[Any, ...]]:
    """All that must not depend on how a search was run."""
    return [(t.draw, t.params, t.network_json, t.error, t.score.loo_error, t.invalid) for t in result.trials]


def _records(study: Path) -> list[Any]:
    """The study as any user of Optuna reads it."""
    return optuna.load_study(storage=f"sqlite:///{study}", study_name=NAME).trials  # type: ignore[no-any-return]


# ---- spaces ---------------------------------------------------------------------------------------------------------


class Fixed(Draw):
    """Given values instead of random ones."""

    def __init__(self, **given: Any) -> None:
        super().__init__(0, 0)
        self.given = given

    def _keep(self, name: str, value: Any, drawn_from: Any) -> Any:
        return super()._keep(name, self.given[name], drawn_from)


def test_the_papers_networks_are_in_its_spaces() -> None:
    given = {"weight_var": 2.79, "bias_var": 7.86, "filter_size": 7, "nonlinearity": "relu", "layers": 7}
    assert SPACES["paper-cnn"].build(Fixed(**given, stride=1, padding="same")) == zoo.convnet()
    given = {"weight_var": 7.27, "bias_var": 4.69, "filter_size": 4, "nonlinearity": "relu", "layers": 9}
    assert SPACES["paper-residual"].build(Fixed(**given, skip=1)) == zoo.residual_cnn()


@pytest.mark.parametrize("layers", range(4, 16))
@pytest.mark.parametrize("skip", [1, 2])
def test_a_residual_network_has_the_layers_it_was_asked_for(layers: int, skip: int) -> None:
    given = {"weight_var": 1.0, "bias_var": 1.0, "filter_size": 3, "nonlinearity": "erf", "layers": layers}
    text = SPACES["paper-residual"].build(Fixed(**given, skip=skip)).to_json()
    assert text.count('"Conv"') == layers
    assert text.count('"Sum"') == (layers - 1) // skip


PAPER = {
    "paper-cnn": {
        "weight_var": (0.5, 8.5),
        "bias_var": (0.2, 8.2),
        "layers": range(2, 9),
        "filter_size": range(3, 8),
        "stride": (1, 2, 3),
        "padding": ("same", "valid"),
        "nonlinearity": ("relu", "erf"),
    },
    "paper-residual": {
        "weight_var": (0.5, 8.5),
        "bias_var": (0.2, 8.2),
        "layers": range(4, 16),
        "filter_size": range(3, 7),
        "skip": (1, 2),
        "nonlinearity": ("relu", "erf"),
    },
}


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_hyperparameters_are_uniform(name: str) -> None:
    draws = [Draw(0, k) for k in range(400)]
    for draw in draws:
        SPACES[name].build(draw)
    assert all(list(draw.values) == list(draws[0].values) for draw in draws)
    assert set(draws[0].values) == set(PAPER[name])
    for parameter, expected in PAPER[name].items():
        values = [draw.values[parameter] for draw in draws]
        if parameter.endswith("_var"):
            low, high = expected[0], expected[-1]
            p = scipy.stats.kstest(values, scipy.stats.uniform(low, high - low).cdf).pvalue
            assert draws[0].ranges[parameter] == Range(low, high)
        else:
            counts = Counter(values)
            assert set(counts) == set(expected)
            p = scipy.stats.chisquare([counts[v] for v in expected]).pvalue
        assert p > 1e-3, (parameter, p)


@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 8, 8), (3, 27, 31), (1, 7, 7)])
def test_every_wide_draw_is_an_exact_network_that_fits(shape: tuple[int, ...]) -> None:
    for number in range(30):
        draw = Draw(1, number)
        network = SPACES["wide"].build(draw)
        assert '"allow_non_gaussian": true' not in network.to_json()
        assert network.shapes(shape).cost > 0
        assert from_json(network.to_json()) == network
        for name, value in draw.values.items():
            match draw.ranges[name]:
                case Range(low, high):
                    assert low <= value <= high  # type: ignore[operator]
                case Choice(options):
                    assert value in options


def test_wide_networks_keep_the_variance() -> None:
    """He's scaling: a deep plain network neither dies nor explodes, whatever the slope."""
    X = np.random.default_rng(0).uniform(0, 1, (2, 1, 64, 64))
    given = {"nonlinearity": "leaky", "biased": False, "residual": False, "block_layers": 2, "stem_size": 3}
    given |= {"stages": 2, "last_nonlinearity": False, "dense_hidden": 0, "filter_size_0": 3, "blocks_0": 2}
    given |= {"filter_size_1": 3, "blocks_1": 2, "stride_1": 1}
    for slope in (-1.0, -0.3, 0.5):
        network = SPACES["wide"].build(Fixed(**given, slope=slope))
        assert str(network).count("Conv") == 9
        start = Kernel(Sequential(Conv(3, weight_var=10.0), Dense()), device="cpu").diag(X)
        weight = 2.0 / (1.0 + slope**2)
        # The border of zeros takes a few percent; the last Dense has the weights of a layer without its nonlinearity.
        assert Kernel(network, device="cpu").diag(X) / (start * weight) == pytest.approx(1.0, abs=0.2)


def test_a_draw_depends_on_seed_number_and_attempt_alone() -> None:
    def values(*key: int) -> dict[str, Any]:
        draw = Draw(*key)
        SPACES["wide"].build(draw)
        return draw.values

    assert values(3, 5, 1) == values(3, 5, 1)
    others = [values(*key) for key in ((3, 5, 0), (3, 5, 2), (3, 6, 1), (4, 5, 1))]
    assert all(other != values(3, 5, 1) for other in others)


def test_a_space_that_draws_a_name_twice() -> None:
    draw = Draw(0, 0)
    draw.real("width", 0.0, 1.0)
    with pytest.raises(SpaceError, match="draws 'width' twice"):
        draw.integer("width", 1, 2)


def _twice(draw: Draw) -> Sequential:
    return Sequential(Dense(weight_var=draw.real("a", 1.0, 2.0), bias_var=draw.real("a", 1.0, 2.0)))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda draw: 5, r"build of the space mine returned 5 \(int\); expected a network such as Sequential"),
        (lambda draw: None, r"returned None \(NoneType\); expected a network"),
        (_twice, r"draws 'a' twice; give each hyperparameter a name of its own"),
        (lambda draw: draw.real("w", 2, 1), r"draws 'w' from 2 to 1; expected the lower end first, both finite"),
        (lambda draw: draw.real("w", 0.0, 1.0, log=True), r"draws 'w' from 0\.0 to 1\.0; expected 0 < the lower end"),
        (lambda draw: draw.real("w", 0.0, math.nan), r"draws 'w' from 0\.0 to nan"),
        (lambda draw: draw.integer("n", 4, 3), r"draws 'n' from 4 to 3"),
        (lambda draw: draw.choice("c", ()), r"draws 'c' from no options"),
    ],
)
def test_a_mistake_in_a_space_is_told_at_its_first_draw(build: Any, message: str) -> None:
    draws: list[Draw] = []

    def counted(draw: Draw) -> Any:
        draws.append(draw)
        return build(draw)

    with pytest.raises(SpaceError, match=message) as caught:
        random_search(DIGITS, Space("mine", 1, counted, ""), 5, **SMALL)
    assert "\n" not in str(caught.value)
    assert len(draws) == 1


def test_a_space_that_other_processes_cannot_be_given(tmp_path: Path) -> None:
    space = Space("mine", 1, lambda draw: Sequential(Dense()), "")
    with pytest.raises(SpaceError, match=r"the space mine cannot be sent to other processes \(.*lambda.*processes=1"):
        random_search(DIGITS, space, 2, **SMALL, processes=2, study=tmp_path / "s.db")
    assert not (tmp_path / "s.db").exists()
    assert len(random_search(DIGITS, space, 2, **SMALL).trials) == 2


# ---- scores ---------------------------------------------------------------------------------------------------------


def test_a_score_is_what_the_classifier_says() -> None:
    data = DIGITS.take(150, 100)
    for network in (zoo.small_cnn(), zoo.residual_cnn()):
        problem = Problem("digits", data.X, data.y, data.X_test, data.y_test, 10, device="cpu")
        found = score(network, problem)
        clf = GPClassifier(network, device="cpu").fit(data.X, data.y)
        assert found.error == pytest.approx(1 - clf.score(data.X_test, data.y_test), abs=1e-12)
        assert found.loo_error == clf.loo_error_
        assert found.jitter == clf.fit_report_.jitter
        assert found.engine == clf.fit_report_.engine
        assert problem.pairs == 150 * 149 // 2 + 150 * 100
        assert 0 < found.kernel_seconds < found.seconds - found.compile_seconds


def test_a_score_does_not_depend_on_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    data = DIGITS.take(80, 50)
    problem = Problem("digits", data.X, data.y, data.X_test, data.y_test, 10, device="cpu")
    whole = score(zoo.small_cnn(), problem)
    monkeypatch.setitem(scoring._CHUNK, "cpu", 80 * 7)
    assert score(zoo.small_cnn(), problem).error == whole.error > 0


def test_a_score_from_matrices_on_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path with device arrays, on arrays that behave like CuPy's."""
    data = DIGITS.take(80, 50)
    problem = Problem("digits", data.X, data.y, data.X_test, data.y_test, 10, device="cpu")
    on_cpu = score(zoo.small_cnn(), problem)
    for name, module in fake_cupy.modules().items():
        monkeypatch.setitem(sys.modules, name, module)

    class OnCard(Kernel):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.device = "cuda"

        def engine_for(self, input_shape: Any) -> Any:
            return Kernel(self.network, "cpu").engine_for(input_shape)

        def _images(self, X: Any, name: str) -> Any:
            return Kernel(self.network, "cpu")._images(X, name)

        def __call__(self, X: Any, Z: Any = None, *, output: Any = "numpy", progress: bool = True) -> Any:
            assert output == "cupy"
            return fake_cupy.ndarray(Kernel(self.network, "cpu")(X, Z))

    monkeypatch.setattr(scoring, "Kernel", OnCard)
    monkeypatch.setattr(scoring.memory, "require", lambda *_: None)
    found = score(zoo.small_cnn(), problem)
    assert (found.error, found.loo_error, found.jitter) == (on_cpu.error, on_cpu.loo_error, on_cpu.jitter)
    assert found.engine.startswith("cuda")


def test_a_singular_kernel_is_scored_with_its_jitter() -> None:
    data = DIGITS.take(40, 30)
    X, y = np.concatenate([data.X, data.X]), np.concatenate([data.y, data.y])
    found = score(zoo.small_cnn(), Problem("twice", X, y, data.X_test, data.y_test, 10, device="cpu"))
    assert found.jitter > 0


# ---- searches -------------------------------------------------------------------------------------------------------


def test_a_search_keeps_everything_in_the_study(tmp_path: Path) -> None:
    study = tmp_path / "deep" / "s.db"
    result = random_search(DIGITS, "paper-cnn", 6, **SMALL, study=study)
    assert [t.draw for t in result.trials] == list(range(6))
    records = _records(study)
    assert [r.state.name for r in records] == ["COMPLETE"] * 6
    for trial, record in zip(result.trials, records, strict=True):
        draw = Draw(0, trial.draw, len(trial.invalid))
        assert SPACES["paper-cnn"].build(draw) == trial.network
        assert record.params == trial.params == draw.values
        assert record.value == trial.error
        for name in ("loo_error", "seconds", "pairs_per_second", "jitter"):
            assert record.user_attrs[name] == getattr(trial.score, name)
        assert from_json(record.user_attrs["network"]) == trial.network
    attributes = optuna.load_study(storage=f"sqlite:///{study}", study_name=NAME).user_attrs
    assert attributes["invalid"] == result.invalid == sum(len(t.invalid) for t in result.trials) > 0
    assert result.best.error == min(t.error for t in result.trials)
    assert result.network == result.best.network
    table = result.table(3).splitlines()
    assert len(table) == 4
    assert f"{100 * result.best.error:.2f} %" in table[1]
    assert not list(study.parent.glob("*.claims"))


def test_more_draws_go_on_and_fewer_ask_for_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = tmp_path / "s.db"
    first = random_search(DIGITS, "paper-cnn", 3, **SMALL, study=study)
    computed: list[int] = []
    compute = search_work.compute
    monkeypatch.setattr(search_work, "compute", lambda *a: (computed.append(a[3]), compute(*a))[1])
    more = random_search(DIGITS, "paper-cnn", 5, **SMALL, study=study)
    assert computed == [3, 4]
    assert _outcome(more)[:3] == _outcome(first)
    again = random_search(DIGITS, "paper-cnn", 2, **SMALL, study=study)
    assert computed == [3, 4]
    assert _outcome(again) == _outcome(first)[:2]
    assert _outcome(more) == _outcome(_alone())[:5]
    assert _outcome(random_search(DIGITS, "paper-cnn", 1, **SMALL, seed=1)) != _outcome(more)[:1]


def _good_or_bad(draw: Draw) -> Sequential:
    """A network that sees the image, or one whose biases drown it."""
    bias_var = 0.01 if draw.choice("good", (True, False)) else 1e7
    return Sequential(Conv(3, weight_var=2.0, bias_var=bias_var), ReLU(), Dense())


def test_the_better_network_wins() -> None:
    result = random_search(DIGITS, Space("good or bad", 1, _good_or_bad, ""), 6, **SMALL)
    assert {t.params["good"] for t in result.trials} == {True, False}
    assert result.best.params["good"] is True
    errors = {good: {t.error for t in result.trials if t.params["good"] is good} for good in (True, False)}
    assert max(errors[True]) < min(errors[False])


def _often_invalid(draw: Draw) -> Any:
    match draw.choice("kind", ("too small", "out of range", "fine")):
        case "too small":
            return Sequential(Conv(9, padding="valid"), ReLU(), Dense())
        case "out of range":
            return Sequential(Conv(3, weight_var=1e30), ReLU(), Dense(weight_var=1e30))
        case _:
            return zoo.small_cnn()


def test_invalid_draws_are_drawn_again_and_counted() -> None:
    result = random_search(DIGITS, Space("often", 1, _often_invalid, ""), 8, **SMALL)
    assert all(t.params == {"kind": "fine"} for t in result.trials)
    reasons = [reason.split(":")[0] for t in result.trials for reason in t.invalid]
    assert result.invalid == len(reasons)
    assert set(reasons) == {"NetworkError", "RangeError"}
    expected = []
    for number in range(8):
        attempt = 0
        while True:
            draw = Draw(0, number, attempt)
            _often_invalid(draw)
            if draw.values["kind"] == "fine":
                break
            attempt += 1
        expected.append(attempt)
    assert [len(t.invalid) for t in result.trials] == expected


def _never(draw: Draw) -> Any:
    return Sequential(Conv(9, padding="valid"), Dense())


def test_a_space_without_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_work, "_MOST_REDRAWS", 5)
    with pytest.raises(RuntimeError, match=r"5 draws of the space never in a row make no network on images of 1 × 8 ×"):
        random_search(DIGITS, Space("never", 1, _never, ""), 5, **SMALL)


def test_a_draw_that_fails_is_left_out_and_tried_again_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = tmp_path / "s.db"
    compute = search_work.compute

    def broken(*arguments: Any) -> Any:
        if arguments[3] in (1, 3):
            raise OSError("the card has gone away")
        return compute(*arguments)

    monkeypatch.setattr(search_work, "compute", broken)
    result = random_search(DIGITS, "paper-cnn", 4, **SMALL, study=study)
    assert [t.draw for t in result.trials] == [0, 2]
    assert result.failures == {n: f"draw {n}: OSError: the card has gone away" for n in (1, 3)}
    monkeypatch.undo()
    result = random_search(DIGITS, "paper-cnn", 4, **SMALL, study=study)
    assert [t.draw for t in result.trials] == [0, 1, 2, 3]
    assert result.failures == {}
    assert _outcome(result) == _outcome(_alone())[:4]
    monkeypatch.setattr(search_work, "compute", lambda *_: 1 / 0)
    with pytest.raises(RuntimeError, match=r"draw 6: ZeroDivisionError.*keeps what is finished"):
        random_search(DIGITS, "paper-cnn", 10, **SMALL, study=study)
    assert not list(tmp_path.glob("*.claims"))


def test_a_claim_is_let_go_whatever_became_of_the_draw() -> None:
    dropped: list[str] = []
    study: Any = SimpleNamespace(claims=SimpleNamespace(drop=dropped.append), fail=lambda *_: None, path="s.db")
    level: Any = SimpleNamespace(networks=None, run="r", claim_name=str, record=lambda study, found: None)

    def outcome(fails: bool) -> Any:
        if fails:
            raise OSError("the card has gone away")

    assert search_work.keep(level, study, 0, lambda: outcome(True), 0) == 1
    assert search_work.keep(level, study, 1, lambda: outcome(False), 1) == 0
    with pytest.raises(RuntimeError, match=r"draw 2: OSError: the card has gone away \(s\.db keeps"):
        search_work.keep(level, study, 2, lambda: outcome(True), 2)
    assert dropped == ["0", "1", "2"]


def test_rungs_and_the_one_look_at_the_test_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = tmp_path / "s.db"
    arguments: dict[str, Any] = SMALL | {"study": study, "full": [(3, 120), (2, None)], "test": True}
    data = datasets.digits().take(300, 80)
    result = random_search(data, "paper-cnn", 5, **arguments)
    assert [(r.train, len(r.trials)) for r in result.rungs] == [(120, 3), (240, 2)]
    by_error = sorted(result.trials, key=lambda t: (t.error, t.score.loo_error, t.draw))
    assert {t.draw for t in result.rungs[0].trials} == {t.draw for t in by_error[:3]}
    assert {t.draw for t in result.rungs[1].trials} == {t.draw for t in result.rungs[0].trials[:2]}
    assert result.best == result.rungs[1].trials[0]
    assert result.best.error == min(t.error for t in result.rungs[1].trials)
    split = data.hold_out(60)
    clf = GPClassifier(result.network, device="cpu").fit(split.X, split.y)
    assert result.best.error == pytest.approx(1 - clf.score(split.X_validation, split.y_validation), abs=1e-12)
    assert result.test is not None
    assert (result.test.draw, result.test.train, result.test.images, result.test.looks) == (
        result.best.draw,
        240,
        80,
        1,
    )
    assert result.test.error == pytest.approx(1 - clf.score(data.X_test, data.y_test), abs=1e-12)
    for module in (search, search_work):  # nothing is computed a second time
        monkeypatch.setattr(module, "score", None)
    again = random_search(data, "paper-cnn", 5, **arguments)
    assert again.rungs == result.rungs
    assert again.test == result.test
    assert random_search(data, "paper-cnn", 5, **(arguments | {"test": False})).test == result.test
    monkeypatch.undo()
    unseen = random_search(data, "paper-cnn", 5, **(arguments | {"full": [(3, 100)], "test": False}))
    assert unseen.test is None  # the look was with other training images
    other = random_search(data, "paper-cnn", 5, **(arguments | {"full": [(3, 100)]}))
    assert other.test is not None
    assert other.test.looks == 2  # told honestly


def test_validation_images_are_never_trained_on() -> None:
    """A memory of the training images alone is no better than chance on the held-out ones."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (200, 1, 8, 8)).astype(np.float32)
    y = np.tile([0, 1], 100)
    data = datasets.Dataset("noise", X, y, X[:10], y[:10])
    result = random_search(data, "paper-cnn", 1, train=None, validation=80, device="cpu")
    assert result.trials[0].score.train == 120
    assert 0.25 < result.trials[0].error < 0.75


def test_the_splits_own_validation_images(tmp_path: Path) -> None:
    d = datasets.digits()
    split = datasets.Dataset("split", d.X[:200], d.y[:200], d.X_test, d.y_test, d.X[200:400], d.y[200:400])
    result = random_search(split, "paper-cnn", 1, train=50, validation=70, device="cpu")
    clf = GPClassifier(result.network, device="cpu").fit(d.X[:50], d.y[:50])
    assert result.best.error == pytest.approx(1 - clf.score(d.X[200:270], d.y[200:270]), abs=1e-12)


def _by_class(data: datasets.Dataset, n: int) -> datasets.Dataset:
    order = np.argsort(data.y[:n], kind="stable")
    return datasets.Dataset("by class", data.X[:n][order], data.y[:n][order], data.X_test, data.y_test)


def test_images_in_class_order_are_searched_as_well_as_others() -> None:
    """The last ones would all be of the last classes, and the first ones of the first."""
    result = random_search(_by_class(DIGITS, 400), "paper-cnn", 3, train=100, device="cpu")
    assert result.trials[0].score.validation == 100
    assert result.best.error < 0.3
    assert result.best.score.loo_error < 0.3


def test_labels_that_training_has_not_are_refused(tmp_path: Path) -> None:
    d, study = DIGITS, tmp_path / "s.db"
    arguments: dict[str, Any] = {"device": "cpu", "study": study}
    few = r"labels that its first 5 training images have not: \[.*\]; use more training images"
    with pytest.raises(DatasetError, match=f"the validation images of digits have {few}"):
        random_search(d, "paper-cnn", 1, train=5, **arguments)
    with pytest.raises(DatasetError, match=f"the validation images of digits have {few}"):
        random_search(d, "paper-cnn", 1, train=100, full=[(1, 5)], **arguments)
    two = np.isin(d.y, (0, 1))
    known = datasets.Dataset("two", d.X[two], d.y[two], d.X_test, d.y_test)
    with pytest.raises(DatasetError, match=r"the test images of two have labels .*: \[2, 3, 4, 5, 6\]"):
        random_search(known, "paper-cnn", 1, train=60, validation=40, test=True, **arguments)
    by_class = _by_class(d, 300)
    own = datasets.Dataset("own", by_class.X, by_class.y, d.X_test, d.y_test, d.X[300:400], d.y[300:400])
    with pytest.raises(DatasetError, match="the validation images of own have labels that its first 100 training"):
        random_search(own, "paper-cnn", 1, train=100, **arguments)
    assert not study.exists()


def test_a_study_of_another_split_is_not_gone_on_with(tmp_path: Path) -> None:
    """Studies say what was held out by the content of the images: an older way of holding out is another search."""
    study = tmp_path / "s.db"
    last = datasets.Dataset(
        "digits", DIGITS.X[:-60], DIGITS.y[:-60], DIGITS.X_test, DIGITS.y_test, DIGITS.X[-60:], DIGITS.y[-60:]
    )
    random_search(last, "paper-cnn", 1, **SMALL, study=study)
    with pytest.raises(StudyError, match="others of them were held out for validation; give another study file"):
        random_search(DIGITS, "paper-cnn", 1, **SMALL, study=study)
    assert len(_records(study)) == 1


def test_a_study_of_the_splits_own_validation_images_is_what_it_was(tmp_path: Path) -> None:
    """Its identity is that of the rows as they come, so that studies of MNIST made by any version go on."""
    d, study = DIGITS, tmp_path / "s.db"
    split = datasets.Dataset("split", d.X[:200], d.y[:200], d.X_test, d.y_test, d.X[200:300], d.y[200:300])
    random_search(split, "paper-cnn", 1, train=50, validation=70, device="cpu", study=study)
    problem = Problem("split", d.X[:50], d.y[:50], d.X[200:270], d.y[200:270], 10)
    identity = optuna.load_study(storage=f"sqlite:///{study}", study_name=NAME).user_attrs["identity"]
    assert identity == {
        "space": "paper-cnn (version 1)",
        "seed": 0,
        "images": "split, 50 training and 70 validation images",
        "content": problem.fingerprint(),
        "dtype": "float32",
    }


# ---- company and kills ----------------------------------------------------------------------------------------------

_SCRIPT = """
import sys, time
from cnngp import datasets, random_search
from cnngp.search import Space
from cnngp.search.space import SPACES

def slow(draw):
    time.sleep({nap})
    return SPACES["paper-cnn"].build(draw)

if __name__ == "__main__":
    result = random_search(
        datasets.digits(), Space("slow", 1, slow, ""), {draws}, train=60, validation=60, study=sys.argv[1],
        device="cpu", threads=1, processes={processes},
    )
    print(len(result.trials))
"""


def _start(tmp_path: Path, nap: float, draws: int, processes: int = 1) -> subprocess.Popen[str]:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT.format(nap=nap, draws=draws, processes=processes))
    command = [sys.executable, str(script), str(tmp_path / "s.db")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _same_as_alone(study: Path, draws: int) -> None:
    """Each draw is there exactly once, and is what an undisturbed search gives."""
    records = _records(study)
    assert sorted(r.user_attrs["draw"] for r in records) == list(range(draws))
    by_draw = {r.user_attrs["draw"]: r for r in records}
    for trial in _alone().trials[:draws]:
        record = by_draw[trial.draw]
        assert (record.params, record.value) == (trial.params, trial.error)
        assert record.user_attrs["network"] == trial.network_json
        assert record.user_attrs["loo_error"] == trial.score.loo_error


def test_killed_and_run_again_by_two_processes(tmp_path: Path) -> None:
    study = tmp_path / "s.db"
    first = _start(tmp_path, nap=0.2, draws=6)
    deadline = time.monotonic() + 60
    while not (study.exists() and _count(study) >= 2):
        assert first.poll() is None, first.stderr.read()  # type: ignore[union-attr]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    first.kill()
    first.communicate()
    done = _count(study)
    assert 2 <= done < 6
    second = _start(tmp_path, nap=0.0, draws=6, processes=2)
    out, err = second.communicate(timeout=60)
    assert (out.strip(), second.returncode) == ("6", 0), err
    _same_as_alone(study, 6)


def _count(study: Path) -> int:
    try:
        with sqlite3.connect(study, timeout=10) as file:
            return int(file.execute("SELECT COUNT(*) FROM trials").fetchone()[0])
    except sqlite3.OperationalError:  # the tables are not there yet
        return 0


@pytest.mark.slow
def test_two_commands_and_their_processes_share_one_study(tmp_path: Path) -> None:
    commands = [_start(tmp_path, nap=0.1, draws=10), _start(tmp_path, nap=0.1, draws=10, processes=2)]
    for command in commands:
        out, err = command.communicate(timeout=120)
        assert (out.strip(), command.returncode) == ("10", 0), err
    _same_as_alone(tmp_path / "s.db", 10)
    assert not list(tmp_path.glob("*.claims"))


def _deadly(draw: Draw) -> Any:
    os._exit(7)


@pytest.mark.slow
def test_a_process_that_dies_is_reported(tmp_path: Path) -> None:
    deadly = Space("deadly", 1, _deadly, "")
    with pytest.raises(RuntimeError, match=r"ended with exit code 7.*what is finished is kept"):
        random_search(DIGITS, deadly, 4, train=60, validation=60, device="cpu", study=tmp_path / "s.db", processes=2)


def test_threads_share_one_study(tmp_path: Path) -> None:
    results = []

    def search_here() -> None:
        results.append(random_search(DIGITS, "paper-cnn", 8, **SMALL, study=tmp_path / "s.db"))

    threads = [threading.Thread(target=search_here) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3
    _same_as_alone(tmp_path / "s.db", 8)


def test_a_claim_dies_with_its_process(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from cnngp.search.claims import Claims;"
        "c = Claims(Path(sys.argv[1])); print(c.take('a'), flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "c")], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline().strip() == "True"
    claims = Claims(tmp_path / "c")
    assert not claims.take("a")
    assert claims.take("b")
    os.kill(holder.pid, signal.SIGKILL)
    holder.communicate()
    assert claims.take("a")
    assert not Claims(tmp_path / "c").take("a")  # nor twice in one process
    claims.drop_all()
    assert Claims(tmp_path / "c").take("a")


def test_interrupted_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compute = search_work.compute

    def interrupted(*arguments: Any) -> Any:
        if arguments[3] == 2:
            raise KeyboardInterrupt
        return compute(*arguments)

    monkeypatch.setattr(search_work, "compute", interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"2 of 5 networks are in .*s\.db\. Run the same again to go on"):
        random_search(DIGITS, "paper-cnn", 5, **SMALL, study=tmp_path / "s.db")


@pytest.mark.slow
def test_on_a_dask_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "score", None)  # the client may have no card: nothing is scored in it
    distributed = pytest.importorskip("distributed")
    study = tmp_path / "s.db"
    settings = {"n_workers": 1, "threads_per_worker": 2, "processes": False, "dashboard_address": None}
    settings |= {"protocol": "tcp://", "silence_logs": 50}
    with distributed.LocalCluster(**settings) as cluster:
        result = random_search(
            DIGITS, "paper-cnn", 4, **SMALL, study=study, full=[(2, 80)], scheduler=cluster.scheduler_address, test=True
        )
    assert len(result.trials) == 4
    assert result.test is not None
    split = DIGITS.hold_out(60)
    clf = GPClassifier(result.network, device="cpu").fit(split.X[:80], split.y[:80])
    assert result.test.error == pytest.approx(1 - clf.score(DIGITS.X_test, DIGITS.y_test), abs=1e-12)
    assert len(result.rungs[0].trials) == 2
    _same_as_alone(study, 4)


@pytest.mark.gpu
def test_on_a_card() -> None:
    on_cpu = random_search(DIGITS, "wide", 6, **SMALL)
    on_card = random_search(DIGITS, "wide", 6, train=60, validation=60, device="cuda", processes=2)
    for a, b in zip(on_cpu.trials, on_card.trials, strict=True):
        assert a.network == b.network
        assert b.error == pytest.approx(a.error, abs=1.5 / 60)  # rounding may tip an image that is on the edge
        assert b.score.engine.startswith("cuda")


# ---- mistakes -------------------------------------------------------------------------------------------------------


def test_another_searchs_study_is_refused(tmp_path: Path) -> None:
    study = tmp_path / "s.db"
    random_search(DIGITS, "paper-cnn", 1, **SMALL, study=study)
    others: list[tuple[str, dict[str, Any], str]] = [
        ("paper-residual", {}, r"its space is paper-cnn \(version 1\) and not paper-residual"),
        ("paper-cnn", {"seed": 5}, "its seed is 0 and not 5"),
        ("paper-cnn", {"train": 61}, "its images is digits, 60 training"),
        ("paper-cnn", {"dtype": "float64"}, "its dtype is float32 and not float64"),
    ]
    for name, changed, message in others:
        with pytest.raises(StudyError, match=rf"holds another search: .*{message}"):
            random_search(DIGITS, name, 1, **(SMALL | {"study": study} | changed))
    X = DIGITS.X.copy()
    X[:, 0, 0, 0] += 0.5
    moved = datasets.Dataset("digits", X, DIGITS.y, DIGITS.X_test, DIGITS.y_test)
    with pytest.raises(StudyError, match=r"its content is .*other images, or others of them were held out"):
        random_search(moved, "paper-cnn", 1, **SMALL, study=study)
    assert len(_records(study)) == 1


def test_files_that_are_no_study(tmp_path: Path) -> None:
    text = tmp_path / "text.db"
    text.write_text("not a database, but long enough to look like a file of some kind\n" * 20)
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as file:
        file.execute("CREATE TABLE people (name TEXT)")
    others = tmp_path / "others.db"
    optuna.create_study(storage=f"sqlite:///{others}", study_name="mine")
    cut = tmp_path / "cut.db"
    random_search(DIGITS, "paper-cnn", 1, **SMALL, study=cut)
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    for path, message in (
        (text, "is not a study of Optuna"),
        (foreign, "is not a study of Optuna"),
        (others, "holds other studies"),
        (cut, "is not a study of Optuna|is damaged"),
        (tmp_path, "is a folder"),
    ):
        before = None if path.is_dir() else path.read_bytes()
        with pytest.raises(StudyError, match=message) as caught:
            random_search(DIGITS, "paper-cnn", 1, **SMALL, study=path)
        assert "\n" not in str(caught.value)
        assert before is None or path.read_bytes() == before
    assert not list(tmp_path.glob("*.claims"))


def test_a_study_that_cannot_be_written(tmp_path: Path) -> None:
    study = tmp_path / "s.db"
    random_search(DIGITS, "paper-cnn", 1, **SMALL, study=study)
    with sqlite3.connect(study) as file:  # what a full disk or a lost permission does
        file.execute("CREATE TRIGGER full BEFORE INSERT ON trials BEGIN SELECT RAISE(ABORT, 'disk is full'); END")
    with pytest.raises(StudyError, match=r"s\.db cannot be read or written as a study: disk is full"):
        random_search(DIGITS, "paper-cnn", 2, **SMALL, study=study)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"space": "narrow"}, NetworkError, "no space 'narrow': expected one of paper-cnn, paper-residual, wide"),
        ({"draws": 0}, ValueError, "draws=0: expected an integer of 1 or more"),
        ({"processes": 0}, ValueError, "processes=0"),
        ({"seed": -1}, ValueError, "seed=-1"),
        ({"full": [3]}, ValueError, "expected pairs"),
        ({"full": [(0, None)]}, ValueError, "full=0"),
        ({"full": [(1, 9999)]}, DatasetError, "1,237 training images to give, but 9,999 were asked for"),
        ({"train": 5000}, DatasetError, "but 5,000 were asked for"),
        ({"validation": 5000}, DatasetError, "but 5,000 were asked for"),
        ({"validation": 0}, DatasetError, "but 0 were asked for"),
        ({"device": "tpu"}, ValueError, "device='tpu'"),
        ({"dtype": "float16"}, ValueError, "dtype='float16'"),
        ({"scheduler": "tcp://nowhere:1", "processes": 2}, ValueError, "processes=2 with a scheduler"),
        ({"scheduler": "nowhere"}, RuntimeError, "scheduler 'nowhere': expected the address of a Dask scheduler"),
        (
            {"data": (DIGITS.X, DIGITS.y)},
            DatasetError,
            "data is a tuple; expected a name such as 'digits', or cnngp",
        ),
    ],
)
def test_bad_arguments(tmp_path: Path, arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    study = tmp_path / "s.db"
    with pytest.raises(error, match=message):
        random_search(**(SMALL | {"data": DIGITS, "study": study} | arguments))
    assert not study.exists()  # refused before anything is made


def test_without_optuna(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r"a search needs Optuna: pip install \"cnngp\[search\]\""):
        random_search(DIGITS, **SMALL)
    assert run(["search", "--output", str(tmp_path)]) == 1
    assert capsys.readouterr().err == 'error: a search needs Optuna: pip install "cnngp[search]"\n'


# ---- the command line -----------------------------------------------------------------------------------------------


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, best = tmp_path / "out", tmp_path / "best.json"
    arguments = ["search", "--draws", "4", "--train", "80", "--validation", "60", "--full", "2@120", "--full", "1"]
    arguments += ["--test", "--device", "cpu", "--output", str(folder), "--best", str(best), "--json"]
    assert run(arguments) == 0
    printed = capsys.readouterr().out
    for text in ("digits: 1,297 training", "invalid ones drawn again", "with 120 images", "looked at once", "engine"):
        assert text in printed
    last = json.loads(printed.splitlines()[-1])
    assert last["command"] == "search"
    assert last["draws"] == 4
    assert [rung["train"] for rung in last["rungs"]] == [120, 1237]
    assert last["test"]["looks"] == 1
    for name in ("draws.png", "draws.svg", "hyperparameters.png", "hyperparameters.svg"):
        assert (folder / name).stat().st_size > 5_000
    results = json.loads((folder / "results.json").read_text())
    assert [t["draw"] for t in results["trials"]] == [0, 1, 2, 3]
    assert results["best"]["error"] == last["best"]["error"]
    chosen = next(t for t in results["trials"] if t["draw"] == last["best"]["draw"])
    network = network_by_name(str(best))  # what --network FILE does
    split = DIGITS.hold_out(60)
    clf = GPClassifier(network, device="cpu").fit(split.X[:80], split.y[:80])
    assert clf.loo_error_ == chosen["loo_error"]
    assert run([a for a in arguments if a != "--test"]) == 0  # what was seen stays seen
    assert json.loads((folder / "results.json").read_text())["test"] == results["test"] == last["test"]
    assert "looked at once" in capsys.readouterr().out


def test_a_failing_look_at_the_test_images_costs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise MemoryError("too many test images")

    monkeypatch.setattr(search, "score", full)
    arguments = ["search", "--draws", "2", "--train", "60", "--validation", "60", "--test", "--device", "cpu"]
    assert run([*arguments, "--output", str(tmp_path)]) == 1
    assert "too many test images" in capsys.readouterr().err
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["draws"] == 2
    assert results["test"] is None
    assert network_by_name(str(tmp_path / "best.json")) is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--full", "three"], "--full three: expected how many, such as 3"),
        (["--space", "narrow"], "no space 'narrow'"),
        (["--draws", "0"], "draws=0"),
        (["--data", "nothing"], "no data 'nothing'"),
        (["--train", "5"], "use more training images"),
        (["--device", "tpu"], "device='tpu'"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["search", "--output", str(tmp_path / "out"), *arguments]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert message in lines[0]
    assert not (tmp_path / "out").exists()  # what is refused leaves nothing behind


@pytest.mark.parametrize("option", ["--output", "--best", "--study"])
def test_what_cannot_be_written_is_found_out_first(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    place = tmp_path / "file" / "x"
    arguments = ["search", "--draws", "1", "--train", "60", "--device", "cpu", "--output", str(tmp_path / "out")]
    assert run([*arguments, option, str(place)]) == 1
    printed = capsys.readouterr()
    assert printed.err == f"error: {option} {place} cannot be written: Not a directory; give another\n"
    assert printed.out == ""
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def _sometimes_biased(draw: Draw) -> Sequential:
    bias_var = draw.real("bias_var", 1e-4, 1e-1, log=True) if draw.choice("biased", (False, True)) else 0.0
    return Sequential(Conv(3, weight_var=2.0, bias_var=bias_var), ReLU(), Dense())


def test_plots_of_a_search_with_no_errors_at_all(tmp_path: Path) -> None:
    """Zero on a logarithmic axis, and hyperparameters that not every draw has."""
    data = datasets.digits()
    easy = np.isin(data.y, (0, 1))
    simple = datasets.Dataset("easy", data.X[easy], data.y[easy], data.X_test, data.y_test)
    result = random_search(simple, Space("mine", 1, _sometimes_biased, ""), 6, train=60, validation=40, device="cpu")
    assert len({len(t.params) for t in result.trials}) == 2
    assert result.best.error == 0.0
    written = result.plot(tmp_path / "new")
    assert [p.name for p in written] == ["draws.png", "draws.svg", "hyperparameters.png", "hyperparameters.svg"]
    svg = (tmp_path / "new" / "hyperparameters.svg").read_text()
    assert "<svg" in svg
    assert math.isfinite(result.seconds)


@pytest.mark.parametrize(("errors", "labelled"), [((2.0, 9.0), True), ((0.9, 9.5), False), ((1.0, 90.0), False)])
def test_labels_between_powers_of_ten_only_within_one(errors: tuple[float, float], labelled: bool) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.subplots()
    axes.plot([0, 1], errors)
    plot._percent_scale(axes)
    figure.draw_without_rendering()
    low, high = axes.get_ylim()
    shown = [t.get_text() for t in axes.yaxis.get_minorticklabels() if low <= t.get_position()[1] <= high]
    assert any(shown) is labelled
    between = axes.yaxis.get_majorticklabels() + axes.yaxis.get_minorticklabels()
    boxes = [t.get_window_extent() for t in between if t.get_text() and low <= t.get_position()[1] <= high]
    assert boxes
    boxes.sort(key=lambda box: box.y0)
    assert all(a.y1 <= b.y0 for a, b in itertools.pairwise(boxes))
