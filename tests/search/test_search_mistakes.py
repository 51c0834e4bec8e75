"""What a search refuses: other studies, damaged files, bad arguments, missing packages."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnngp import NetworkError, datasets
from cnngp.cli import run
from cnngp.common.errors import DatasetError
from cnngp.search import Space, StudyError, random_search
from helpers.searches import DIGITS, SMALL, records_of

optuna = pytest.importorskip("optuna")

WEIGHTS = datasets.Dataset("weights", DIGITS.X, DIGITS.y + 0.5, DIGITS.X_test, DIGITS.y_test + 0.5)
# Only zeros and ones to learn from; and validation images of their own, where the first hundred are of few classes.
BINARY, ORDER = np.isin(DIGITS.y, (0, 1)), np.argsort(DIGITS.y[:300], kind="stable")
TWO = datasets.Dataset("two", DIGITS.X[BINARY], DIGITS.y[BINARY], DIGITS.X_test, DIGITS.y_test)
OWN = datasets.Dataset(
    *("own", DIGITS.X[ORDER], DIGITS.y[ORDER], DIGITS.X_test, DIGITS.y_test, DIGITS.X[300:400], DIGITS.y[300:400])
)
LACKS = "have labels that its first"


def test_another_searchs_study_is_refused(tmp_path: Path) -> None:
    study = tmp_path / "s.journal"
    random_search(DIGITS, "paper-cnn", 1, **SMALL, study=study)
    others: list[tuple[str, dict[str, Any], str]] = [
        ("paper-residual", {}, r"space: paper-cnn \(version 1\) there, paper-residual"),
        ("paper-cnn", {"seed": 5}, "seed: 0 there, 5 now"),
        ("paper-cnn", {"train": 61}, "images: digits, 60 training .* there, digits, 61 training .* now"),
        ("paper-cnn", {"dtype": "float64"}, "dtype: float32 there, float64 now"),
        ("paper-cnn", {"kind": "ntk"}, "kind: nngp there, ntk now"),
    ]
    for name, changed, message in others:
        with pytest.raises(StudyError, match=rf"holds another search: .*{message}") as raised:
            random_search(DIGITS, name, 1, **(SMALL | {"study": study} | changed))
        assert "held out" not in str(raised.value)
        assert "content" not in str(raised.value)
    X = DIGITS.X.copy()
    X[:, 0, 0, 0] += 0.5
    moved = datasets.Dataset("digits", X, DIGITS.y, DIGITS.X_test, DIGITS.y_test)
    with pytest.raises(StudyError, match=r"it has other images, or others of them were held out"):
        random_search(moved, "paper-cnn", 1, **SMALL, study=study)
    assert len(records_of(study)) == 1


def test_files_that_are_no_study(tmp_path: Path) -> None:
    text, table, cut = (tmp_path / name for name in ("text", "table", "cut"))
    text.write_text("not a journal, but long enough to look like a file of some kind\n" * 20)
    table.write_text('{"people": 3}\n')
    random_search(DIGITS, "paper-cnn", 1, **SMALL, study=cut)
    lines = cut.read_text().splitlines(keepends=True)
    cut.write_text("".join([*lines[:5], lines[5][: len(lines[5]) // 2], "\n", *lines[6:]]))
    for path, message in (
        (text, "is not a journal of Optuna; give another file, or a URL"),
        (table, "is not a journal of Optuna"),
        (cut, "cannot be read or written as a study"),
        (tmp_path, "Is a directory"),
    ):
        before = None if path.is_dir() else path.read_bytes()
        with pytest.raises(StudyError, match=message) as caught:
            random_search(DIGITS, "paper-cnn", 1, **SMALL, study=path)
        assert "\n" not in str(caught.value)
        assert before is None or path.read_bytes() == before


def test_half_a_line_of_a_process_that_was_killed_is_taken_away(tmp_path: Path) -> None:
    study = tmp_path / "s.journal"
    random_search(DIGITS, "paper-cnn", 1, **SMALL, study=study)
    with study.open("a") as file:
        file.write('{"op_code":4,"wor')
    assert len(random_search(DIGITS, "paper-cnn", 2, **SMALL, study=study).trials) == 2
    assert len(records_of(study)) >= 2


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"space": "narrow"}, NetworkError, "no space 'narrow': expected one of paper-cnn, paper-residual, pooled"),
        ({"draws": 0}, ValueError, "draws=0: expected an integer of 1 or more"),
        ({"processes": 0}, ValueError, "processes=0"),
        ({"seed": -1}, ValueError, "seed=-1"),
        ({"full": [3]}, ValueError, "expected pairs"),
        ({"full": [(0, None)]}, ValueError, "full=0"),
        ({"full": [(1, 9999)]}, DatasetError, "1,237 training images to give, but 9,999 were asked for"),
        ({"train": 5000}, DatasetError, "but 5,000 were asked for"),
        ({"validation": 5000}, DatasetError, "but 5,000 were asked for"),
        ({"validation": 0}, DatasetError, "but 0 were asked for"),
        ({"train": 5}, DatasetError, rf"validation images of digits {LACKS} 5 training images do not have: \[.*\];"),
        ({"full": [(1, 5)]}, DatasetError, f"the validation images of digits {LACKS} 5 training"),
        ({"data": OWN, "train": 100}, DatasetError, f"the validation images of own {LACKS} 100 training"),
        ({"data": TWO, "test": True}, DatasetError, r"the test images of two have labels .*: \[2, 3, 4, 5, 6\]"),
        ({"space": Space("mine", 1, lambda trial: 5)}, TypeError, r"space mine returned 5 \(int\); expected a network"),
        ({"space": Space("mine", 1, lambda trial: trial.suggest_float("w", 2, 1))}, ValueError, "low=2, high=1"),
        ({"data": WEIGHTS}, DatasetError, "weights has numbers, or several labels an image; a search is for one class"),
        ({"device": "tpu"}, ValueError, "device='tpu'"),
        ({"dtype": "float16"}, ValueError, "dtype='float16'"),
        ({"scheduler": "tcp://nowhere:1", "processes": 2}, ValueError, "processes=2 with a scheduler"),
        ({"sampler": "grid"}, ValueError, "sampler='grid': expected one of 'random', 'tpe'"),
        ({"scheduler": "nowhere:x"}, RuntimeError, "nowhere:x: no Dask scheduler answers within"),
    ],
)
def test_bad_arguments(tmp_path: Path, arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    study = tmp_path / "s.journal"
    with pytest.raises(error, match=message):
        random_search(**(SMALL | {"data": DIGITS, "study": study} | arguments))
    # What is wrong is found out before anything is made, but for a mistake in a space, which its first draw shows.
    assert study.exists() == isinstance(arguments.get("space"), Space)


def test_without_optuna(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r"a search needs Optuna: pip install \"cnngp\[search\]\""):
        random_search(DIGITS, **SMALL)
    assert run(["search", "--output", str(tmp_path)]) == 1
    assert capsys.readouterr().err == 'error: a search needs Optuna: pip install "cnngp[search]"\n'
