"""The command line as a user types it: help, exit codes, what goes where, and one line for every mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnngp import GPClassifier, __version__, datasets, zoo
from cnngp.cli import run
from cnngp.common import memory


def test_version_and_short_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"cnngp {__version__}\n"
    for command in ("", "classify", "gram", "predict", "sample", "search", "reproduce", "networks", "info"):
        assert run([*command.split(), "-h"]) == 0
        printed = capsys.readouterr().out
        assert printed.startswith(f"Usage: cnngp {command}".rstrip())
        assert "-h, --help" in printed


def test_networks(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["networks", "--json"]) == 0
    printed = capsys.readouterr().out
    cost = {n["name"]: n["operations_per_pair"] for n in json.loads(printed.splitlines()[-1])["networks"]}
    assert cost["resnet32"] == zoo.resnet(32).shapes((1, 28, 28)).cost
    assert run(["networks", "resnet8", "--input-shape", "3x32x32"]) == 0
    assert "Conv(3, stride=2)" in capsys.readouterr().out


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info"]) == 0
    assert "engine cpu" in capsys.readouterr().out
    assert run(["info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["packages"]["numpy"] == np.__version__


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["classify", "--data", "imagenet"], 1, "no data 'imagenet': expected one of digits, mnist"),
        (["classify", "--network", "vgg"], 1, "no network 'vgg': expected auto, resnet32"),
        (["classify", "--network", "resnet9"], 1, "depth=9 is not 6n + 2"),
        (["classify", "--network", "none.json"], 1, "none.json: no such file"),
        (["classify", "--threads", "0"], 2, "--threads 0: expected a whole number of 1 or more"),
        (["sample", "--seed", "-1"], 2, "--seed -1: expected a whole number of 0 or more"),
        (["search", "--seed", "-1"], 2, "--seed -1: expected a whole number of 0 or more"),
        (["reproduce", "figure2", "--seed", "-1"], 2, "--seed -1: expected a whole number of 0 or more"),
        (["reproduce", "table1", "--out", "/dev/null/a"], 1, "--out /dev/null/a cannot be written: Not a directory"),
        (["classify", "--train", "0"], 2, "--train 0: expected a whole number of 1 or more"),
        (["classify", "--test", "-1"], 2, "--test -1: expected a whole number of 0 or more"),
        (["classify", "--test", "501"], 1, "digits has 500 test images, but 501 were asked for"),
        (["classify", "--train", "5"], 1, "the test set has labels that are missing from the training set"),
        (["classify", "--noise", "-1"], 2, "--noise -1: expected a variance"),
        (["classify", "--split", "paper"], 1, "the paper's split needs 60,000 training images"),
        (["classify", "--device", "tpu"], 2, "--device tpu: expected auto, cpu or cuda"),
        (["classify", "--train", "many"], 2, "--train many: expected a whole number of 1 or more"),
        (["classify", "--colour", "red"], 2, "No such option"),
        (["predict", "none.gp", "a.png"], 1, "none.gp: no such model file"),
        (["predict"], 2, "Missing argument"),
        (["networks", "--input-shape", "big"], 2, "--input-shape big: expected the channels, then the sizes"),
        (["reproduce", "foo"], 2, "'foo' is not one of 'table1', 'figure2'"),
        (["reproduce", "table1", "--budget", "x"], 2, "Invalid value for '--budget': expected a number"),
        (["dance"], 2, "No such command 'dance'"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == code
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert message in lines[0]
    assert "Traceback" not in captured.out
    assert "Value error" not in lines[0]
    assert "Input should be" not in lines[0]


def test_broken_files_are_one_line(classified: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "half.gp").write_bytes((classified / "model.gp").read_bytes()[:5000])
    assert run(["predict", str(tmp_path / "half.gp"), "a.png"]) == 1
    assert "half.gp is not a whole model file" in capsys.readouterr().err
    (tmp_path / "broken.png").write_bytes(b"not an image")
    assert run(["predict", str(classified / "model.gp"), str(tmp_path / "broken.png")]) == 1
    assert "broken.png is not a readable image" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not the JSON of a network"),
        (b"[]", "not the JSON of a network: expected"),
        (b'{"cnngp_network": 1, "network": {"layer": "Pool"}}', "unknown layer in network JSON"),
        (b"\xff\xfe\x00", "can't decode byte 0xff"),
    ],
)
def test_a_bad_network_file_is_named(
    content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "net.json"
    path.write_bytes(content)
    for arguments in (["networks", str(path)], ["classify", "--network", str(path)]):
        assert run(arguments) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"error: {path}: ")
        assert message in error


def test_too_little_memory(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "available", lambda device="cpu": 1_000_000)
    assert run(["classify", "--network", "small_cnn", "--output", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: an exact fit of 1,297 images needs 20.2 MB of memory, but 1 MB are free")
    assert not any(tmp_path.iterdir())


def test_repeated_images_give_one_warning_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = datasets.digits().take(40, 20)
    twice, labels = np.concatenate([data.X, data.X]), np.concatenate([data.y, data.y])
    np.savez(tmp_path / "twice.npz", x_train=twice, y_train=labels, x_test=data.X_test, y_test=data.y_test)
    data_and_place = ["--data", str(tmp_path / "twice.npz"), "--output", str(tmp_path / "out")]
    arguments = ["classify", "--network", "small_cnn", *data_and_place]
    assert run([*arguments, "--noise", "loo"]) == 0  # that is enough for them
    assert capsys.readouterr().err == ""
    assert run([*arguments, "--noise", "0"]) == 0
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1
    assert error[0].startswith("warning: the kernel matrix of 80 points is not positive definite")


def test_warnings_of_other_packages_are_lines_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """scikit-learn warns of many classes: without the file and the line of code that Python adds."""
    fit = GPClassifier.fit

    def warning(clf: GPClassifier, X: Any, y: Any, **_: Any) -> GPClassifier:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("more classes\n than half of the samples", UserWarning, stacklevel=1)
        return fit(clf, X, y)

    monkeypatch.setattr(GPClassifier, "fit", warning)
    assert run(["classify", "--train", "40", "--test", "20", "--no-model", "--output", str(tmp_path)]) == 0
    assert capsys.readouterr().err == "warning: more classes than half of the samples\n"


def test_as_a_process(tmp_path: Path) -> None:
    """The real thing: no progress bar in a pipe, help without importing the world."""
    code = "import sys; from cnngp.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "classify", "--network", "small_cnn", "--train", "40", "--test", "20"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stderr == ""
    assert (tmp_path / "out" / "digits-small_cnn-40" / "report.html").is_file()
    heavy = "import sys; import cnngp.cli; print([m for m in ('sklearn', 'numba', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, timeout=300, check=True,
                          env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
    assert done.stdout.strip() == "[]"


# ---- what goes where -------------------------------------------------------------------------------------------------


def process(arguments: list[str], tmp_path: Path, **options: Any) -> Any:
    code = "from cnngp.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        **options,
    )


def test_quiet_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--network", "small_cnn", "--train", "40", "--test", "20", "--no-model"]
    arguments = ["classify", *few, "--output", str(tmp_path)]
    assert run([*arguments, "--quiet"]) == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "")
    assert run([*arguments, "-q", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["command"] == "classify"
    assert printed.err == ""
    assert run(["networks"]) == 0  # the next command in this process is not quiet
    assert "resnet32" in capsys.readouterr().out


def test_a_reader_that_goes_away_ends_the_command_without_a_word(tmp_path: Path) -> None:
    for arguments in (["networks"], ["--help"], ["networks", "resnet110"]):
        read, write = os.pipe()
        os.close(read)
        with process(arguments, tmp_path, stdout=write, stderr=subprocess.PIPE, text=True) as running:
            os.close(write)
            assert running.communicate(timeout=300)[1] == ""
            assert running.returncode == 141


def test_output_that_is_closed_from_the_start(tmp_path: Path) -> None:
    code = "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, '-m', 'cnngp', 'networks'])"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_help_has_examples_and_no_cut_off_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    overview = capsys.readouterr().out
    assert "..." not in overview.replace("COMMAND [ARGS]...", "")
    for command in ("classify", "gram", "predict", "view", "sample", "search", "reproduce", "networks", "info"):
        assert f"\n  {command} " in overview
        assert run([command, "--help"]) == 0
        page = capsys.readouterr().out
        assert f"\n    cnngp {command}" in page[page.index("Example") :]
        assert "--quiet" in page


def test_names_of_others_do_not_control_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from cnngp.cli.output import say, warn

    evil = "a\x1b]0;title\x07\x9b2Jb"
    say("engine", f"{evil}\nsecond line")
    warn(evil)
    assert run(["gram", "--status", str(tmp_path / evil)]) == 1
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [f"{'engine':<22} a\\x1b]0;title\\x07\\u009b2Jb", f"{'':<22} second line"]
    for line in printed.err.splitlines():
        assert "a\\x1b]0;title\\x07\\u009b2Jb" in line


def test_gram_prepares_images_as_a_fit_does_and_says_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(tmp_path / "K.zarr")
    same = ["--network", "small_cnn", "--preparation", "contrast", "--train", "60", "--store", store]
    assert run(["gram", *same, "--tile", "20"]) == 0
    assert "continues" not in capsys.readouterr().out
    next((tmp_path / "K.zarr" / "K" / "c").glob("1/2")).unlink()
    assert run(["gram", *same]) == 0
    assert "5 of 6 tiles are there already" in " ".join(capsys.readouterr().out.split())
    fit = ["classify", *same, "--test", "20", "--no-model", "--output", str(tmp_path / "out")]
    assert run(fit) == 0
    capsys.readouterr()
    assert run([*fit, "--preparation", "edges"]) == 1
    assert "This fit prepares its images, by 'edges'" in capsys.readouterr().err
    assert run(["gram", "--preparation", "loo", "--store", store]) == 2
    assert "--preparation loo: expected plain, contrast, detail, edges" in capsys.readouterr().err
