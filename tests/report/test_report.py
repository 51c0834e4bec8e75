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
from cnngp.estimators.learning import Learned
from cnngp.gp.calibration import reliability
from cnngp.report import plots, report
from cnngp.report.evaluation import Evaluation, _bins, evaluate
from cnngp.report.suspects import suspect_labels
from helpers.browser import needs_browser, opened, title_of

# The strange class names must come through as text.
DATA = datasets.digits().take(150, 80)
NAMES = np.array(["<zero>", "one & only", *"23456789"])
NAMED = datasets.Dataset("digits", DATA.X, NAMES[DATA.y], DATA.X_test, NAMES[DATA.y_test])


@pytest.fixture(scope="module")
def model() -> GPClassifier:
    return GPClassifier(zoo.small_cnn()).fit(DATA.X, NAMES[DATA.y])


@pytest.fixture(scope="module")
def evaluation(model: GPClassifier) -> Evaluation:
    return evaluate(model, NAMED)


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
    page = report._looked_at(found)
    assert "&lt;3&gt;.png" in page
    assert "<3>" not in page
    assert json.loads(json.dumps(found.as_dict()))["suspects"][0]["name"] == "<3>.png"


def images(evaluation: Evaluation) -> int:
    """Three figures, the pictures, and the training images below the mistakes."""
    e = evaluation
    wrong = [p for p in e.wrong if p.probability >= report.CLEAR]
    return 3 + len(e.uncertain) + len(wrong) + len(e.suspect) + sum(len(p.neighbours) for p in wrong)


def shown(e: Evaluation, model: GPClassifier) -> str:
    return report.render(e, model.fit_report_, model.network_, model.input_shape_, command="c", versions="v")


def test_mistakes_that_are_not_confident_are_not_called_so(evaluation: Evaluation) -> None:
    doubtful = replace(evaluation, wrong=tuple(replace(p, probability=0.59) for p in evaluation.wrong))
    told = report._looked_at(doubtful)
    assert "No test image is predicted wrongly with a probability of 60 % or more." in told
    assert "because" not in told
    assert "No test image is predicted wrongly." in report._looked_at(replace(evaluation, wrong=()))
    sure = replace(doubtful, wrong=(replace(evaluation.wrong[0], probability=0.61),))
    assert report._looked_at(sure).count("because") == 1


@pytest.mark.filterwarnings("ignore:noise='loo' chose the most noise")
def test_a_model_that_learned_nothing_is_not_presented_as_a_result() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.random((84, 1, 8, 8)), np.arange(84) % 3
    data = datasets.Dataset("noise", X[:60], y[:60], X[60:], y[60:])
    clf = GPClassifier(zoo.small_cnn(), noise="loo").fit(data.X, data.y)
    found = evaluate(clf, data)
    assert found.suspect == ()
    page = shown(found, clf)
    assert page.count("No better than guessing: leave-one-out is wrong on ") == 2
    assert "Confidently wrong" not in page
    assert "Suspect labels" not in page
    assert "this model is not clearly\nbetter than guessing" in page


def test_few_images_are_told_with_their_interval_and_many_without(evaluation: Evaluation) -> None:
    few = np.diag([11, 0]) + np.array([[0, 13], [0, 0]])
    said = replace(evaluation, confusion=few, test=replace(evaluation.test, error=13 / 24))
    numbers = report._numbers(said)
    assert "<b>54 %</b><span>test error: 13 of 24, likely 35 % to 72 %</span>" in numbers
    assert "54.17" not in numbers
    assert "<b>54.17 %</b><span>test error</span>" in report._numbers(replace(said, confusion=1000 * few))


def test_a_negative_likelihood_has_a_minus(evaluation: Evaluation) -> None:
    assert "<b>−1,397</b>" in report._numbers(replace(evaluation, log_marginal_likelihood=-1397.2))


def test_every_count_of_the_confusion_matrix_can_be_read_and_errors_look_like_errors() -> None:
    def luminance(colour: np.ndarray) -> float:
        linear = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    letters = {"white": np.ones(3), "#1f2933": np.array([0x1F, 0x29, 0x33]) / 255}
    for wrong in range(5, 100, 5):
        counts = np.array([[100 - wrong, wrong], [wrong, 100 - wrong]])
        cells = plots.confusion_colours(counts)
        for i, j in ((0, 0), (0, 1)):
            low, high = sorted(luminance(c) for c in (cells[i, j], letters[plots.readable_on(cells[i, j])]))
            assert (high + 0.05) / (low + 0.05) > 3.8
        assert cells[0, 0, 2] >= cells[0, 0, 0]  # blue
        assert cells[0, 1, 0] > 0.85 > cells[0, 1, 2]  # orange


def test_names_break_between_their_words_first(evaluation: Evaluation) -> None:
    fox = replace(evaluation.uncertain[0], predicted="red_fox", label="red_fox")
    assert "red_<wbr>fox" in report._looked_at(replace(evaluation, uncertain=(fox,)))


def test_the_page_is_self_contained(page: str, evaluation: Evaluation) -> None:
    sources = re.findall(r'(?:src|(?<!icon" )href)="([^"]*)"', page)
    assert len(sources) == images(evaluation)
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "&lt;zero&gt;" in page
    assert "<zero>" not in page
    for text in ("leave-one-out error", "ECE", "Confidently wrong", "cnngp classify", "Conv(3", "exact kernel"):
        assert text in page


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
def test_all_pictures_are_drawn_and_long_names_leave_the_page_its_width(
    page: str, evaluation: Evaluation, tmp_path: Path
) -> None:
    long = tuple(replace(p, predicted="p" * 300, label="l" * 300) for p in evaluation.uncertain)
    was, become = (report._looked_at(e) for e in (evaluation, replace(evaluation, uncertain=long)))
    assert was in page
    n = images(evaluation)
    found = opened(page.replace(was, become).replace(evaluation.data, "d" * 300), tmp_path, width=1100)
    assert found.startswith(f"drawn {n} of {n}, too wide: false")


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(plots.PlotsUnavailable, match=r'pip install "cnngp\[plots\]"'):
        plots.picture(np.zeros((1, 3, 3)))


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
    assert found.sentence in report._looked_at(evaluate(clf, replace(data, X=X, y=y)))
    if wrong:
        assert wrong - 2 <= len(set(found.columns["row"]) & set(rows)) <= wrong
        assert len(found) == found.beyond_errors <= 2 * wrong
        assert 0 < found.expected <= len(found) / 2
    else:
        assert len(found) == 5
        assert found.beyond_errors <= 1 < found.contradicted / 50


@pytest.mark.parametrize(("uncertain", "sure", "bins"), [(60, 0, 6), (2, 400, 5), (300, 0, 15), (0, 0, 5)])
def test_bins_are_so_few_that_uncertain_images_fill_them(uncertain: int, sure: int, bins: int) -> None:
    assert _bins(np.array([0.5] * uncertain + [0.99] * sure)) == bins


@needs_browser
def test_the_page_is_dark_where_the_browser_is(page: str, tmp_path: Path) -> None:
    told = """<script>addEventListener("load", () => { const style = getComputedStyle(document.body);
        document.title = style.backgroundColor + style.color; });</script></body>"""
    (tmp_path / "page.html").write_text(page.replace("</body>", told), encoding="utf-8")
    title = title_of((tmp_path / "page.html").as_uri(), tmp_path / "profile", 900, dark=True)
    assert title == "rgb(22, 26, 36)rgb(230, 233, 240)"


def test_learning_that_finds_nothing_says_so() -> None:
    net = zoo.small_cnn()
    same = Learned("loo", 50, net, net, 0.28021, 0.28019, 0.1, 0.2, (), (), ((0, 0.3),), 1.0, False)
    assert "nothing better was found" in str(same)
    assert "Nothing better was found" in report._learned(same)
    better = replace(same, after=0.27)
    assert "othing better" not in str(better) + report._learned(better)
