"""The report as a browser sees it, what it finds of classes and of numbers, and its figures."""

import io
import json
import re
import sys
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cnngp import GPClassifier, GPRegressor, datasets, zoo
from cnngp.common.figures import bare_figure
from cnngp.estimators.choosing import Expected
from cnngp.gp.calibration import reliability
from cnngp.report import page, plots, run
from cnngp.report.classification import CLEAR, Classes, bins_for
from cnngp.report.regression import Numbers, NumberScores
from cnngp.report.run import _Stages
from cnngp.report.suspects import suspect_labels
from helpers.browser import needs_browser, opened

# The strange class names must come through as text.
DATA = datasets.digits().take(150, 80)
CLASSES = np.array(["<zero>", "one & only", *"23456789"])
FILES = np.array([f"<{i}>.png" for i in range(150)])
WRONG = 3
Y = CLASSES[DATA.y].copy()
Y[WRONG] = CLASSES[(DATA.y[WRONG] + 4) % 10]
NAMED = datasets.Dataset("d", DATA.X, Y, DATA.X_test, CLASSES[DATA.y_test], names=FILES, names_test=FILES[:80])
MEASURED = replace(NAMED, y=DATA.y + 0.5, y_test=DATA.y_test + 0.5)


@pytest.fixture(scope="module")
def classes() -> Classes:
    return Classes(GPClassifier(zoo.small_cnn(), noise="loo").fit(NAMED.X, NAMED.y, names=FILES), NAMED)


@pytest.fixture(scope="module")
def numbers() -> Numbers:
    reg = GPRegressor(zoo.small_cnn(), noise="loo", normalize_y=True).fit(MEASURED.X, MEASURED.y, names=FILES)
    return Numbers(reg, MEASURED)


@pytest.fixture(scope="module")
def text(classes: Classes) -> str:
    return page.render(classes, "cnngp classify", "cnngp")


def test_images_of_weight_0_are_not_mistaken_for_others() -> None:
    """Rows of a fit count what was left, and labels are those of the fit."""
    kept = DATA.y != 0
    without = replace(DATA, X=DATA.X[kept], y=DATA.y[kept], X_test=DATA.X_test[:0], y_test=DATA.y_test[:0])
    weighted = GPClassifier("small_cnn", noise=0.1, class_weight={0: 0.0}).fit(DATA.X, DATA.y)
    found = Classes(weighted, replace(without, X=DATA.X, y=DATA.y))
    assert found.loo == Classes(GPClassifier("small_cnn", noise=0.1).fit(without.X, without.y), without).loo


def test_what_is_found_of_classes(classes: Classes) -> None:
    clf, told = classes.model, classes.as_dict()
    assert classes.confusion.sum() == 80
    assert classes.test.error == pytest.approx(1 - np.trace(classes.confusion) / 80) == told["test_error"]
    assert classes.test.error == pytest.approx(1 - clf.score(NAMED.X_test, NAMED.y_test))
    assert classes.loo.error == clf.loo_error_
    sure = [p["probability"] for p in told["uncertain"]]
    assert sure == sorted(sure)
    assert classes.suspect[0].name == told["suspects"][0]["name"] == f"<{WRONG}>.png"
    assert classes.suspect[0].predicted == CLASSES[DATA.y[WRONG]]
    assert all(p.label != p.predicted for p in (*classes.suspect, *classes.wrong))
    for p, of in zip(classes.wrong, told["mistakes"], strict=True):
        assert p.name in FILES
        assert [n.label for n in p.neighbours] == [voice["label"] for voice in of["because_of"]]
        assert 0 < of["novelty"] < 1
    json.dumps(told, allow_nan=False)
    sets = clf.predict_set(NAMED.X_test, coverage=0.9)
    right = sets[range(80), np.searchsorted(clf.classes_, NAMED.y_test)]
    assert told["coverage"] == classes.coverage == {
        "asked": 0.9, "images": 80, "right": right.mean(), "classes": sets.sum(1).mean(), "none": (~sets.any(1)).mean()
    }  # fmt: skip
    tiles = {name.split(":")[0]: value for value, name in classes.tiles()}
    assert tiles["test error"] == f"{100 * classes.test.error:.0f} %"
    assert tiles["log marginal likelihood"].startswith("−")


def test_what_is_found_of_numbers(numbers: Numbers) -> None:
    reg, told = numbers.model, numbers.as_dict()
    left = np.abs(MEASURED.y - reg.loo_predictions_) / reg.loo_std_
    assert told["loo"]["rmse"] == pytest.approx(reg.loo_error_)
    assert told["test"]["r2"] == pytest.approx(reg.score(MEASURED.X_test, MEASURED.y_test))
    predicted = reg.predict(MEASURED.X_test, return_std=True, noise=True)
    assert numbers.test.log_density == pytest.approx(NumberScores.of(MEASURED.y_test, *predicted).log_density)
    assert told["coverage"]["error_bars"] == pytest.approx((left <= 1.64485).mean())
    low, high = reg.predict_interval(MEASURED.X_test, coverage=0.9).T
    assert told["coverage"]["right"] == ((low <= MEASURED.y_test) & (MEASURED.y_test <= high)).mean()
    off = [abs(m["measured"] - m["value"]) / m["std"] for m in told["mistakes"]]
    assert off == sorted(off, reverse=True)
    assert numbers.wrong[0].neighbours[0].label == f"{told['mistakes'][0]['because_of'][0]['label']:.4g}"
    drawn = page.render(numbers, "cnngp regress", "v")
    for heading in ("Predicted and measured", "Error bars and intervals", "Furthest off", "Suspect numbers"):
        assert f"<h2>{heading}</h2>" in drawn
    json.dumps(told, allow_nan=False)


def test_scores_of_numbers() -> None:
    y, mean, std = np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 4.0]), np.array([1.0, 1.0, 2.0])
    found = NumberScores.of(y, mean, std)
    assert found.r2 == pytest.approx(0.5)
    assert found.rmse == pytest.approx(np.sqrt(1 / 3))
    assert found.log_density == pytest.approx(-(0.125 + np.log(2) + 1.5 * np.log(2 * np.pi)) / 3)
    assert NumberScores.of(y[:1], mean[:1], std[:1]).r2 is None


def test_the_time_that_is_announced_is_of_all_pairs_the_solve_and_the_report() -> None:
    said: list[tuple[str, ...]] = []
    stages = _Stages(lambda *words: said.append(words), DATA)
    stages.tell("expected", Expected(choosing=10.0, a_pair=1e-3))  # 150 · 149 / 2 + 150 · 80 pairs
    assert said == [("expected time", "about 35.7 s for 23,175 pairs, the solve and the report")]
    stages.tell("expected", Expected(choosing=0.0, a_pair=1e-6))
    assert len(said) == 1  # of a few seconds nobody needs to be told
    X, y = np.broadcast_to(DATA.X[0], (60_000, 1, 8, 8)), np.zeros(60_000, int)
    whole = _Stages(print, replace(DATA, X=X, y=y, X_test=X[:10_000], y_test=y[:10_000]))
    work = 60_000**3 / 3 + 12 * 60_000**2 * 10_000
    assert whole._afterwards == pytest.approx(stages._afterwards + work / run._FLOPS, rel=1e-3)


def test_mistakes_that_are_not_confident_are_not_called_so(classes: Classes, monkeypatch: pytest.MonkeyPatch) -> None:
    first = classes.wrong[0]

    def told(*probabilities: float) -> str:
        wrong = tuple(replace(first, facts={"probability": p}) for p in probabilities)
        monkeypatch.setattr(classes, "wrong", wrong)
        return classes.sections()

    assert f"No test image is predicted wrongly with a probability of {CLEAR:.0%}".replace("%", " %") in told(0.59)
    assert "No test image is predicted wrongly." in told()
    assert told(0.59, 0.61).count('"because"') == 1


@pytest.mark.filterwarnings("ignore:noise='loo' chose the most noise")
@pytest.mark.parametrize("kind", [GPClassifier, GPRegressor])
def test_a_model_that_learned_nothing_is_not_presented_as_a_result(kind: Any) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.random((84, 1, 8, 8)), np.arange(84) % 3
    data = datasets.Dataset("noise", X[:60], y[:60], X[60:], y[60:])
    fitted = kind(zoo.small_cnn(), noise="loo").fit(data.X, data.y)
    found = (Classes if kind is GPClassifier else Numbers)(fitted, data)
    assert found.suspect == ()
    drawn = page.render(found, "c", "v")
    assert drawn.count("etter than guessing: " if kind is GPClassifier else "etter than the mean of all targets: ") == 2
    assert re.search("Confidently wrong|Furthest off|Suspect|Sets instead|Error bars", drawn) is None
    assert "this model is not clearly\nbetter than guessing" in drawn


def test_the_page_is_self_contained(text: str, classes: Classes) -> None:
    sources = re.findall(r'(?:src|(?<!icon" )href)="([^"]*)"', text)
    assert len(sources) == images(classes)
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "&lt;zero&gt;" in text
    assert f"&lt;{WRONG}&gt;.png" in text
    assert re.search(r"<zero>|<\d+>\.png", text) is None
    for said in (
        "leave-one-out error",
        "ECE",
        "Sets instead of classes",
        "matrix of the test set",
        "Conv(3",
        "exact kernel",
    ):
        assert said in text


def images(found: Classes) -> int:
    """Two figures, the pictures, and the training images below the mistakes."""
    wrong = [p for p in found.wrong if p.facts["probability"] >= CLEAR]
    behind = sum(len(p.neighbours) + (p.saliency is not None) for p in wrong)
    return 2 + len(found.uncertain) + len(wrong) + len(found.suspect) + behind


@needs_browser
def test_all_pictures_are_drawn_and_long_names_leave_the_page_its_width(
    text: str, classes: Classes, numbers: Numbers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    was, n = classes.sections(), images(classes)
    long = tuple(replace(p, predicted="p" * 300, label="l" * 300) for p in classes.uncertain)
    monkeypatch.setattr(classes, "uncertain", long)
    drawn = text.replace(was, classes.sections()).replace(repr(NAMED).strip("<>"), "d" * 300)
    assert opened(drawn, tmp_path, width=500).startswith(f"drawn {n} of {n}, too wide: false")
    drawn = page.render(numbers, "cnngp regress", "v")
    n = drawn.count("<img ")
    assert opened(drawn, tmp_path, width=500).startswith(f"drawn {n} of {n}, too wide: false")


@pytest.mark.parametrize("wrong", [0, 12])
def test_the_list_of_suspect_labels_ends_where_the_models_own_errors_explain_it(wrong: int) -> None:
    """On images that are hard to tell apart many labels are contradicted, though all of them are right."""
    rng = np.random.default_rng(0)
    data = datasets.digits().take(240, 20)
    y = data.y.copy()
    rows = rng.choice(240, wrong, replace=False)
    y[rows] = (y[rows] + rng.integers(1, 10, wrong)) % 10
    X = data.X if wrong else (data.X + rng.normal(0.0, 0.5, data.X.shape)).astype(np.float32)
    clf = GPClassifier(zoo.small_cnn(), device="cpu", noise="loo").fit(X, y)
    found = suspect_labels(clf)
    assert found.contradicted == round(clf.loo_error_ * 240) > 5
    assert len(suspect_labels(clf, 50)) == 50
    assert escape(found.sentence) in Classes(clf, replace(data, X=X, y=y)).sections()
    if wrong:
        assert wrong - 2 <= len(set(found.columns["row"]) & set(rows)) <= wrong
        assert len(found) == found.beyond_errors <= 2 * wrong
        assert 0 < found.expected <= len(found) / 2
    else:
        assert len(found) == 5
        assert found.beyond_errors <= 1 < found.contradicted / 50


def test_suspect_numbers_are_those_that_are_further_off_than_chance(numbers: Numbers) -> None:
    assert suspect_labels(numbers.model).beyond_errors <= 2
    y = MEASURED.y.copy()
    y[[5, 50, 100]] += 12.0
    found = suspect_labels(GPRegressor(zoo.small_cnn(), noise="loo", normalize_y=True).fit(MEASURED.X, y))
    assert set(found.columns["row"][: found.beyond_errors]) >= {5, 50, 100}
    assert len(found) <= 5
    assert found.sentence.startswith("The others contradict ")
    assert "with every number right" in found.sentence


@pytest.mark.parametrize(("uncertain", "sure", "bins"), [(60, 0, 6), (2, 400, 5), (300, 0, 15), (0, 0, 5)])
def test_bins_are_so_few_that_uncertain_images_fill_them(uncertain: int, sure: int, bins: int) -> None:
    assert bins_for(np.array([0.5] * uncertain + [0.99] * sure)) == bins


# ---- figures ---------------------------------------------------------------------------------------------------------


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(plots.PlotsUnavailable, match=r'pip install "cnngp\[plots\]"'):
        plots.picture(np.zeros((1, 3, 3)))


def test_figures_of_awkward_data() -> None:
    """Many classes, empty bins, two images, colour, names that are no formulas: all give a PNG."""
    P = np.array([[0.9, 0.1], [0.2, 0.8]])
    drawn = [
        plots.confusion(np.eye(45, dtype=np.int64), [f"a long class name {i}" for i in range(45)]),
        plots.reliability(reliability(P, np.array([0, 0]))),
        plots.predictions(np.ones(1), np.ones(1), np.zeros(1)),
        plots.picture(np.random.default_rng(0).random((3, 5, 4))),
        plots.picture(np.zeros((1, 3, 3))),
        plots.saliency(np.zeros((1, 3, 3)), np.zeros((1, 3, 3))),
    ]
    strange = (["$x_$", "$\\nothing$"], ["$x$", r"\$"], ["$" * 300, "b"], ["x", "b"])
    drawn += [plots.confusion(np.eye(2, dtype=np.int64), names) for names in strange]
    assert all(png.startswith(b"\x89PNG") for png in drawn)
    assert drawn[-2] != drawn[-1]  # dollars are shown


def test_long_class_names_are_shortened_in_their_middle() -> None:
    axes = bare_figure(2, 2).subplots()
    plots._name_ticks(axes, range(3), ["a" * 500 + "1", "a" * 500 + "2", "exactly twenty chars"])
    drawn = ["a" * 13 + "…" + "aaaaa1", "a" * 13 + "…" + "aaaaa2", "exactly twenty chars"]
    assert [label.get_text() for label in axes.get_xticklabels()] == drawn
    assert [label.get_text() for label in axes.get_yticklabels()] == drawn


def shown(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("L"))


def test_signals_are_drawn_as_curves_and_volumes_by_their_middle_slice() -> None:
    ramp = shown(plots.picture(np.linspace(-1, 1, 40)[None]))
    assert ramp.shape == (20, 40)
    assert ramp.any(0).all()  # the curve goes through every column
    assert ramp[-1, 0] == ramp[0, -1] == 255  # from the bottom left to the top right
    assert ramp[0, 0] == ramp[-1, -1] == 0
    both = shown(plots.picture(np.stack([np.zeros(40), np.ones(40)])))
    assert both[0].all()
    assert both[-1].all()
    assert shown(plots.picture(np.zeros((1, 5)))).shape == (16, 5)  # a flat signal, and a short one
    volume = np.zeros((1, 5, 4, 6))
    volume[0, 2, 1, 3] = 1.0
    assert shown(plots.picture(volume))[1, 3] == 255


def test_what_counts_is_orange() -> None:
    where = np.zeros((2, 4, 4))
    where[0, 1, 2] = -3.0
    seen = np.asarray(Image.open(io.BytesIO(plots.saliency(np.full((1, 4, 4), 0.5), where))).convert("RGB"), int)
    warm = seen[..., 0] - seen[..., 2]
    assert warm.argmax() == 1 * 4 + 2
    assert (np.delete(warm.ravel(), 6) == 0).all()
