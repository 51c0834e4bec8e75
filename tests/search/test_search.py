"""Random search: what a study keeps, how it goes on, and which images it looks at."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from optuna.trial import FixedTrial

from cnngp import Conv, Dense, GPClassifier, NetworkError, ReLU, Sequential, datasets, search, zoo
from cnngp.search import SearchResult, Space, random_search, scoring
from cnngp.search.scoring import score
from cnngp.search.space import SPACES
from helpers.searches import DIGITS, SMALL, alone, assert_kept, fails_at, records_of

optuna = pytest.importorskip("optuna")


def _outcome(result: SearchResult) -> list[tuple[Any, ...]]:
    """All that must not depend on how a search was run."""
    return [(t.draw, t.params, t.network_json, t.error, t.score.loo_error) for t in result.trials]


def test_a_search_keeps_everything_in_the_study(tmp_path: Path) -> None:
    study = tmp_path / "deep" / "s.journal"
    result = random_search(DIGITS, "paper-cnn", 6, **SMALL, study=study)
    assert len(result.trials) == len(records_of(study)) == 6
    assert len(records_of(study, "PRUNED")) == result.invalid > 0
    assert_kept(result.trials, study)
    for trial in result.trials:
        assert SPACES["paper-cnn"].build(FixedTrial(trial.params)) == trial.network
    assert result.best.error == min(t.error for t in result.trials)
    assert result.network == result.best.network
    table = result.table(3).splitlines()
    assert len(table) == 4
    assert f"{100 * result.best.error:.2f} %" in table[1]
    assert [p.name for p in study.parent.iterdir()] == ["s.journal"]


def test_more_draws_go_on_and_fewer_ask_for_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, wanted, scored = tmp_path / "s.journal", alone(), Mock(side_effect=score)
    monkeypatch.setattr(scoring, "score", scored)
    first = random_search(DIGITS, "paper-cnn", 3, **SMALL, study=study)
    more = random_search(DIGITS, "paper-cnn", 5, **SMALL, study=study)
    assert [call.args[0] for call in scored.call_args_list[-2:]] == [t.network for t in more.trials[3:]]
    assert _outcome(more)[:3] == _outcome(first)
    again = random_search(DIGITS, "paper-cnn", 2, **SMALL, study=study)
    assert scored.call_count == 5
    assert _outcome(again) == _outcome(first)[:2]
    assert _outcome(more) == _outcome(wanted)[:5]
    assert _outcome(random_search(DIGITS, "paper-cnn", 1, **SMALL, seed=1)) != _outcome(more)[:1]


def test_a_database_and_a_sampler_that_learns(tmp_path: Path) -> None:
    study = f"sqlite:///{tmp_path}/s.db"
    found = [random_search(DIGITS, "paper-cnn", n, **SMALL, study=study, sampler="tpe") for n in (2, 3)]
    assert _outcome(found[1])[:2] == _outcome(found[0])
    assert _outcome(found[1]) == _outcome(random_search(DIGITS, "paper-cnn", 3, **SMALL, sampler="tpe"))


TOO_LARGE = Sequential(Conv(9, padding="valid"), ReLU(), Dense())


def _often_invalid(trial: Any) -> Any:
    match trial.suggest_categorical("kind", ("too small", "out of range", "fine")):
        case "too small":
            return TOO_LARGE
        case "out of range":
            return Sequential(Conv(3, weight_var=1e30), ReLU(), Dense(weight_var=1e30))
        case _:
            return zoo.small_cnn()


def test_invalid_draws_are_replaced_and_counted(tmp_path: Path) -> None:
    result = random_search(DIGITS, Space("often", 1, _often_invalid), 8, **SMALL, study=tmp_path / "s.journal")
    assert [t.params for t in result.trials] == [{"kind": "fine"}] * 8
    invalid = [r.user_attrs["invalid"] for r in records_of(tmp_path / "s.journal", "PRUNED").values()]
    assert result.invalid == len(invalid)
    assert {reason.split(":")[0] for reason in invalid} == {"NetworkError", "RangeError"}


def test_a_space_without_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_MOST_INVALID", 5)
    with pytest.raises(NetworkError, match=r"5 draws of the space never in a row make no network on images of 1 × 8 ×"):
        random_search(DIGITS, Space("never", 1, lambda trial: TOO_LARGE), 5, **SMALL)


def test_a_draw_that_fails_is_noted_and_another_one_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = tmp_path / "s.journal"
    first, *_, last = [t.draw for t in alone().trials[:4]]
    monkeypatch.setattr(scoring, "score", fails_at(0, OSError("the card has gone away")))
    result = random_search(DIGITS, "paper-cnn", 3, **SMALL, study=study)
    assert len(result.trials) == 3
    assert result.trials[-1].draw >= last
    [(draw, failure)] = result.failures.items()
    assert failure == f"draw {draw}: OSError: the card has gone away"
    assert draw <= first
    monkeypatch.setattr(scoring, "score", lambda *_: 1 / 0)
    with pytest.raises(RuntimeError, match=r"ZeroDivisionError.*keeps what is finished"):
        random_search(DIGITS, "paper-cnn", 10, **SMALL, study=study)


def test_rungs_and_the_one_look_at_the_test_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = tmp_path / "s.journal"
    arguments: dict[str, Any] = SMALL | {"study": study, "full": [(3, 120), (2, None)], "test": True}
    data = datasets.digits().take(300, 80)
    result = random_search(data, "paper-cnn", 5, **arguments)
    assert [(r[0].score.train, len(r)) for r in result.rungs] == [(120, 3), (240, 2)]
    by_error = sorted(result.trials, key=lambda t: (t.error, t.score.loo_error, t.draw))
    assert {t.draw for t in result.rungs[0]} == {t.draw for t in by_error[:3]}
    assert {t.draw for t in result.rungs[1]} == {t.draw for t in result.rungs[0][:2]}
    assert result.best == result.rungs[1][0]
    assert result.best.error == min(t.error for t in result.rungs[1])
    split = data.hold_out(60)
    clf = GPClassifier(result.network, device="cpu").fit(split.X, split.y)
    assert result.best.error == pytest.approx(1 - clf.score(split.X_validation, split.y_validation), abs=1e-12)
    assert result.test is not None
    assert (result.test.train, result.test.validation, result.looks) == (240, 80, 1)
    assert result.test.error == pytest.approx(1 - clf.score(data.X_test, data.y_test), abs=1e-12)
    monkeypatch.setattr(scoring, "score", None)  # nothing is computed a second time
    again = random_search(data, "paper-cnn", 5, **arguments)
    assert again.rungs == result.rungs
    assert again.test == result.test
    assert random_search(data, "paper-cnn", 5, **(arguments | {"test": False})).test == result.test
    monkeypatch.undo()
    unseen = random_search(data, "paper-cnn", 5, **(arguments | {"full": [(3, 100)], "test": False}))
    assert unseen.test is None  # the look was with other training images
    other = random_search(data, "paper-cnn", 5, **(arguments | {"full": [(3, 100)]}))
    assert other.looks == 2  # told honestly


def test_networks_are_scored_by_their_tangent_kernels() -> None:
    result = random_search(DIGITS, "paper-cnn", 2, **SMALL, kind="ntk")
    assert [t.network for t in result.trials] == [t.network for t in alone().trials[:2]]
    assert "ntk" in result.best.score.engine
