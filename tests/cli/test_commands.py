"""The command line as a whole: help, exit codes, what goes where, and one line for every mistake."""

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnngp import GPClassifier, __version__, datasets, zoo
from cnngp.cli import app, output
from cnngp.cli.options import OPTIONS
from cnngp.common import memory

from .conftest import Command

COMMANDS = app.list_commands(None)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples_and_without_types_of_python(name: str, command: Command) -> None:
    page = command(f"{name} --help").out
    assert page.startswith(f"Usage: cnngp {name} ")
    assert "-h, --help" in page
    assert f"\n    cnngp {name}" in page[page.index("Example") :]
    assert "--quiet" in page
    assert re.search(r"<(int|float|str|path|range|list)|list\[|\{", page) is None
    assert f"\n  {name} " in command("--help").out


def test_version_overview_and_arguments(command: Command) -> None:
    assert command("--version").out == f"cnngp {__version__}\n"
    assert "..." not in command("-h").out.replace("COMMAND [ARGS]...", "")
    page = command("predict -h").out
    assert page.startswith("Usage: cnngp predict [OPTIONS] MODEL IMAGES...\n")
    assert "\n  MODEL  " in page


def test_every_option_of_the_table_belongs_to_commands() -> None:
    assert {name for option in OPTIONS for name in option.commands.split()} == {*COMMANDS, "experiment"}
    for name in COMMANDS:
        of = [option.name for option in OPTIONS if name in option.commands.split()]
        assert len(of) == len(set(of))


def test_networks_and_info(command: Command) -> None:
    cost = {n["name"]: n["operations_per_pair"] for n in command("networks --json").json["networks"]}
    assert cost["resnet32"] == zoo.resnet(32).shapes((1, 28, 28)).cost
    assert "Conv(3, stride=2)" in command("networks resnet8 --input-shape 3x32x32").out
    assert command("info").line("engine cpu")
    assert command("info --json").json["packages"]["numpy"] == np.__version__


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("classify --data imagenet", 1, "no data 'imagenet': expected one of digits, mnist"),
        ("reproduce table1 --out /dev/null/a", 1, "--out /dev/null/a cannot be written: Not a directory"),
        ("classify --test 501", 1, "digits has 500 test images, but 501 were asked for"),
        ("classify --train 5", 1, "the test set has labels that are missing from the training set"),
        ("classify --split paper", 1, "the paper's split needs 60,000 training images"),
        ("classify --colour red", 2, "No such option"),
        ("classify --netwrok red", 2, "--network"),
        ("regress", 1, "say what to fit with --data: a table (.csv) of image files with a column of numbers"),
        ("predict none.gp a.png", 1, "none.gp: no such model file"),
        ("predict", 2, "Missing argument"),
        ("reproduce foo", 2, "'foo' is not one of 'table1', 'figure2', 'figure3', 'all'"),
        ("networks auto", 1, "auto depends on the data"),
        ("dance", 2, "No such command 'dance'"),
    ],
)
def test_bad_input_is_one_line(words: str, code: int, message: str, refused: Any) -> None:
    assert message in refused(words, code)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not the JSON of a network"),
        (b"[]", "not the JSON of a network: expected"),
        (b'{"cnngp_network": 1, "network": {"layer": "Pool"}}', "unknown layer in network JSON"),
        (b"\xff\xfe\x00", "can't decode byte 0xff"),
    ],
)
def test_a_bad_network_file_is_named(content: bytes, message: str, tmp_path: Path, refused: Any) -> None:
    (tmp_path / "net.json").write_bytes(content)
    for words in ("networks", "classify --network"):
        error = refused(f"{words} {tmp_path / 'net.json'}")
        assert error.startswith(f"error: {tmp_path / 'net.json'}: ")
        assert message in error


def test_too_little_memory(monkeypatch: pytest.MonkeyPatch, command: Command, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "available", lambda device="cpu": 1_000_000)
    error = command(f"classify --network small_cnn --output {tmp_path}", 1).err
    assert error.startswith("error: an exact fit of 1,297 images needs 20.2 MB of memory, but 1 MB are free")
    assert not any(tmp_path.iterdir())


def test_repeated_images_give_one_warning_line(tmp_path: Path, command: Command) -> None:
    data = datasets.digits().take(40, 20)
    twice, labels = np.concatenate([data.X, data.X]), np.concatenate([data.y, data.y])
    np.savez(tmp_path / "twice.npz", x_train=twice, y_train=labels, x_test=data.X_test, y_test=data.y_test)
    words = f"classify --network small_cnn --data {tmp_path / 'twice.npz'} --output {tmp_path / 'out'}"
    assert command(f"{words} --noise loo").err == ""  # that is enough for them
    error = command(f"{words} --noise 0").err
    assert error.startswith("warning: the kernel matrix of 80 points is not positive definite")
    assert error.count("\n") == 1


def test_warnings_of_other_packages_are_lines_too(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the file and the line of code that Python adds."""
    fit = GPClassifier.fit

    def warning(clf: GPClassifier, X: Any, y: Any, **_: Any) -> GPClassifier:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("more classes\n than half of the samples", UserWarning, stacklevel=1)
        return fit(clf, X, y)

    monkeypatch.setattr(GPClassifier, "fit", warning)
    said = command(f"classify --network small_cnn --train 40 --test 20 --no-model --output {tmp_path}")
    assert said.err == "warning: more classes than half of the samples\n"


# ---- what goes where -------------------------------------------------------------------------------------------------


def process(words: str, folder: Path, code: str = "from cnngp.cli import main; main()", **options: Any) -> Any:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, "-c", code, *words.split()], cwd=folder, env=environment, **options)


def test_as_a_process(tmp_path: Path) -> None:
    """The real thing: no progress bar in a pipe, help without importing the world."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with process("classify --network small_cnn --train 40 --test 20", tmp_path, **pipes) as running:
        out, err = running.communicate(timeout=120)
    assert (running.returncode, err) == (0, "")
    assert out.startswith("data ")
    assert (tmp_path / "out" / "digits-small_cnn-40" / "report.html").is_file()
    heavy = "import sys; import cnngp.cli; print([m for m in ('sklearn', 'numba', 'matplotlib') if m in sys.modules])"
    with process("", tmp_path, heavy, **pipes) as running:
        assert running.communicate(timeout=300)[0].strip() == "[]"


def test_quiet_says_nothing(tmp_path: Path, command: Command) -> None:
    words = f"classify --network small_cnn --train 40 --test 20 --no-model --output {tmp_path}"
    assert command(f"{words} --quiet") == ("", "")
    said = command(f"{words} -q --json")
    assert (said.json["command"], said.err) == ("classify", "")
    assert "resnet32" in command("networks").out  # the next command in this process is not quiet


def test_a_reader_that_goes_away_ends_the_command_without_a_word(tmp_path: Path) -> None:
    for words in ("networks", "--help"):
        read, write = os.pipe()
        os.close(read)
        with process(words, tmp_path, stdout=write, stderr=subprocess.PIPE, text=True) as running:
            os.close(write)
            assert running.communicate(timeout=300)[1] == ""
            assert running.returncode == 141


def test_output_that_is_closed_from_the_start(tmp_path: Path) -> None:
    code = "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, '-m', 'cnngp', 'networks'])"
    with process("", tmp_path, code, stderr=subprocess.PIPE, text=True) as running:
        assert running.communicate(timeout=300)[1] == ""
        assert running.returncode == 0


def test_names_of_others_do_not_control_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil, shown = "a\x1b]0;title\x07\x9b2Jb", "a\\x1b]0;title\\x07\\u009b2Jb"
    output.say("engine", f"{evil}\nsecond line")
    output.warn(evil)
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [f"{'engine':<22} {shown}", f"{'':<22} second line"]
    assert printed.err == f"warning: {shown}\n"
