"""What a study keeps comes back as it was, or not at all."""

from __future__ import annotations

import logging
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna")

from cnngp.search.checksums import digest
from cnngp.search.scoring import Score
from cnngp.search.space import Draw
from cnngp.search.study import Study, StudyError, Trial

IDENTITY = {"space": "small", "content": "0" * 64}
NETWORK = '{"cnngp_network": 1}'


def drawn(number: int) -> tuple[Trial, Draw]:
    draw = Draw(7, number)
    draw.real("weight_var", 0.5, 5.0)
    draw.integer("layers", 2, 9)
    draw.choice("kind", ["relu", "erf"])
    found = Score(0.1 + number / 97, 0.2, 1000, 500, 0.0, "cpu-2-float32", 1.25, 0.5, 0.25, 1e6 / 3)
    return Trial(number, draw.values, NETWORK, found, ("NetworkError: too small",) * (number % 2)), draw


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("finished") / "study.db"
    with Study(place, IDENTITY) as study:
        for number in range(8):
            study.add(*drawn(number))
        study.fail(8, "RuntimeError: no", "run-1")
        study.note("full", "abc/3", {"draw": 3, "error": 0.25, "engine": "cpu"})
    return place


@pytest.fixture
def path(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(finished, tmp_path / "study.db"))


def test_records_come_back_as_they_were(path: Path) -> None:
    with Study(path, IDENTITY) as study:
        assert study.trials() == [drawn(n)[0] for n in range(8)]
        assert study.failures() == {8: "RuntimeError: no"}
        assert study.notes("full") == {"abc/3": {"draw": 3, "error": 0.25, "engine": "cpu"}}


def altered(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as file:
        assert file.execute(statement).rowcount > 0
        file.commit()


CHANGES = [
    ("UPDATE trial_values SET value = 0.001 WHERE trial_id = 3", 2),
    ("UPDATE trial_params SET param_value = param_value + 0.001 WHERE trial_id = 3 AND param_name = 'weight_var'", 2),
    ("UPDATE trial_user_attributes SET value_json = '0.001' WHERE trial_id = 3 AND key = 'error'", 2),
    ("UPDATE trial_user_attributes SET value_json = '5' WHERE trial_id = 3 AND key = 'draw'", 2),
    ("UPDATE trial_user_attributes SET key = 'loo_errors' WHERE trial_id = 3 AND key = 'loo_error'", 2),
    ("DELETE FROM trial_user_attributes WHERE trial_id = 3 AND key = 'sha256'", 2),
    ("DELETE FROM trial_params WHERE trial_id = 3", 2),
]


@pytest.mark.parametrize(("statement", "lost"), CHANGES)
def test_a_record_that_was_altered_is_not_used_and_its_draw_is_free(
    path: Path, statement: str, lost: int, caplog: pytest.LogCaptureFixture
) -> None:
    altered(path, statement)
    with caplog.at_level(logging.WARNING, "cnngp"), Study(path, IDENTITY) as study:
        assert study.trials() == [drawn(n)[0] for n in range(8) if n != lost]
        assert study.finished() == set(range(8)) - {lost}
        assert caplog.text.count("its checksum does not match; it is not used") == 1
        study.add(*drawn(lost))  # drawn again
        assert study.trials() == [drawn(n)[0] for n in range(8)]


def test_text_that_is_not_unicode_is_one_line_of_ours(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Optuna would add lines of its own."""
    altered(path, "UPDATE trial_params SET distribution_json = CAST(x'7bff7d' AS TEXT) WHERE trial_id = 3")
    with pytest.raises(StudyError, match="cannot be read or written as a study") as caught, Study(path, IDENTITY) as s:
        s.trials()
    assert "\n" not in str(caught.value)
    assert "sqlalchemy" not in capfd.readouterr().err


def test_a_note_or_a_failure_that_was_altered_is_not_used(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    note = "UPDATE study_user_attributes SET value_json = replace(value_json, '0.25', '0.05') WHERE key LIKE 'full/%'"
    altered(path, note)
    altered(path, "UPDATE trial_user_attributes SET value_json = '1' WHERE trial_id = 9 AND key = 'draw'")
    with Study(path, IDENTITY) as study:
        assert study.notes("full") == {}
        assert study.failures() == {}
    assert "the note full/abc/3 is damaged" in caplog.text


def test_no_flip_of_a_bit_changes_a_result(path: Path, tmp_path: Path) -> None:
    """Wherever it falls in the file: every record is as it was written, or is not there, or there is one line."""
    whole, rng = path.read_bytes(), random.Random(0)
    wanted = {n: drawn(n)[0] for n in range(8)}
    for _ in range(40):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        (tmp_path / "flipped.db").write_bytes(data)
        try:
            with Study(tmp_path / "flipped.db", IDENTITY) as study:
                trials, notes, failures = study.trials(), study.notes("full"), study.failures()
        except StudyError as error:
            said = str(error)
        else:
            assert all(trial == wanted[trial.draw] for trial in trials)
            assert notes in ({}, {"abc/3": {"draw": 3, "error": 0.25, "engine": "cpu"}})
            assert failures in ({}, {8: "RuntimeError: no"})
            continue
        assert "\n" not in said


def test_a_link_in_the_place_of_the_claims_is_not_followed(path: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "private"
    theirs.mkdir()
    for name in ("write", "0"):
        (theirs / name).write_text("chapter 1")
    path.with_name(path.name + ".claims").symlink_to(theirs)
    with pytest.raises(OSError, match=r"\.claims is a link to .*private, which is not followed"):
        Study(path, IDENTITY)
    assert {p.name: p.read_text() for p in theirs.iterdir()} == {"write": "chapter 1", "0": "chapter 1"}


def test_a_study_behind_a_link_is_the_same_study_and_none_is_begun_there(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(path)
    with Study(link, IDENTITY) as study, Study(path, IDENTITY) as other:
        assert study.trials() == other.trials()
        assert study.claims.take("3")
        assert not other.claims.take("3")
    assert [p.name for p in link.parent.iterdir()] == ["link.db"]
    (tmp_path / "empty").write_text("")
    for target in (tmp_path / "new.db", tmp_path / "empty"):
        link.unlink()
        link.symlink_to(target)
        with pytest.raises(StudyError, match="where there is no study"):
            Study(link, IDENTITY)
    assert not (tmp_path / "new.db").exists()
    assert (tmp_path / "empty").read_bytes() == b""


def test_a_study_of_an_earlier_version_is_read_as_it_is(path: Path, tmp_path: Path) -> None:
    """Its records have no checksums; those that are added now have."""
    old = tmp_path / "old.db"
    shutil.copy(path, old)
    altered(old, "DELETE FROM trial_user_attributes WHERE key = 'sha256'")
    altered(old, "DELETE FROM study_user_attributes WHERE key = 'checksums'")
    with Study(old, IDENTITY) as study:
        assert study.trials() == [drawn(n)[0] for n in range(8)]
        study.add(*drawn(9))
    altered(old, "UPDATE trial_values SET value = 0.001 WHERE trial_id = (SELECT max(trial_id) FROM trials)")
    with Study(old, IDENTITY) as study:
        assert study.finished() == set(range(8))


@pytest.mark.parametrize(
    ("a", "b"), [({"x": 1}, {"x": 2}), ([1.0], [1.0, None]), ("1", 1), (True, 1.0), ({"a": None}, {})]
)
def test_different_contents_have_different_checksums(a: Any, b: Any) -> None:
    assert digest(a) != digest(b)
    assert digest({"x": (1, 2)}) == digest({"x": [1.0, 2.0]})
