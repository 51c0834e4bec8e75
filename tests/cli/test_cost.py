"""How long a kernel will take is shown before the work, with a warning if that is hours."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cnngp import GPClassifier, Kernel, datasets, zoo
from cnngp.cli import cost, run
from cnngp.cli.output import one_command
from cnngp.network.choice import choose


def test_only_long_work_is_measured_and_only_hours_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    X = np.random.default_rng(0).random((8, 1, 8, 8)).astype(np.float32)
    kernel = Kernel(zoo.small_cnn(), device="cpu", threads=1)
    monkeypatch.setattr("cnngp.matrix.plan.measured_rate", lambda rows, side: 1000.0)
    with one_command():  # with the options of no other
        cost.tell_cost(kernel, X, 28)
        assert capsys.readouterr().out == ""
        cost.tell_cost(kernel, X, 600_000_000)
        told = capsys.readouterr()
        assert "about 166.7 h for the kernels of 600,000,000 pairs" in told.out
        assert "more than an hour" in told.out + told.err
        monkeypatch.setattr("cnngp.matrix.plan.measured_rate", lambda rows, side: 1e6)
        cost.tell_cost(kernel, X, 600_000_000)
        told = capsys.readouterr()
        assert "about 10 min for" in told.out
        assert "hour" not in told.out + told.err


def test_the_chosen_network_is_shown_with_what_its_neighbours_would_take(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    X = np.random.default_rng(0).random((8, 1, 28, 28)).astype(np.float32)
    choice = choose((1, 28, 28), 2000)
    assert choice.option.name == "pooled_cnn"
    monkeypatch.setattr("cnngp.matrix.plan.measured_rate", lambda rows, side: 1000.0)
    with one_command():
        cost.tell_choice(choice, Kernel(choice.option.network, device="cpu", threads=1), X, 10_000)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "choice pooled_cnn, chosen for 2,000 images of 1 × 28 × 28",
        "expected time about 10.0 s for the kernels of 10,000 pairs, timed on a few; "
        + "choosing a preparation, compiling and the report come on top",
        "better --network pooled_cnn-large: about 37.8 s",
        "quicker --network pooled_cnn-small: about 2.9 s",
    ]
    best = choose((1, 28, 28), 500)
    with one_command():
        cost.tell_choice(best, Kernel(best.option.network, device="cpu", threads=1), X, 10_000, " --data 'my photos'")
    assert "`cnngp search --space pooled --data 'my photos'` can look for one" in capsys.readouterr().out


def test_images_to_predict_do_not_change_what_classify_chooses() -> None:
    X = np.zeros((1200, 1, 28, 28), np.float32)
    for to_predict in (0, 10_000):
        pairs = 1200 * 1199 // 2 + 1200 * to_predict
        chosen = cost.choose_for(X, pairs, None, None, ("cpu", "float32", None, "nngp"))
        assert chosen == choose((1, 28, 28), 1200)
        assert chosen.option.name == "pooled_cnn-large"


def test_classify_says_and_repeats_how_images_are_prepared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["classify", "--train", "60", "--test", "20", "--output", str(tmp_path)]
    assert run(arguments) == 0
    told = capsys.readouterr().out
    assert "contrast (chosen)" in told
    assert "`cnngp search --space pooled` can look for one" in told
    clf = GPClassifier.load(tmp_path / "model.gp", device="cpu")
    data = datasets.digits().some(60, 20)
    same = GPClassifier(device="cpu").fit(data.X, data.y)
    assert (clf.preparation_, clf.network_) == (same.preparation_, same.network_)
    assert np.array_equal(clf.predict_proba(data.X_test), same.predict_proba(data.X_test))
    assert run([*arguments, "--preparation", "edges", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["preparation"] == "edges"
    assert "--preparation edges" in (tmp_path / "report.html").read_text()
    assert run([*arguments, "--preparation", "white"]) == 2
    assert "--preparation white: expected plain, contrast, detail, edges or loo" in capsys.readouterr().err


def test_classify_takes_a_budget_and_writes_the_command_that_repeats_the_choice_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cnngp.estimators.budget.expected_seconds", lambda kernel, X, pairs: 1e-6 * pairs)
    arguments = ["classify", "--train", "40", "--test", "20", "--output", str(tmp_path), "--no-model"]
    assert run([*arguments, "--budget", "10"]) == 0
    assert "the best whose kernels take at most 10 s on this machine" in capsys.readouterr().out
    command = "cnngp classify --network pooled_cnn-large-halved0 --train 40 --test 20 --noise loo"
    assert command in (tmp_path / "report.html").read_text()
    assert run([*arguments, "--network", "small_cnn", "--budget", "10"]) == 1
    told = capsys.readouterr().err
    assert told == "error: --budget chooses a network, and --network small_cnn names one; leave out one of them\n"


def test_the_command_in_the_report_names_the_kind_of_kernel(tmp_path: Path) -> None:
    few = ["--network", "small_cnn", "--train", "40", "--test", "20", "--output", str(tmp_path), "--no-model"]
    assert run(["classify", *few, "--kind", "ntk", "--quiet"]) == 0
    command = "cnngp classify --network small_cnn --train 40 --test 20 --kind ntk"
    assert command in (tmp_path / "report.html").read_text()


def test_the_command_that_looks_for_a_better_network_names_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    data = datasets.digits()
    np.savez("my images.npz", X=data.X[:60], y=data.y[:60], X_test=data.X[60:70], y_test=data.y[60:70])
    assert run(["classify", "--data", "my images.npz", "--no-model"]) == 0
    assert "`cnngp search --space pooled --data 'my images.npz'` can look for one" in capsys.readouterr().out
