"""Files of results, the page made of them, and the results in the repository."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cnngp.paper import experiments, page, results
from cnngp.paper.common import new_figure, save_figure
from cnngp.paper.setting import Done
from helpers.browser import needs_browser, opened


def example(folder: Path, quick: bool = False) -> results.Document:
    figure, axes = new_figure(3, 2)
    axes.plot([0, 1], [0, 1])
    figures = save_figure(figure, folder, "line")
    found = results.Results(
        rows=[
            results.row("errors", "ResNet <GP>", "test", unit="%", published=0.84, ours=0.85, seconds=26.0),
            results.row("errors", "ResNet <GP>", "leave-one-out", unit="%", ours=0.92, note="a & b"),
            results.row("errors", "quoted", "test", unit="%", published=0.41),
            results.row("times", "kernels", "seconds", unit="s", published=13_200.0, ours=24.0),
            results.row("times", "kernels", "rate", unit="/s", ours=98_100_000.0),
            results.row("times", "distance", "KS", ours=0.01234),
        ],
        details={"n": 3},
        captions={"line": "A line."},
    )
    done = [
        Done("p", 2.0, "one card", "Python 3.12 & more", False),
        Done("p", 2.0, "one card", "Python 3.12 & more", True),
        Done("q", 3.0, "one card", "Python 3.11", True),
    ]
    return results.document("table1", "Table", found, done, figures, command="cnngp reproduce table1", quick=quick)


def test_a_document_survives_the_file(tmp_path: Path) -> None:
    doc = example(tmp_path)
    results.write(tmp_path / "table1.json", doc)
    assert results.read(tmp_path / "table1.json") == doc
    assert doc["seconds"] == 5.0  # a piece that is used twice is computed once
    assert doc["hardware"] == ["one card"]
    assert doc["software"] == ["Python 3.11", "Python 3.12 & more"]
    assert [p["software"] for p in doc["pieces"]] == ["Python 3.12 & more", "Python 3.11"]
    assert [f["file"] for f in doc["figures"]] == ["line.png", "line.svg"]
    assert {f["caption"] for f in doc["figures"]} == {"A line."}


def _without(key: str) -> Callable[[Any], Any]:
    return lambda doc: doc.pop(key)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_without("rows"), "expected"),
        (lambda doc: doc.update(schema=3), "schema 3"),
        (lambda doc: doc["pieces"][0].pop("software"), "expected"),
        (lambda doc: doc.update(software="Python"), "software is 'Python'"),
        (lambda doc: doc.update(extra=1), "extra"),
        (lambda doc: doc.update(quick="no"), "quick is 'no'"),
        (lambda doc: doc["rows"][0].update(ours="0.84"), "ours is '0.84'"),
        (lambda doc: doc["rows"][0].update(ours=float("nan")), "ours is nan"),
        (lambda doc: doc["rows"][0].update(ours=None, published=None), "no number at all"),
        (lambda doc: doc["rows"][0].pop("unit"), "expected"),
        (lambda doc: doc["pieces"].append("p"), "expected"),
        (lambda doc: doc["figures"][0].update(file="../private.png"), "'../private.png' is not a file beside it"),
        (lambda doc: doc["figures"][0].update(file="/private.png"), "'/private.png' is not a file beside it"),
    ],
)
def test_documents_of_another_form_are_refused(tmp_path: Path, spoil: Callable[[Any], Any], message: str) -> None:
    doc = example(tmp_path)
    spoil(doc)
    with pytest.raises(results.ResultsError, match=re.escape(message)):
        results.write(tmp_path / "table1.json", doc)
    assert not (tmp_path / "table1.json").exists()
    for text in (json.dumps(doc), "{"):
        (tmp_path / "table1.json").write_text(text)
        with pytest.raises(results.ResultsError):
            experiments.write_page(tmp_path)


def test_numbers_for_people() -> None:
    assert [results.shown(0.84, "%"), results.shown(13_200.0, "s")] == ["0.84 %", "3 h 40 min"]
    assert [results.shown(98_100_000.0, "/s"), results.shown(0.012341, "")] == ["98,100,000/s", "0.01234"]
    assert [results.duration(s) for s in (1.234, 43.0, 250.0)] == ["1.23 s", "43.0 s", "4 min"]


def test_figures_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        example(tmp_path / folder)
    for name in ("line.png", "line.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert (tmp_path / "a" / "line.svg").read_text().startswith("<?xml")


def test_the_page_is_self_contained_and_shows_every_number(tmp_path: Path) -> None:
    text = page.render([example(tmp_path)], tmp_path)
    sources = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert all(source.startswith("data:image/") for source in sources)
    assert sum(source.startswith("data:image/png;base64,") for source in sources) == 1  # beside the page's own icon
    plain = re.sub(r"<[^>]*>", "", text)
    for shown in ("0.85 % [0.84 %]", "0.92 %", "[0.41 %]", "24.0 s [3 h 40 min]", "98,100,000/s", "0.01234"):
        assert shown in plain
    assert "on one card, Python 3.11; Python 3.12 &amp; more." in text
    for shown in ("ResNet &lt;GP&gt;", "a &amp; b", "A line.", "one card", "cnngp reproduce table1", "26.0 s"):
        assert shown in text
    doc = example(tmp_path)
    doc["rows"][4]["unit"] = "<script>"
    assert "<script>" not in page.render([doc], tmp_path)
    assert "quick version" not in text
    assert "quick version" in page.render([example(tmp_path, quick=True)], tmp_path)


@needs_browser
def test_opens_in_a_browser(tmp_path: Path) -> None:
    text = page.render([example(tmp_path), example(tmp_path, quick=True)], tmp_path)
    assert opened(text, tmp_path, width=600) == "drawn 2 of 2, too wide: false, cells 36"


COMMITTED = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.parametrize("name", experiments.NAMES)
def test_committed_results_are_whole(name: str) -> None:
    """Full runs, with their figures beside them, and all of them on the page."""
    if not (COMMITTED / f"{name}.json").exists():
        pytest.skip(f"docs/results has no {name}.json")
    doc = results.read(COMMITTED / f"{name}.json")
    assert not doc["quick"]
    assert doc["figures"]
    for figure in doc["figures"]:
        assert (COMMITTED / figure["file"]).is_file()
    text = (COMMITTED / experiments.PAGE).read_text(encoding="utf-8")
    assert page.render([doc], COMMITTED).split("<h2")[1].split("</body>")[0].strip() in text
    for r in doc["rows"]:
        for key in ("ours", "published"):
            assert r[key] is None or results.shown(r[key], r["unit"]) in text
