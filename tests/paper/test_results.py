"""Pieces of an experiment, files of results, the page made of them, and those in the repository."""

import platform
import re
import shutil
import sys
import types
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import cnngp
from cnngp.common.figures import new_figure, save_figure
from cnngp.paper import results, setting
from cnngp.paper.setting import Piece, Setting, digest
from cnngp.report import page
from helpers.browser import needs_browser, opened


def test_a_piece_is_computed_once_and_values_of_every_kind_are_read_again(tmp_path: Path) -> None:
    outputs = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    values = {"z": {10: 1.5, 9: float("nan"), 100: (1, 2)}, "a": 0.1 + 0.2, "é": None, "x": [1e300, -0.0]}
    compute = Mock(return_value=values | {"outputs": outputs})
    first = Setting(tmp_path, device="cpu").values(Piece("p", compute, depends={"n": 3}))
    again = Setting(tmp_path, device="cpu")
    second = again.values(Piece("p", compute, depends={"n": 3}))
    assert compute.call_count == 1
    assert (second["a"], second["x"], second["z"]["100"], second["é"]) == (0.1 + 0.2, [1e300, -0.0], [1, 2], None)
    assert second["outputs"].dtype == np.float32
    assert np.array_equal(second["outputs"], outputs)
    assert second["seconds"] == first["seconds"] > 0
    assert "core" in second["hardware"]
    for name in (f"cnngp {cnngp.__version__}", f"Python {platform.python_version()}", f"NumPy {np.__version__}"):
        assert name in second["software"]
    assert [(d.name, d.reused) for d in again.done] == [("p", True)]


def test_a_piece_of_something_else_is_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also under the name of another, with which it may share all that it depends on."""
    made = iter(range(9))
    usual = Setting(tmp_path, device="cpu")
    for n, s, depends in (
        (0, usual, {"n": 3}),
        (1, usual, {"n": 4}),
        (2, Setting(tmp_path, device="cpu", seed=1), {"n": 4}),
        (3, Setting(tmp_path, device="cpu", quick=True), {"n": 4}),
    ):
        assert s.values(Piece("p", lambda: {"x": next(made)}, depends=depends))["x"] == n
    monkeypatch.setattr(setting, "__version__", "99")
    assert s.values(Piece("p", lambda: {"x": next(made)}, depends=depends))["x"] == 4
    with pytest.raises(ValueError, match="small letters"):
        usual.values(Piece("../p", dict, depends={}))
    a = np.arange(6.0)
    others = (a.reshape(2, 3), a.astype(np.float32), a + 1, a[::-1])
    assert len({digest(a), *map(digest, others)}) == 5
    assert digest(a) == digest(a.copy())
    shutil.copy(tmp_path / "pieces" / "p.piece", tmp_path / "pieces" / "q.piece")
    assert s.values(Piece("q", lambda: {"x": next(made)}, depends=depends))["x"] == 5


def test_a_damaged_piece_is_computed_again(tmp_path: Path) -> None:
    compute = Mock(return_value={"x": 1, "a": np.arange(40.0)})
    Setting(tmp_path, device="cpu").values(Piece("p", compute, depends={}))
    path = tmp_path / "pieces" / "p.piece"
    whole = path.read_bytes()
    other_number = whole.replace(np.float64(39).tobytes(), np.float64(38).tobytes())
    for times, damaged in enumerate((whole.replace(b'"x": 1', b'"x": 7'), other_number, whole[:-20], b"[]"), start=2):
        path.write_bytes(damaged)
        again = Setting(tmp_path, device="cpu").values(Piece("p", compute, depends={}))
        assert (again["x"], again["a"].tolist()) == (1, list(range(40)))
        assert compute.call_count == times


def run(setting: Setting) -> results.Results:
    for name in ("p", "p", "q"):
        setting.values(Piece(name, lambda: {"x": 1}, depends={}))
    rows = [
        results.row("errors", "ResNet <GP>", "test", unit="%", published=0.84, ours=0.85, seconds=26.0),
        results.row("errors", "ResNet <GP>", "leave-one-out", unit="%", ours=0.92, note="a & b"),
        results.row("errors", "quoted", "test", unit="%", published=0.41),
        results.row("times", "kernels", "seconds", unit="s", published=13_200.0, ours=24.0),
        results.row("times", "kernels", "rate", unit="/s", ours=98_100_000.0),
        results.row("times", "distance", "KS", ours=0.01234, unit=""),
    ]
    return results.Results(rows=rows, details={"n": 3}, captions={"line": "A line."})


def draw(found: results.Results, folder: Path) -> list[Path]:
    figure, axes = new_figure(3, 2)
    axes.plot([0, 1], [0, 1])
    return save_figure(figure, folder, "line")


@pytest.fixture
def doc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    module = types.ModuleType("the.table1")
    module.__dict__.update(run=run, draw=draw, TITLE="Table")
    monkeypatch.setitem(sys.modules, "the.table1", module)
    software = iter(["Python 3.12 & more", "Python 3.11"])
    monkeypatch.setattr("cnngp.paper.setting.hardware", lambda device: "one card")
    monkeypatch.setattr("cnngp.paper.setting.software", lambda device: next(software))
    return results.reproduce("the.table1", Setting(tmp_path, device="cpu"), "cnngp reproduce table1")


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 3}', "{}"])
def test_other_files_in_the_folder_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "table1.json").write_text(text)
    with pytest.raises(results.ResultsError, match=r"table1\.json cannot be read: .*; remove it"):
        results.write_page(tmp_path)


def test_a_document_says_what_was_found_and_its_page_is_self_contained_and_shows_it(doc: Any, tmp_path: Path) -> None:
    assert results.read(tmp_path / "table1.json") == doc
    assert [p["name"] for p in doc["pieces"]] == ["p", "q"]  # a piece that is used twice is computed once
    assert doc["seconds"] == sum(p["seconds"] for p in doc["pieces"])
    assert (doc["hardware"], doc["software"]) == (["one card"], ["Python 3.11", "Python 3.12 & more"])
    assert [(f["file"], f["caption"]) for f in doc["figures"]] == [("line.png", "A line."), ("line.svg", "A line.")]
    text = (tmp_path / results.PAGE).read_text(encoding="utf-8")
    sources = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert all(source.startswith("data:image/") for source in sources)
    assert sum(source.startswith("data:image/png;base64,") for source in sources) == 1  # beside the page's own icon
    plain = re.sub(r"<[^>]*>", "", text)
    for shown in ("0.85 % [0.84 %]", "0.92 %", "[0.41 %]", "24.0 s [3 h 40 min]", "98,100,000/s", "0.01234"):
        assert shown in plain
    assert "on one card, Python 3.11; Python 3.12 &amp; more." in text
    for shown in ("ResNet &lt;GP&gt;", "a &amp; b", "A line.", "one card", "cnngp reproduce table1", "26.0 s"):
        assert shown in text
    assert "quick version" not in text
    (tmp_path / "in").mkdir()
    doc["rows"][4]["unit"], doc["quick"], doc["figures"][0]["file"] = "<script>", True, "../private.png"
    (tmp_path / "private.png").write_bytes(b"secret")
    (tmp_path / "in" / "private.png").write_bytes(b"open")
    again = results.page([doc], tmp_path / "in")
    assert "<script>" not in again
    assert page.inline(b"open") in again
    assert page.inline(b"secret") not in again
    assert "quick version" in again


@needs_browser
def test_opens_in_a_browser(doc: Any, tmp_path: Path) -> None:
    text = results.page([doc, doc | {"quick": True}], tmp_path)
    assert opened(text, tmp_path, width=600) == "drawn 2 of 2, too wide: false, cells 36"


COMMITTED = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.parametrize("name", results.NAMES)
def test_committed_results_are_whole(name: str) -> None:
    doc = results.read(COMMITTED / f"{name}.json")
    assert not doc["quick"]
    assert doc["figures"]
    for figure in doc["figures"]:
        assert (COMMITTED / figure["file"]).is_file()
    text = (COMMITTED / results.PAGE).read_text(encoding="utf-8")
    assert results.page([doc], COMMITTED).split("<h2")[1].split("</body>")[0].strip() in text
    for r in doc["rows"]:
        for key in ("ours", "published"):
            assert r[key] is None or results.shown(r[key], r["unit"]) in text
