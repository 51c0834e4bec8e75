"""Pieces that survive a kill, results files, the page and the command of `cnngp reproduce`."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnngp
from cnngp import datasets, zoo
from cnngp.cli import run
from cnngp.paper import experiments, page, results, setting, table1
from cnngp.paper.figures import new_figure, save_figure
from cnngp.paper.setting import Done, OutOfTime, Setting, digest
from cnngp.report import plots
from helpers.browser import needs_browser, opened


def digits_with_validation() -> datasets.Dataset:
    d = datasets.digits()
    return datasets.Dataset("digits", d.X[:200], d.y[:200], d.X_test[:150], d.y_test[:150], d.X[200:300], d.y[200:300])


class Counted:
    """A computation that knows how often it ran."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values, self.calls = values, 0

    def __call__(self) -> dict[str, Any]:
        self.calls += 1
        return self.values


# ---- pieces -------------------------------------------------------------------------------------------------------


def test_a_piece_is_computed_once(tmp_path: Path) -> None:
    outputs = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    compute = Counted({"error": 0.84, "names": ["a"], "outputs": outputs})
    first = Setting(tmp_path, device="cpu").piece("p", compute, depends={"n": 3})
    again = Setting(tmp_path, device="cpu")
    second = again.piece("p", compute, depends={"n": 3})
    assert compute.calls == 1
    assert second["error"] == 0.84
    assert second["outputs"].dtype == np.float32
    assert np.array_equal(second["outputs"], outputs)
    assert second["seconds"] == first["seconds"] > 0
    assert "core" in second["hardware"]
    assert [(d.name, d.reused) for d in again.done] == [("p", True)]
    assert not list(tmp_path.rglob("*.partial"))


def test_a_piece_says_by_which_software_it_was_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Setting(tmp_path, device="cpu")
    here = first.piece("p", dict, depends={})["software"]
    for name in (f"cnngp {cnngp.__version__}", f"Python {platform.python_version()}", f"NumPy {np.__version__}"):
        assert name in here
    monkeypatch.setattr(setting, "software", lambda kind: "other software")  # as of another process, later
    later = Setting(tmp_path, device="cpu")
    assert later.piece("p", dict, depends={})["software"] == here
    assert later.piece("q", dict, depends={})["software"] == "other software"
    assert [d.software for d in later.done] == [here, "other software"]


def test_a_piece_kept_before_software_was_recorded_is_read(tmp_path: Path) -> None:
    compute = Counted({"x": 1})
    Setting(tmp_path, device="cpu").piece("p", compute, depends={})
    path = tmp_path / "pieces" / "p.json"
    kept = json.loads(path.read_bytes())
    del kept["values"]["software"], kept["values_sha256"]
    path.write_text(json.dumps(kept))
    again = Setting(tmp_path, device="cpu")
    assert again.piece("p", compute, depends={})["x"] == compute.calls == 1
    assert again.done[0].software == f"cnngp {cnngp.__version__} (Python and libraries not recorded)"


@pytest.mark.parametrize(
    "other",
    [
        lambda folder: (Setting(folder, device="cpu"), {"n": 4}),
        lambda folder: (Setting(folder, device="cpu", seed=1), {"n": 3}),
        lambda folder: (Setting(folder, device="cpu", quick=True), {"n": 3}),
    ],
)
def test_a_piece_of_something_else_is_computed_again(
    tmp_path: Path, other: Callable[[Path], tuple[Setting, dict[str, Any]]]
) -> None:
    Setting(tmp_path, device="cpu").piece("p", lambda: {"x": 1}, depends={"n": 3})
    s, depends = other(tmp_path)
    assert s.piece("p", lambda: {"x": 2}, depends=depends)["x"] == 2


def test_a_piece_of_another_version_is_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Setting(tmp_path, device="cpu").piece("p", lambda: {"x": 1}, depends={})
    monkeypatch.setattr(setting, "__version__", "99")
    assert Setting(tmp_path, device="cpu").piece("p", lambda: {"x": 2}, depends={})["x"] == 2


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _change_a_number(path: Path) -> None:
    content = path.read_text()
    assert content.count('"x": 1') == 1
    path.write_text(content.replace('"x": 1', '"x": 7'))


@pytest.mark.parametrize(
    "damage",
    [
        lambda pieces: _change_a_number(pieces / "p.json"),
        lambda pieces: _cut(pieces / "p.json"),
        lambda pieces: (pieces / "p.json").write_text("[]"),
        lambda pieces: (pieces / "p.json").unlink(),  # killed after the arrays, before the values
        lambda pieces: (pieces / "p.npz").unlink(),
        lambda pieces: _cut(pieces / "p.npz"),
        lambda pieces: _flip(pieces / "p.npz"),
        lambda pieces: np.savez(pieces / "p.npz", a=np.zeros(40)),  # of another run
    ],
)
def test_a_damaged_piece_is_computed_again(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    compute = Counted({"x": 1, "a": np.arange(40.0)})
    Setting(tmp_path, device="cpu").piece("p", compute, depends={})
    damage(tmp_path / "pieces")
    assert np.array_equal(Setting(tmp_path, device="cpu").piece("p", compute, depends={})["a"], np.arange(40.0))
    assert compute.calls == 2


def test_values_of_every_kind_are_read_again(tmp_path: Path) -> None:
    """The checksum is of the values as JSON has them: keys as text, in an order of their own, and NaN."""
    values = {"z": {10: 1.5, 9: float("nan"), 100: (1, 2)}, "a": 0.1 + 0.2, "é": None, "x": [1e300, -0.0]}
    compute = Counted(values)
    for _ in range(2):
        found = Setting(tmp_path, device="cpu").piece("p", compute, depends={})
        assert (found["a"], found["x"]) == (0.1 + 0.2, [1e300, -0.0])
    assert compute.calls == 1


def test_a_budget_stops_between_pieces_and_every_run_gets_on(tmp_path: Path) -> None:
    """Pieces that each claim more than the budget: a run does the first that is missing, and no other."""
    counted = {name: Counted({"x": 1}) for name in "abc"}

    def attempt(seconds: float) -> None:
        s = Setting(tmp_path, device="cpu", budget=50.0)
        for name, compute in counted.items():
            s.piece(name, compute, depends={}, seconds=seconds)

    for done in (1, 2):
        with pytest.raises(OutOfTime, match="run again to go on"):
            attempt(100.0)
        assert sum(c.calls for c in counted.values()) == done
    attempt(100.0)
    attempt(100.0)
    assert [c.calls for c in counted.values()] == [1, 1, 1]


def test_pieces_that_fit_the_budget_are_all_done(tmp_path: Path) -> None:
    s = Setting(tmp_path, device="cpu", budget=50.0)
    for name in "abc":
        s.piece(name, dict, depends={}, seconds=10.0)
    assert len(s.done) == 3


def test_bad_pieces(tmp_path: Path) -> None:
    s = Setting(tmp_path, device="cpu")
    with pytest.raises(ValueError, match="small letters"):
        s.piece("../p", dict, depends={})
    for added in ("seconds", "hardware", "software"):
        with pytest.raises(ValueError, match=f"returns {added}"):
            s.piece("p", lambda added=added: {added: 1.0}, depends={})


def test_killed_in_the_middle_of_a_piece(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import os, signal, sys
        from pathlib import Path
        from cnngp.paper.setting import Setting

        log = Path(sys.argv[2])
        def compute(name):
            with log.open("a") as f:
                f.write(name)
            if name == "b" and sys.argv[3] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            return {"x": len(name)}

        s = Setting(Path(sys.argv[1]), device="cpu")
        for name in "abc":
            s.piece(name, lambda: compute(name), depends={})
    """)
    log = tmp_path / "log"
    arguments = [sys.executable, "-c", script, str(tmp_path / "out"), str(log)]
    killed = subprocess.run([*arguments, "kill"], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    subprocess.run([*arguments, "go on"], check=True)
    assert log.read_text() == "ab" + "bc"


def test_digest_tells_arrays_apart() -> None:
    a = np.arange(6.0)
    others = (a.reshape(2, 3), a.astype(np.float32), a + 1, a[::-1])
    assert len({digest(a), *map(digest, others)}) == 5
    assert digest(a) == digest(a.copy())


def test_data_that_is_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CNNGP_DATA", raising=False)
    s = Setting(tmp_path, data=tmp_path / "data")
    assert not s.at_hand("fashion_mnist")
    with pytest.raises(ValueError, match="no such folder"):
        s.dataset("mnist", "paper")
    (tmp_path / "data" / "fashion_mnist").mkdir(parents=True)
    assert s.at_hand("fashion_mnist")
    (tmp_path / "data" / "mnist").mkdir()
    (tmp_path / "data" / "mnist" / "train-images-idx3-ubyte").write_bytes(b"wrong")
    with pytest.raises(ValueError, match=r"data/mnist/train-images-idx3-ubyte is not the original"):
        s.dataset("mnist", "paper")
    assert "CNNGP_DATA" not in os.environ


# ---- results ------------------------------------------------------------------------------------------------------


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
        (lambda doc: doc["rows"][0].update(ours=float("nan")), "ours of ResNet <GP>, test is nan"),
        (lambda doc: doc["rows"][0].update(ours=None, published=None), "no number at all"),
        (lambda doc: doc["rows"][0].pop("unit"), "expected"),
        (lambda doc: doc["pieces"].append("p"), "expected"),
    ],
)
def test_documents_of_another_form_are_refused(tmp_path: Path, spoil: Callable[[Any], Any], message: str) -> None:
    doc = example(tmp_path)
    spoil(doc)
    with pytest.raises(results.ResultsError, match=re.escape(message)):
        results.write(tmp_path / "table1.json", doc)
    assert not (tmp_path / "table1.json").exists()
    (tmp_path / "table1.json").write_text(json.dumps(doc))
    with pytest.raises(results.ResultsError):
        results.read(tmp_path / "table1.json")


def schema_1(doc: results.Document) -> dict[str, Any]:
    """The form that named versions for the file alone."""
    old = {key: value for key, value in doc.items() if key != "software"}
    pieces = [{key: value for key, value in p.items() if key != "software"} for p in doc["pieces"]]
    return old | {"schema": 1, "version": "0.0.9", "python": "3.10.1", "pieces": pieces}


def test_a_document_of_schema_1_is_read_and_drawn(tmp_path: Path) -> None:
    doc = example(tmp_path)
    (tmp_path / "table1.json").write_text(json.dumps(schema_1(doc)))
    read = results.read(tmp_path / "table1.json")
    assert read["software"] == ["cnngp 0.0.9, Python 3.10.1"]
    assert [p["software"] for p in read["pieces"]] == ["not recorded", "not recorded"]
    untouched = set(doc) - {"software", "pieces"}
    assert {key: read[key] for key in untouched} == {key: doc[key] for key in untouched}
    text = experiments.write_page(tmp_path).read_text(encoding="utf-8")
    assert "on one card, cnngp 0.0.9, Python 3.10.1." in text


@pytest.mark.parametrize(
    "spoil", [_without("python"), lambda doc: doc.update(software=[]), lambda doc: doc["pieces"].append("p")]
)
def test_a_spoilt_document_of_schema_1_is_refused(tmp_path: Path, spoil: Callable[[Any], Any]) -> None:
    old = schema_1(example(tmp_path))
    spoil(old)
    (tmp_path / "table1.json").write_text(json.dumps(old))
    with pytest.raises(results.ResultsError, match="expected"):
        results.read(tmp_path / "table1.json")


def test_a_file_that_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "table1.json").write_text("{")
    with pytest.raises(results.ResultsError, match="remove it"):
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


# ---- the page -----------------------------------------------------------------------------------------------------


def test_the_page_is_self_contained_and_shows_every_number(tmp_path: Path) -> None:
    text = page.render([example(tmp_path)], tmp_path)
    sources = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert len(sources) == 1
    assert sources[0].startswith("data:image/png;base64,")
    plain = re.sub(r"<[^>]*>", "", text)
    for shown in ("0.85 % [0.84 %]", "0.92 %", "[0.41 %]", "24.0 s [3 h 40 min]", "98,100,000/s", "0.01234"):
        assert shown in plain
    assert "on one card, Python 3.11; Python 3.12 &amp; more." in text
    for shown in ("ResNet &lt;GP&gt;", "a &amp; b", "A line.", "one card", "cnngp reproduce table1", "26.0 s"):
        assert shown in text
    assert "quick version" not in text
    assert "quick version" in page.render([example(tmp_path, quick=True)], tmp_path)


@needs_browser
def test_opens_in_a_browser(tmp_path: Path) -> None:
    text = page.render([example(tmp_path), example(tmp_path, quick=True)], tmp_path)
    assert opened(text, tmp_path, width=600) == "drawn 2 of 2, too wide: false, cells 36"


# ---- the command --------------------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--quick` on digits, in seconds; Fashion-MNIST is not at hand."""
    cases = (
        table1.Case("cnn", "small CNN", zoo.small_cnn(), 0.7, 0.9),
        table1.Case("dense", "dense", zoo.dense_nngp(2)),
    )
    monkeypatch.setattr(setting, "load", lambda name, split: digits_with_validation())
    monkeypatch.setattr(Setting, "at_hand", lambda self, name: False)
    plan = table1.Plan(100, 50, 50, cases, dense=table1.DENSE[:1], chosen_on=50, lengthscale_on=50)
    monkeypatch.setattr(table1, "QUICK", plan)


@pytest.mark.usefixtures("small")
def test_the_command_writes_numbers_figures_and_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["reproduce", "table1", "--quick", "--device", "cpu", "--out", str(tmp_path / "out"), "--json"]
    assert run(arguments) == 0
    printed = capsys.readouterr().out
    doc = results.read(tmp_path / "out" / "table1.json")
    assert doc["command"] == "cnngp reproduce table1 --quick --device cpu"
    assert doc["quick"]
    assert {"table1.png", "table1.svg"} == {f["file"] for f in doc["figures"]}
    text = (tmp_path / "out" / experiments.PAGE).read_text()
    for r in doc["rows"]:
        for key in ("ours", "published"):
            if r[key] is not None:
                shown = results.shown(r[key], r["unit"])
                assert shown in text
                assert shown in printed
    last = json.loads(printed.splitlines()[-1])
    assert last["finished"]
    assert [r["ours"] for r in last["rows"]] == [r["ours"] for r in doc["rows"]]
    for d in doc["pieces"]:
        assert f"{d['name']}: " in printed
    assert run(arguments) == 0
    printed = capsys.readouterr().out
    assert printed.count("kept from an earlier run") == len(doc["pieces"])
    assert results.read(tmp_path / "out" / "table1.json") == doc


@pytest.mark.usefixtures("small")
def test_the_command_stops_at_its_budget_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every estimate is above a second, so each run computes one piece: five runs for five pieces."""
    arguments = ["reproduce", "table1", "--quick", "--device", "cpu", "--out", str(tmp_path), "--budget", "1", "--json"]
    codes = []
    while not codes or (codes[-1] == 75 and len(codes) < 9):
        codes.append(run(arguments))
        printed = capsys.readouterr()
        assert ("run again to go on" in printed.err) == (codes[-1] == 75)
        assert json.loads(printed.out.splitlines()[-1])["finished"] == (codes[-1] == 0)
        assert (tmp_path / "table1.json").exists() == (codes[-1] == 0)
    assert codes == [75, 75, 75, 75, 0]


@pytest.mark.usefixtures("small")
def test_without_matplotlib_the_numbers_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(*args: Any) -> None:
        raise plots.PlotsUnavailable("figures need matplotlib: pip install 'cnngp[plots]'")

    monkeypatch.setattr(table1, "draw", missing)
    assert run(["reproduce", "table1", "--quick", "--device", "cpu", "--out", str(tmp_path)]) == 0
    assert "not drawn: figures need matplotlib" in capsys.readouterr().out
    assert results.read(tmp_path / "table1.json")["figures"] == []


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("options", "message", "code"),
    [
        (["table1", "--device", "tpu"], "'tpu'", 1),
        (["table1", "--budget", "-1"], "expected a positive number of seconds", 1),
        (["table1", "--budget", "nan"], "expected a positive number of seconds", 1),
        (["table9"], "table9", 2),
        (["table1", "--out", "/dev/null/here"], "/dev/null", 1),
        (["table1", "--scheduler", "nowhere"], "nowhere", 1),
    ],
)
def test_mistakes_are_one_line_before_any_work(
    options: list[str], message: str, code: int, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = [] if "--out" in options else ["--out", str(tmp_path)]
    assert run(["reproduce", *options, "--quick", *out]) == code
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert "piece" not in printed.out


def test_without_a_card_cuda_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert run(["reproduce", "table1", "--device", "cuda", "--out", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert "CuPy" in err
    assert err.count("\n") == 1


def test_without_mnist_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "pooch", None)
    (tmp_path / "data").mkdir()
    for options in (["--data", str(tmp_path / "data")], ["--data", str(tmp_path / "none")]):
        assert run(["reproduce", "all", "--quick", "--device", "cpu", "--out", str(tmp_path / "out"), *options]) == 1
        err = capsys.readouterr().err
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert options[1] in err
        assert "mnist" in err
    assert not (tmp_path / "out").exists()


# ---- the results in the repository --------------------------------------------------------------------------------

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
