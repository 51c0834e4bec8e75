"""The report as a browser sees it, and its figures."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cnngp import GPClassifier, datasets, zoo
from cnngp.gp.calibration import reliability
from cnngp.report import plots, report
from cnngp.report.evaluation import Evaluation, evaluate
from helpers.browser import needs_browser, opened

# The strange class names must come through as text.
DATA = datasets.digits().take(150, 80)
NAMES = np.array(["<zero>", "one & only", *"23456789"])


@pytest.fixture(scope="module")
def model() -> GPClassifier:
    return GPClassifier(zoo.small_cnn()).fit(DATA.X, NAMES[DATA.y])


@pytest.fixture(scope="module")
def evaluation(model: GPClassifier) -> Evaluation:
    named = datasets.Dataset("digits", DATA.X, NAMES[DATA.y], DATA.X_test, NAMES[DATA.y_test])
    return evaluate(model, named)


@pytest.fixture(scope="module")
def page(model: GPClassifier, evaluation: Evaluation) -> str:
    return report.render(
        evaluation, model.fit_report_, model.network_, model.input_shape_, command="cnngp classify", versions="cnngp"
    )


def test_evaluation_counts(model: GPClassifier, evaluation: Evaluation) -> None:
    assert evaluation.confusion.sum() == 80
    assert evaluation.test.error == pytest.approx(1 - np.trace(evaluation.confusion) / 80)
    assert evaluation.test.error == pytest.approx(1 - model.score(DATA.X_test, NAMES[DATA.y_test]))
    assert evaluation.loo.error == model.loo_error_
    assert [p.probability for p in evaluation.uncertain] == sorted(p.probability for p in evaluation.uncertain)
    assert all(p.label != p.predicted for p in evaluation.wrong)
    assert np.allclose(evaluation.correlations, evaluation.correlations.T)
    assert np.abs(evaluation.correlations).max() <= 1 + 1e-6
    assert evaluation.as_dict()["test_error"] == evaluation.test.error
    told = evaluation.as_dict()["mistakes"]
    assert [m["because_of"][0]["label"] for m in told] == [p.neighbours[0].label for p in evaluation.wrong]


def test_mistakes_are_explained_and_labels_suspected(model: GPClassifier) -> None:
    y = NAMES[DATA.y].copy()
    y[3] = NAMES[(DATA.y[3] + 4) % 10]
    names = np.array([f"<{i}>.png" for i in range(150)])
    data = datasets.Dataset("d", DATA.X, y, DATA.X_test, NAMES[DATA.y_test], names=names, names_test=names[:80])
    clf = GPClassifier(zoo.small_cnn()).fit(data.X, data.y, names=data.names)
    found = evaluate(clf, data)
    assert found.suspect[0].name == "<3>.png"
    assert found.suspect[0].predicted == NAMES[DATA.y[3]]
    assert all(p.label != p.predicted for p in found.suspect)
    for p in found.wrong:
        assert p.name in names
        assert len(p.neighbours) == 3
        assert p.neighbours[0].name in names
        assert 0 < p.novelty < 1
    page = report.render(found, clf.fit_report_, clf.network_, clf.input_shape_, command="c", versions="v")
    assert "&lt;3&gt;.png" in page
    assert "<3>" not in page
    assert json.loads(json.dumps(found.as_dict()))["suspects"][0]["name"] == "<3>.png"


def images(evaluation: Evaluation) -> int:
    """Three figures, the pictures, and the training images below the mistakes."""
    e = evaluation
    return 3 + len(e.uncertain) + len(e.wrong) + len(e.suspect) + sum(len(p.neighbours) for p in e.wrong)


def test_the_page_is_self_contained(page: str, evaluation: Evaluation) -> None:
    sources = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert len(sources) == images(evaluation)
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "&lt;zero&gt;" in page
    assert "<zero>" not in page
    for text in ("leave-one-out error", "ECE", "Confidently wrong", "cnngp classify", "Conv(3", "exact kernel"):
        assert text in page


@needs_browser
def test_opens_in_a_browser(page: str, evaluation: Evaluation, tmp_path: Path) -> None:
    n = images(evaluation)
    assert opened(page, tmp_path, width=1100).startswith(f"drawn {n} of {n}, too wide: false")


def test_figures_of_awkward_data() -> None:
    """Many classes, empty bins, two images, colour: all give a PNG."""
    many = [f"a long class name {i}" for i in range(45)]
    P = np.array([[0.9, 0.1], [0.2, 0.8]])
    for png in (
        plots.confusion(np.eye(45, dtype=np.int64), many),
        plots.reliability(reliability(P, np.array([0, 0]))),
        plots.kernel_matrix(np.eye(2), [1], ["a", "b"]),
        plots.picture(np.random.default_rng(0).random((3, 5, 4))),
        plots.picture(np.zeros((1, 3, 3))),
    ):
        assert png.startswith(b"\x89PNG")


def test_class_names_in_figures_are_no_formulas() -> None:
    """`$x_$` is no formula that matplotlib understands; `$x$` would lose its dollars."""
    for names in (["$x_$", "$\\nothing$"], ["$x$", r"\$"], ["$" * 300, "b"]):
        for png in (
            plots.confusion(np.eye(2, dtype=np.int64), names),
            plots.kernel_matrix(np.eye(2), [1], names),
        ):
            assert png.startswith(b"\x89PNG")
    assert plots.confusion(np.eye(2, dtype=np.int64), ["$x$", "b"]) != plots.confusion(
        np.eye(2, dtype=np.int64), ["x", "b"]
    )


def test_long_class_names_leave_room_for_the_figure() -> None:
    drawn: list[list[str]] = []

    class Axes:
        def set_xticks(self, places: object, names: list[str], **_: object) -> None:
            drawn.append(names)

        set_yticks = set_xticks

    plots._name_ticks(Axes(), range(3), ["a" * 500 + "1", "a" * 500 + "2", "exactly twenty chars"])
    for names in drawn:
        assert names == ["a" * 13 + "…" + "aaaaa1", "a" * 13 + "…" + "aaaaa2", "exactly twenty chars"]
    assert len(drawn) == 2


@needs_browser
def test_long_class_names_leave_the_page_its_width(evaluation: Evaluation, model: GPClassifier, tmp_path: Path) -> None:
    long = [replace(p, predicted="p" * 300, label="l" * 300) for p in evaluation.uncertain]
    page = report.render(
        replace(evaluation, uncertain=long, data="d" * 300),
        *(model.fit_report_, model.network_, model.input_shape_),
        command="cnngp classify",
        versions="cnngp",
    )
    assert "too wide: false" in opened(page, tmp_path, width=1100)


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(plots.PlotsUnavailable, match=r'pip install "cnngp\[plots\]"'):
        plots.picture(np.zeros((1, 3, 3)))
