"""How long a kernel will take is shown before the work, with a warning if that is hours."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cnngp import GPClassifier, Kernel, Recipe, Term, datasets, zoo
from cnngp.cli import cost, run
from cnngp.cli.output import one_command


def test_only_long_work_is_measured_and_only_hours_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    X = np.random.default_rng(0).random((8, 1, 8, 8)).astype(np.float32)
    kernel = Kernel(zoo.small_cnn(), device="cpu", threads=1)
    monkeypatch.setattr("cnngp.matrix.tile_size.measured_rate", lambda rows, side: 1000.0)
    with one_command():  # with the options of no other
        cost.tell_cost(kernel, X, 28)
        assert capsys.readouterr().out == ""
        cost.tell_cost(kernel, X, 600_000_000)
        told = capsys.readouterr()
        assert "about 166.7 h for the kernels of 600,000,000 pairs" in told.out
        assert "more than an hour" in told.out + told.err
        monkeypatch.setattr("cnngp.matrix.tile_size.measured_rate", lambda rows, side: 1e6)
        cost.tell_cost(kernel, X, 600_000_000)
        told = capsys.readouterr()
        assert "about 10 min for" in told.out
        assert "hour" not in told.out + told.err


def test_classify_says_and_repeats_what_it_chooses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["classify", "--train", "60", "--test", "20", "--output", str(tmp_path)]
    assert run(arguments) == 0
    told = capsys.readouterr().out
    clf = GPClassifier.load(tmp_path / "model.gp", device="cpu")
    data = datasets.digits().some(60, 20)
    same = GPClassifier(device="cpu").fit(data.X, data.y)
    assert same.choice_ is not None
    assert f"{'choice':<22} {same.choice_.name}, the best of " in told
    assert f"{'network':<22} {same.recipe_.name} (chosen), " in told
    assert clf.recipe_ == same.recipe_
    assert np.array_equal(clf.predict_proba(data.X_test), same.predict_proba(data.X_test))
    (tmp_path / "r.json").write_text(clf.recipe_.to_json())
    assert run([*arguments, "--recipe", str(tmp_path / "r.json"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert Recipe.from_json(json.dumps(found["recipe"])) == clf.recipe_
    assert found["test_error"] == pytest.approx(1.0 - same.score(data.X_test, data.y_test))
    assert "--recipe" in (tmp_path / "report.html").read_text()


def test_classify_prepares_images_as_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["classify", "--network", "small_cnn", "--train", "60", "--test", "20", "--output", str(tmp_path)]
    assert run([*arguments, "--preparation", "edges", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["preparation"] == "edges"
    assert "--preparation edges" in (tmp_path / "report.html").read_text()
    assert run([*arguments, "--preparation", "white"]) == 2
    assert "--preparation white: expected plain, contrast, detail, edges" in capsys.readouterr().err


def test_the_command_in_the_report_names_the_kind_of_kernel(tmp_path: Path) -> None:
    few = ["--network", "small_cnn", "--train", "40", "--test", "20", "--output", str(tmp_path), "--no-model"]
    assert run(["classify", *few, "--kind", "ntk", "--quiet"]) == 0
    command = "cnngp classify --network small_cnn --train 40 --test 20 --kind ntk"
    assert command in (tmp_path / "report.html").read_text()


def test_gram_computes_the_matrices_of_a_recipe_and_a_fit_uses_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = Recipe([Term("small_cnn", symmetry="flip"), Term("dense_nngp", preparation="zca")], noise=0.1)
    (tmp_path / "r.json").write_text(recipe.to_json())
    data = datasets.digits().some(40, 10)
    store = tmp_path / "store"
    arguments = ["--recipe", str(tmp_path / "r.json"), "--train", "40", "--store", str(store), "--json"]
    assert run(["gram", *arguments]) == 0
    terms = json.loads(capsys.readouterr().out)["terms"]
    assert {Path(t["store"]).name for t in terms} == {t.store_name for t in recipe.terms}
    stored = GPClassifier(recipe, store=store, device="cpu").fit(data.X, data.y)
    plain = GPClassifier(recipe, device="cpu").fit(data.X, data.y)
    assert {p.name for p in store.glob("term-*")} == {t.store_name for t in recipe.terms}
    np.testing.assert_array_equal(stored.loo_probabilities_, plain.loo_probabilities_)
    assert run(["gram", *arguments, "--network", "small_cnn"]) == 1
    assert "--recipe names the networks and preparations" in capsys.readouterr().err
