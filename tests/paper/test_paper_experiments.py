"""The paper's experiments at a size for tests, against direct computations, and the command `cnngp reproduce`."""

import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import stats

from cnngp import GPClassifier, Kernel, datasets, zoo
from cnngp.cli import run
from cnngp.paper import figure2, results, setting, table1
from cnngp.paper.setting import Setting
from cnngp.paper.table1 import SplitImages
from cnngp.report import plots
from helpers.experiments import cell, digits_in_three

DATA = digits_in_three(200, 100, 500)
# A convolutional network, and one that sees the pixels through almost equal, almost linear units.
BETTER = table1.Case("better", "better", zoo.small_cnn(), 0.7, 0.9)
WORSE = table1.Case("worse", "worse", zoo.dense_nngp(1, 2.0, 10.0))
PLAN = table1.Table1Plan(200, 100, 500, (BETTER, WORSE))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return table1.run(Setting(tmp_path_factory.mktemp("table1"), device="cpu"), PLAN, DATA)


def test_one_matrix_gives_what_separate_fits_give(found: Any) -> None:
    clf = GPClassifier(zoo.small_cnn(), device="cpu").fit(DATA.X, DATA.y)
    X, y = np.concatenate([DATA.X, DATA.X_validation]), np.concatenate([DATA.y, DATA.y_validation])
    everything = GPClassifier(zoo.small_cnn(), device="cpu").fit(X, y)
    for quantity, error in (
        ("validation", 1 - clf.score(DATA.X_validation, DATA.y_validation)),
        ("test", 1 - clf.score(DATA.X_test, DATA.y_test)),
        ("leave-one-out", clf.loo_error_),
        ("all 300: test", 1 - everything.score(DATA.X_test, DATA.y_test)),
        ("all 300: leave-one-out", everything.loo_error_),
    ):
        assert cell(found, "better", quantity)["ours"] == pytest.approx(100 * error, abs=1e-9)
    assert cell(found, "better", "test")["published"] == 0.9
    values = found["details"]["networks"]["better"]
    assert values["pairs"] == 300 * 299 // 2 + 500 * 300
    assert values["kernel_error"] < 1e-6
    assert values["log_marginal_likelihood"] == pytest.approx(clf.log_marginal_likelihood_, rel=1e-6)


def test_the_published_values_and_networks() -> None:
    cases = {c.label: (c.validation, c.test) for c in table1.paper_cases()}
    assert cases == {
        "convnet": (0.71, 1.03),
        "convnet-gain1": (None, None),
        "residual-cnn": (0.71, 0.93),
        "residual-cnn-gain1": (0.72, 0.96),
        "resnet": (0.68, 0.84),
    }
    assert len({c.network.fingerprint for c in table1.paper_cases()}) == 5
    assert (table1.FULL.train, table1.FULL.validation, table1.FULL.test) == (50_000, 10_000, 10_000)


def test_another_network_or_other_images_are_not_taken_for_kept_ones(tmp_path: Path) -> None:
    here = Setting(tmp_path, device="cpu")
    images, fewer = SplitImages.of(DATA, 50, 20, 20), SplitImages.of(DATA, 50, 10, 20)
    other = table1.Case(BETTER.label, BETTER.name, WORSE.network)
    for case, used in ((BETTER, images), (other, images), (other, fewer), (other, fewer)):
        here.values(table1.case_piece(here, case, used))
    assert [piece.reused for piece in here.done] == [False, False, False, True]


def test_a_fit_that_cannot_fit_is_refused_before_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table1.memory, "available", lambda device: 1000)
    monkeypatch.setattr(Kernel, "__call__", lambda *args, **kwargs: pytest.fail("the kernel was computed"))
    with pytest.raises(ValueError, match="split='paper'"):
        SplitImages.of(datasets.digits(), 10, 10, 10)
    here = Setting(tmp_path, device="cpu")
    piece = table1.case_piece(here, BETTER, SplitImages.of(DATA, 200, 100, 500))
    with pytest.raises(MemoryError, match="an exact fit of 300 images"):
        here.values(piece)


@pytest.mark.gpu
def test_on_a_card_as_on_the_cpu(found: Any, tmp_path: Path) -> None:
    on_card = table1.run(Setting(tmp_path, device="cuda"), PLAN, DATA)
    for r, s in zip(on_card["rows"], found["rows"], strict=True):
        if r["ours"] is not None:  # the rounding of a float32 kernel may move an image that lies on the border
            assert r["ours"] == pytest.approx(s["ours"], abs=1.01), r


# ---- figure 2 -----------------------------------------------------------------------------------------------------

FINITE = figure2.Figure2Plan(8, (2, 8, 24), networks=300, images=4, floors=10)


@pytest.fixture(scope="module")
def finite(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("figure2")
    return figure2.run(Setting(folder, device="cpu"), FINITE, DATA.X), folder


def test_finite_networks_approach_the_limit_by_measures_that_are_those_of_scipy(finite: tuple[Any, Path]) -> None:
    details = finite[0]["details"]
    widths, floor = details["widths"], details["floor"]
    for key in ("ks_mean", "ks_first"):
        assert widths["2"][key] > 2.0 * widths["24"][key]
        assert widths["2"][key] > 2.0 * floor[f"{key}_95"]
    assert widths["2"]["ks_mean"] > widths["8"]["ks_mean"] > floor["ks_mean"]
    assert widths["24"]["moment_error"] < 3.0 * floor["moment_error"]
    # The mean distance of n normal draws is near √(π/2)·ln 2/√n; here over 10 repeats of 4 correlated columns.
    assert floor["ks_mean"] == pytest.approx(np.sqrt(np.pi / 2) * np.log(2) / np.sqrt(300), rel=0.25)
    for key, quantity in figure2.QUANTITIES.items():
        values = [r["ours"] for r in finite[0]["rows"] if r["quantity"] == quantity]
        assert values == [*(widths[w][key] for w in widths), floor[key]]
    K, f = finite[0]["arrays"]["K"], finite[0]["arrays"]["outputs"][8]
    ks = [stats.kstest(f[:, i] / np.sqrt(K[i, i]), "norm").statistic for i in range(4)]
    error = np.sqrt((((f.T @ f / 300 - K) ** 2).sum()) / (K**2).sum())
    expected = {"ks_mean": np.mean(ks), "ks_first": ks[0], "moment_error": error}
    measured = figure2.measure(f, K)
    assert {name: measured[name] for name in expected} == pytest.approx(expected)


def test_figure2_is_kept_and_drawn_and_in_full_the_papers(finite: Any, monkeypatch: Any, tmp_path: Path) -> None:
    first, folder = finite
    monkeypatch.setattr(figure2, "_outputs", lambda *args: pytest.fail("networks were drawn again"))
    again = figure2.run(Setting(folder, device="cpu"), FINITE, DATA.X)
    assert again["rows"] == first["rows"]
    names = [p.name for p in figure2.draw(again, tmp_path)]
    assert names == [f"figure2-{panel}.{suffix}" for panel in "abc" for suffix in ("png", "svg")]
    assert all((tmp_path / name).stat().st_size > 1000 for name in names)
    assert set(again["captions"]) == {"figure2-a", "figure2-b", "figure2-c"}
    plan = figure2.FULL
    assert (tuple(plan.widths), plan.networks, plan.images, plan.depth) == ((3, 10, 30, 100), 10_000, 100, 32)
    assert len({figure2._seed(seed, width) for seed in range(3) for width in plan.widths}) == 12  # independent ones


# ---- the command -----------------------------------------------------------------------------------------------------


def test_a_run_that_was_stopped_goes_on_and_writes_numbers_figures_and_the_page(
    found: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stopped by its budget, then interrupted; `--quick` on digits, in seconds."""
    monkeypatch.setattr(setting, "load", lambda name, split, data: DATA)
    monkeypatch.setattr(table1, "QUICK", PLAN)
    out, asked, real = tmp_path / "out", list[str](), table1.network_errors
    arguments = ["reproduce", "table1", "--quick", "--device", "cpu", "--out", str(out)]

    def counted(here: Any, kernel: Any, images: Any, label: str) -> Any:
        asked.append(label)
        if asked == ["digits-better", "digits-worse"]:
            raise KeyboardInterrupt
        return real(here, kernel, images, label)

    monkeypatch.setattr(table1, "network_errors", counted)
    assert run([*arguments, "--budget", "1", "--json"]) == 75  # every estimate is above a second
    printed = capsys.readouterr()
    assert f"{'plan':<22} 2 pieces; the whole up to about " in printed.err
    assert "run again to continue" in printed.err
    assert not json.loads(printed.out.splitlines()[-1])["finished"]
    assert not (out / "table1.json").exists()
    assert run(arguments) == 130
    told = f"the finished pieces are kept in {out / 'pieces'}: run the same command again and it goes on from there"
    assert capsys.readouterr().err == f"error: interrupted; {told}\n"

    assert run([*arguments, "--budget", "1", "--json"]) == 0  # the first piece that is missing is always begun
    printed = capsys.readouterr()
    assert "2 pieces, 1 of them from an earlier run; the others up to about 10.0 s" in printed.err
    pieces = [line.split(maxsplit=1)[1] for line in printed.err.splitlines() if line.startswith("piece")]
    first, second = "1 of 2, table1-digits-better: ", "2 of 2, table1-digits-worse: "
    starts = (f"{first}kept from an earlier run", f"{second}up to about ", f"{second}done in ")
    assert all(piece.startswith(start) for piece, start in zip(pieces, starts, strict=True))
    assert asked == ["digits-better", "digits-worse", "digits-worse"]
    doc = results.read(out / "table1.json")
    assert (doc["command"], doc["quick"]) == ("cnngp reproduce table1 --quick --device cpu", True)
    assert {"table1.png", "table1.svg"} == {f["file"] for f in doc["figures"]}
    text = (out / results.PAGE).read_text()
    for r in doc["rows"]:
        for shown in (results.shown(r[key], r["unit"]) for key in ("ours", "published") if r[key] is not None):
            assert shown in text
            assert shown in printed.err
    assert "In brackets: published values, of the full experiment; larger errors are no failure" in printed.err
    last = json.loads(printed.out)
    assert last["finished"]
    for rows in (last["rows"], found["rows"]):
        assert [r["ours"] for r in rows] == [r["ours"] for r in doc["rows"]]

    monkeypatch.setattr(table1, "draw", Mock(side_effect=plots.PlotsUnavailable("a figure needs matplotlib")))
    assert run(arguments) == 0
    assert "not drawn: a figure needs matplotlib" in capsys.readouterr().out
    assert results.read(out / "table1.json")["figures"] == []


@pytest.mark.slow
def test_a_cluster_computes_the_same(found: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(setting, "load", lambda name, split, data: DATA)
    monkeypatch.setattr(table1, "QUICK", PLAN)
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster:
        words = f"reproduce table1 --quick --device cpu --out out --scheduler {cluster.scheduler_address}"
        assert run(words.split()) == 0
    doc = results.read(Path("out/table1.json"))
    assert [r["ours"] for r in doc["rows"]] == [r["ours"] for r in found["rows"]]
    for label, values in doc["details"]["networks"].items():
        assert "Dask" in values["hardware"]
        alone = found["details"]["networks"][label]
        assert values["log_marginal_likelihood"] == alone["log_marginal_likelihood"]
    assert len(list(Path("out/stores").iterdir())) == 2 * len(PLAN.cases)  # of training, and of test with training


@pytest.mark.parametrize(
    ("options", "message", "code"),
    [
        (["table1", "--device", "tpu"], "'tpu' is not one of 'auto', 'cpu', 'cuda'", 2),
        (["table1", "--budget", "-1"], "expected a positive number of seconds", 2),
        (["table1", "--budget", "nan"], "expected a positive number of seconds", 2),
        (["table9"], "table9", 2),
        (["table1", "--out", "/dev/null/here"], "/dev/null", 1),
        (["table1", "--scheduler", "nowhere"], "nowhere", 1),
        (["all", "--device", "cpu", "--data", "none"], "--data none: no such folder; expected the folder", 1),
        (["all", "--device", "cpu", "--data", "."], "mnist", 1),
    ],
)
def test_mistakes_are_one_line_before_any_work(
    options: list[str], message: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "pooch", None)  # MNIST cannot be fetched
    if "--scheduler" in options:
        monkeypatch.setattr(setting, "load", lambda name, split, data: DATA)
    assert run(["reproduce", "--quick", "--out", "out", *options]) == code
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert "piece" not in printed.out
    assert not Path("out").exists()
