"""Decisions about suspect labels: written at once, kept by all who write, and used for their own images alone."""

import csv
import io
import re
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnngp import GPClassifier
from cnngp.report import apply_decisions
from cnngp.report import suspects as decisions_module
from cnngp.report.answers import Answers
from cnngp.report.suspects import Decisions

from .conftest import DIGITS, WRONG


def decided(answers: Answers) -> list[str | None]:
    return [s["decision"] for s in answers.about()["suspects"]]


@pytest.fixture
def two_decided(answers: Answers) -> Answers:
    answers.decide({"row": WRONG, "decision": "relabel", "label": str(answers.suspects[0]["proposed"])})
    answers.decide({"row": answers.suspects[1]["row"], "decision": "drop"})
    return answers


def test_decisions_are_written_at_once_and_read_again(two_decided: Answers) -> None:
    answers, path = two_decided, two_decided.decisions.path
    rows = [s["row"] for s in answers.suspects]
    assert rows[0] == WRONG
    answers.decide({"row": rows[2], "decision": "keep"})
    with path.open(newline="") as file:
        found = {int(line["row"]): line for line in csv.DictReader(file)}
    assert (found[WRONG]["decision"], found[WRONG]["label"]) == ("relabel", str(DIGITS.y[WRONG]))
    assert found[rows[1]]["label"] == ""
    assert found[rows[2]]["label"] == found[rows[2]]["given"]
    again = Answers(answers.model, "digits.gp", path, suspects=20)
    assert decided(again)[:4] == ["relabel", "drop", "keep", None]
    again.decide({"row": rows[1], "decision": None})  # taken back
    assert decided(answers)[:4] == ["relabel", None, "keep", None]
    other = GPClassifier("small_cnn", device="cpu").fit(DIGITS.X[:, :, ::-1], answers.model.y_)
    with pytest.warns(UserWarning, match=r"^2 of 2 decisions in .* are about other images or labels than this model"):
        assert decided(Answers(other, "digits.gp", path, suspects=20)) == [None] * 20


PICTURES, GIVEN = np.random.default_rng(0).random((6, 1, 2, 2)), ["a", "b", "a", "b", "a", "b"]


@pytest.mark.parametrize(
    ("X", "y", "lines", "others"),
    [
        (np.concatenate([PICTURES[:1] / 2, PICTURES]), ["b", *GIVEN], {2: "relabel", 5: "drop"}, 0),  # one more shifts
        (PICTURES[::-1], GIVEN[::-1], {4: "relabel", 1: "drop"}, 0),
        (PICTURES, ["a", "a", *GIVEN[2:]], {4: "drop"}, 1),  # as after a fit of what was decided
        (PICTURES + 1.0, GIVEN, {}, 2),
    ],
)
def test_decisions_follow_their_images(X: Any, y: list[str], lines: dict[int, str], others: int, tmp_path: Path):
    """They are applied to their images; those of others are set aside."""
    path = tmp_path / "d.csv"
    for time in (1, 2):
        first = Decisions(path, PICTURES, GIVEN)
        first.decide(1, "relabel", label="a")
        first.decide(4, "drop")
        before, found = path.read_text(), Decisions(path, X, y)
        assert {row: line["decision"] for row, line in found.lines.items()} == lines
        assert len(found.others) == others
        if others:
            with pytest.raises(ValueError, match="is about another image or label than those that were given"):
                apply_decisions(path, X, y)
        else:
            left = [row for row in range(len(y)) if lines.get(row) != "drop"]
            kept, labels = apply_decisions(path, X.astype(np.float32), y)
            np.testing.assert_array_equal(kept, X[left].astype(np.float32))
            assert labels.tolist() == ["a" if lines.get(row) == "relabel" else y[row] for row in left]
        with pytest.warns(UserWarning, match=rf"^{others} of 2 .*\.old-{time}$") if others else nullcontext():
            found.set_others_aside()
        assert [int(line["row"]) for line in csv.DictReader(found.text().splitlines())] == sorted(lines)
        assert path.exists() == bool(lines)
        assert not others or path.with_name(f"d.csv.old-{time}").read_text() == before
        path.unlink(missing_ok=True)


def test_of_equal_images_the_one_of_the_row_or_of_the_name_is_meant(tmp_path: Path) -> None:
    X, y, names = np.zeros((3, 1, 2, 2)), [1, 1, 1], ["a", "b", "c"]
    Decisions(tmp_path / "d.csv", X, y, names).decide(1, "drop")
    assert list(Decisions(tmp_path / "d.csv", X, y, names).lines) == [1]
    text = (tmp_path / "d.csv").read_text()
    (tmp_path / "d.csv").write_text(text.replace("\n1,", "\n9,"))
    assert list(Decisions(tmp_path / "d.csv", X, y, names).lines) == [1]
    assert len(Decisions(tmp_path / "d.csv", X, y).others) == 1


def test_two_viewers_and_a_person_with_a_spreadsheet_keep_each_others_decisions(answers: Answers) -> None:
    path, rows = answers.decisions.path, [s["row"] for s in answers.suspects]
    other = Answers(answers.model, "digits.gp", path, suspects=20)
    answers.decide({"row": rows[0], "decision": "drop"})
    other.decide({"row": rows[1], "decision": "keep"})
    answers.decide({"row": rows[2], "decision": "keep"})
    assert decided(answers) == decided(other) == ["drop", "keep", "keep"] + [None] * 17
    text = path.read_text()
    path.write_text("\ufeff" + text.replace("drop", "Keep").replace(",", ";").replace("\n", "\r\n"), encoding="utf-8")
    assert other.decide({"row": rows[1], "decision": None})["decisions"] == 2
    assert decided(answers) == ["keep", None, "keep"] + [None] * 17
    path.write_text("something else")
    with pytest.raises(ValueError, match="is not a file of decisions"):
        answers.decide({"row": rows[3], "decision": "drop"})
    assert path.read_text() == "something else"


def test_decisions_of_threads_are_all_kept(answers: Answers) -> None:
    """Each with a file of decisions of its own, as several viewers have."""
    rows = [s["row"] for s in answers.suspects]
    viewers = [Answers(answers.model, "m", answers.decisions.path, suspects=20) for _ in range(4)]

    def work(k: int) -> None:
        for row in rows[k::4]:
            viewers[k].decide({"row": row, "decision": "drop"})

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert decided(answers) == ["drop"] * 20


def test_a_decision_that_was_not_written_is_not_kept(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [s["row"] for s in answers.suspects]
    answers.decide({"row": rows[0], "decision": "keep"})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as during:
        during.setattr(decisions_module, "write_atomically", full)
        for row, decision in ((rows[1], "drop"), (rows[0], None)):
            with pytest.raises(OSError, match="No space left"):
                answers.decide({"row": row, "decision": decision})
        assert len(answers.decisions) == 1
    answers.decide({"row": rows[2], "decision": "keep"})
    assert decided(answers)[:3] == ["keep", None, "keep"]


STRANGE = ["a\rb.png", "caf\udce9.png", "=cmd|' /C calc'!A0", "+1+1", "-x", "@x", "'=x", "'x", "a\nb", "\x1b[2J", '","',
           "naïve ü.png", "\\x0d", "-1", "\u202egnp.exe", "\x00", " x ", ";", "\ud800"]  # fmt: skip


def test_any_name_is_written_so_that_every_reader_gets_it_back(tmp_path: Path) -> None:
    X, y = np.arange(len(STRANGE), dtype=float)[:, None, None, None] * np.ones((1, 2, 2)), [0] * len(STRANGE)
    decisions = Decisions(tmp_path / "d.csv", X, y, STRANGE)
    for row, name in enumerate(STRANGE):
        decisions.decide(row, "relabel", proposed=name, label=name)
    again = Decisions(tmp_path / "d.csv", X, y)
    assert [again.lines[row][column] for row in range(len(X)) for column in ("name", "proposed", "label")] == [
        name for name in STRANGE for _ in range(3)
    ]
    text = decisions.path.read_text(encoding="utf-8-sig")
    head, *lines = csv.reader(io.StringIO(text, newline=""))  # as a spreadsheet reads it
    assert len(text.splitlines()) == 1 + len(lines) == 1 + len(STRANGE)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]", text)
    cells = [line[head.index("name")] for line in lines]
    assert all(cell[0] not in "=+-@" or cell == "-1" for cell in cells)


def test_numbers_are_decided_about_too(numbers: Answers) -> None:
    first, path = numbers.about()["suspects"][0], numbers.decisions.path
    assert (first["row"], first["given"]) == (WRONG, "30")
    assert first["deviations"] > 5
    with pytest.raises(ValueError, match="'many' is not a number"):
        numbers.decide({"row": WRONG, "decision": "relabel", "label": "many"})
    numbers.decide({"row": WRONG, "decision": "relabel", "label": "2.5"})
    assert decided(Answers(numbers.model, "numbers.gp", path))[0] == "relabel"
    for y in (numbers.model.y_, numbers.model.y_.astype(np.float32)):
        labels = apply_decisions(path, DIGITS.X, y)[1]
        assert labels[WRONG] == 2.5
        np.testing.assert_array_equal(np.delete(labels, WRONG), np.delete(y, WRONG))
    with pytest.raises(ValueError, match=r"row 7 is to have the label '2.5', which no image has"):
        apply_decisions(path, DIGITS.X, numbers.model.y_.astype(int))


def test_decisions_are_applied_from_a_file_to_images_with_labels(tmp_path: Path) -> None:
    Decisions(tmp_path / "d.csv", PICTURES, GIVEN).decide(4, "drop")
    for path, y, message in ((tmp_path / "none.csv", GIVEN, "no such file"), (tmp_path / "d.csv", "ab", "6 images, 2")):
        with pytest.raises(ValueError, match=message):
            apply_decisions(path, PICTURES, list(y))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"row": 199999, "decision": "keep"}, "row of a suspect"),
        ([], "row of a suspect"),
        ({"row": WRONG, "decision": "burn"}, "expected one of keep, relabel, drop"),
        ({"row": WRONG, "decision": "relabel", "label": "cat"}, "not a class"),
    ],
)
def test_decisions_that_cannot_be(answers: Answers, asked: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        answers.decide(asked)
    assert not answers.decisions.path.exists()


@pytest.mark.parametrize(
    "content", ["a,b\n1,2\n", "row,name,given,proposed,decision,label,image\nx,,,,keep,,\n", "\x00\xff", ""]
)
def test_a_file_of_something_else_is_left_alone(content: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match="is not a file of decisions"):
        Decisions(path, [], [])
    assert path.read_text(encoding="latin-1") == content
