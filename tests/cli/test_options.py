"""Options and their values: refused in their own words, before anything is read; data options on every command."""

from pathlib import Path
from typing import Any, get_args

import pytest

from cnngp.cli.options import of_command
from cnngp.common.devices import Device
from cnngp.datasets.images import Aspect
from cnngp.datasets.preparation import NAMED as PREPARATIONS
from cnngp.gp.objectives import RULES
from cnngp.kernel.making import DTYPES

from .conftest import Command, signals

READING = ("classify", "regress", "gram", "search", "sample")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--preparation foo", "is not one of 'plain', 'contrast'"),
        ("--network nosuch", "no network 'nosuch': expected auto, resnet32"),
        ("--network resnet9", "depth=9 is not 6n + 2"),
        ("--network none.json", "none.json: no such file"),
        ("--dtype float16", "is not one of 'float32', 'float64'"),
        ("--recipe no.json --network small_cnn", "--recipe names the networks"),
        ("--learn foo", "Invalid value for '--learn': 'foo' is not one of "),
        ("--learn ''", "Invalid value for '--learn': '' is not one of "),
        ("--kind ntk --learn loo", "--learn follows the gradient of the Gaussian process's kernel; leave out"),
        ("--noise some", "Invalid value for '--noise': some: expected a variance of 0 or more"),
        ("--amplitude 0", "Invalid value for '--amplitude': 0: expected ml, loo or a positive number"),
        ("--aspect crop", "is not one of 'squash', 'pad'"),
        ("--size 8x", "Invalid value for '--size': 8x: expected a height and a width such as 48x64"),
        ("--size 0", "Invalid value for '--size': 0: expected a height and a width such as 48x64"),
        (
            "--input-shape 128",
            "Invalid value for '--input-shape': 128: expected the channels, then the sizes, such as 1,28,28",
        ),
        ("--data ''", "Invalid value for '--data': '': expected the name of a data set, an .npz file or a folder"),
        ("--train 0", "Invalid value for '--train': 0 is not in the range x>=1."),
        ("--train many", "Invalid value for '--train': 'many' is not a valid integer range"),
        ("--samples 10", "Invalid value for '--samples': 10 is not in the range x>=20."),
        ("--channels 4", "Invalid value for '--channels': 4: expected at least two different"),
        (
            "--channels 4,many",
            "Invalid value for '--channels': 4,many: expected at least two different",
        ),
    ],
)
def test_options_are_checked_before_anything_is_read(words: str, message: str, tmp_path: Path, command: Any) -> None:
    """By every command that has them. The data is not there, which would be the error if it were looked for."""
    asked = {word.removeprefix("--").replace("-", "_") for word in words.split() if word.startswith("--")}
    having = [name for name in READING if asked <= {option.name for option in of_command(name)}]
    assert having
    for name in having:
        place = {"gram": "--plan", "sample": f"--output {tmp_path / 'a.png'}"}.get(name, "")
        code = 2 if "Invalid value" in message or "is not one of" in message else 1
        said = command(f"{name} --data {tmp_path / 'none'} {place} {words}", code)
        assert said.err.startswith("error: ")
        assert message in said.err
        assert (said.err.count("\n"), said.out) == (1, "")


def test_every_word_that_an_option_lists_is_taken(tmp_path: Path, refused: Any) -> None:
    """So that the words of the command line stay those of the library."""
    words = [("--preparation", p) for p in (*PREPARATIONS, "loo")] + [("--learn", r) for r in RULES]
    words += [("--aspect", a) for a in get_args(Aspect)] + [("--dtype", d) for d in DTYPES]
    words += [("--device", d) for d in get_args(Device) if d != "cuda"]
    for option, word in words:
        assert "no data" in refused(f"classify --data {tmp_path / 'none'} {option} {word}")


@pytest.mark.parametrize("flat", [False, True])
def test_signals_from_a_file(flat: bool, tmp_path: Path, command: Command, refused: Any) -> None:
    words = f"classify --data {signals(tmp_path / 's.npz', flat)} --output {tmp_path / 'out'}"
    assert "(--input-shape 1,32) for signals" in refused(words)
    said = command(f"{words} --input-shape 1x32 --json")
    assert said.line("data") == "s: 48 training, 12 test images of 1 × 32"
    assert said.json["test_error"] <= 0.1
    assert "Most uncertain" in (tmp_path / "out" / "report.html").read_text()  # with pictures of curves
