"""Random search: what a study keeps, how it goes on, and which images it looks at."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cnngp import Conv, Dense, GPClassifier, ReLU, Sequential, datasets, from_json, random_search, search, zoo
from cnngp.common.errors import DatasetError
from cnngp.kernel.program import Kind
from cnngp.search import Draw, SearchResult, Space, StudyError
from cnngp.search import work as search_work
from cnngp.search.scoring import Problem
from cnngp.search.space import SPACES
from cnngp.search.study import NAME
from helpers.searches import DIGITS, SMALL, alone, records_of

optuna = pytest.importorskip("optuna")


def _outcome(result: SearchResult) -> list[tuple[Any, ...]]:
    """All that must not depend on how a search was run."""
    return [(t.draw, t.params, t.network_json, t.error, t.score.loo_error, t.invalid) for t in result.trials]


def test_a_search_keeps_everything_in_the_study(tmp_path: Path) -> None:
    study = tmp_path / "deep" / "s.db"
    result = random_search(DIGITS, "paper-cnn", 6, **SMALL, study=study)
    assert [t.draw for t in result.trials] == list(range(6))
    records = records_of(study)
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
    assert _outcome(more) == _outcome(alone())[:5]
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
    assert _outcome(result) == _outcome(alone())[:4]
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


def test_labels_that_no_training_image_has_are_refused(tmp_path: Path) -> None:
    d, study = DIGITS, tmp_path / "s.db"
    arguments: dict[str, Any] = {"device": "cpu", "study": study}
    few = r"labels that its first 5 training images do not have: \[.*\]; use more training images"
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
    assert len(records_of(study)) == 1


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


def test_networks_are_scored_by_either_kernel_and_a_study_keeps_to_one(tmp_path: Path) -> None:
    def scored(kind: Kind) -> SearchResult:
        return random_search(DIGITS, "paper-cnn", 2, **SMALL, kind=kind, study=tmp_path / f"{kind}.db")

    gp, ntk = scored("nngp"), scored("ntk")
    assert [t.network for t in gp.trials] == [t.network for t in ntk.trials]
    assert "ntk" in ntk.best.score.engine
    (tmp_path / "nngp.db").replace(tmp_path / "ntk.db")
    with pytest.raises(StudyError, match="its kind is nngp and not ntk"):
        scored("ntk")
