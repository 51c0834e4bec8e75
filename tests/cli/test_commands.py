"""The command line as a whole: help, exit codes, what goes where, and one line for every mistake."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnngp import __version__, datasets, zoo
from cnngp.cli import app
from cnngp.common import memory

from .conftest import FEW, Command, discs

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


def test_networks_and_info(command: Command) -> None:
    cost = {n["name"]: n["operations_per_pair"] for n in command("networks --json").json["networks"]}
    assert cost["resnet32"] == zoo.resnet(32).shapes((1, 28, 28)).cost
    assert "Conv(3, stride=2)" in command("networks resnet8 --input-shape 3x32x32").out
    assert command("info").line("engine cpu")
    assert command("info --json").json["packages"]["numpy"] == np.__version__


# ---- mistakes --------------------------------------------------------------------------------------------------------

FILES = {
    "file": b"in the way",
    "empty.gp": b"",
    "broken.png": b"not an image",
    "cut.json": b"{",
    "list.json": b"[]",
    "pool.json": b'{"cnngp_network": 1, "network": {"layer": "Pool"}}',
    "bytes.json": b"\xff\xfe\x00",
    "list/zarr.json": b"[]",
    "array/zarr.json": b'{"zarr_format": 3, "node_type": "array"}',
    "bytes/zarr.json": b"\0\0",
}


@pytest.fixture(scope="module")
def folder(classified: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that are not what a command needs, and a model and a table that are."""
    made = tmp_path_factory.mktemp("mistakes")
    model = (classified / "model.gp").read_bytes()
    for name, content in (FILES | {"half.gp": model[:5000], "run/model.gp": model}).items():
        (made / name).parent.mkdir(exist_ok=True)
        (made / name).write_bytes(content)
    (made / "folder" / "zarr.json").mkdir(parents=True)
    (made / "folder.png").mkdir()
    heads, *rows = discs(made, n=12).read_text().splitlines()
    (made / "discs.csv").write_text("\n".join([f"{heads},same", *(f"{row},7" for row in rows)]))
    return made


MISTAKES = [
    ("classify --data imagenet", "no data 'imagenet': expected one of digits, mnist"),
    ("classify --test 501", "digits has 500 test images, but 501 were asked for"),
    ("classify --train 5", "the test set has labels that are missing from the training set"),
    ("classify --split paper", "the paper's split needs 60,000 training images"),
    ("regress", "say what to fit with --data: a table (.csv) of image files with a column of numbers"),
    ("networks auto", "auto depends on the data"),
    # Networks in files
    ("networks cut.json", "error: cut.json: not the JSON of a network"),
    ("classify --network cut.json", "error: cut.json: not the JSON of a network"),
    ("networks list.json", "error: list.json: not the JSON of a network: expected"),
    ("networks pool.json", "error: pool.json: not the JSON of a network: unknown layer"),
    ("classify --network bytes.json", "error: bytes.json: 'utf-8' codec can't decode byte 0xff"),
    # Columns
    ("regress --data discs.csv --columns colour", "has words such as 'grey' for numbers; `cnngp classify` takes clas"),
    ("regress --data discs.csv --columns radius,same", "has 2 labels for each image, and this run is of one"),
    ("classify --data discs.csv --columns radius,same", "2 labels for each image, and this run classifies by one"),
    ("regress --data discs.csv --columns same", "discs has the same number, 7, for every image"),
    ("classify --data discs.csv --columns radius", "labels, which are no classes; `cnngp regress` fits numbers"),
    # Places to write to
    ("classify --output file/out", "--output file/out cannot be written: Not a directory; choose another"),
    ("reproduce table1 --out /dev/null/a", "--out /dev/null/a cannot be written: Not a directory"),
    ("sample --output file/a.png", "--output file/a.png cannot be written: Not a directory"),
    ("sample --output folder.png", "--output folder.png cannot be written: it is a folder"),
    ("sample --output picture.txt", "expected a .png, .pdf or .svg file"),
    # Models and images
    ("predict none.gp a.png", "none.gp: no such model file"),
    ("predict half.gp a.png", "half.gp is not a whole model file"),
    ("predict empty.gp a.png", "error: empty.gp is not a cnngp model, but a file of another kind"),
    ("predict 00.png a.png", "error: 00.png is not a cnngp model, but a file of another kind"),
    ("predict run broken.png", "broken.png is not a readable image"),
    ("predict run none.png", "error: none.png: no such file\n"),
    (f"predict run {' '.join(f'no{k}.png' for k in range(8))}", "; no4.png: no such file; and 3 more\n"),
    ("predict folder new.png", "folder is a folder without a model.gp; give a file that `cnngp classify` wrote"),
    ("view folder", "folder is a folder without a model.gp; give a file that `cnngp classify` wrote"),
    # Stores
    ("gram", "say where the matrix goes"),
    ("gram --status nowhere.zarr", "nowhere.zarr does not exist"),
    ("gram --status .", "is not a store of cnngp"),
    ("gram --store s4://bucket/K", "store='s4://bucket/K' cannot be opened: Protocol not known"),
    *((f"gram --status {name}", "") for name in ("list", "array", "bytes", "folder", "file", "file/inside", "''")),
    *((f"gram --status {url}", "") for url in ("memory://nobody/here", "x://there/K", "file:///nowhere", "zip::x")),
]
if Path("/proc/self").exists():  # not even root may write there, which the folder alone does not tell
    MISTAKES.append((f"{FEW} --output /proc", "--output /proc cannot be written: "))
TYPED_WRONGLY = [
    ("classify --colour red", "No such option"),
    ("classify --netwrok red", "--network"),
    ("classify --noise -1", "Invalid value for '--noise': -1: expected a variance of 0 or more"),
    ("classify --device tpu", "'tpu' is not one of 'auto', 'cpu', 'cuda'"),
    ("gram --preparation loo --store K", "Invalid value for '--preparation': 'loo' is not one of "),
    ("predict", "Missing argument"),
    ("predict a b --coverage 90", "Invalid value for '--coverage': 90.0 is not in the range 0.0<x<1.0"),
    ("view a --port 99999", "Invalid value for '--port': 99999 is not in the range 0<=x<=65535"),
    ("reproduce table1 --budget x", "Invalid value for '--budget': x: expected a positive number of seconds"),
    ("reproduce foo", "'foo' is not one of 'table1', 'figure2', 'figure3', 'all'"),
    ("dance", "No such command 'dance'"),
]


@pytest.mark.parametrize(
    ("code", "words", "message"), [(1, *mistake) for mistake in MISTAKES] + [(2, *typed) for typed in TYPED_WRONGLY]
)
def test_a_mistake_is_one_line_and_makes_no_file(
    code: int, words: str, message: str, folder: Path, monkeypatch: pytest.MonkeyPatch, refused: Any
) -> None:
    before = sorted(folder.rglob("*"))
    monkeypatch.chdir(folder)
    error = refused(words, code)
    assert message in error
    assert "Please report" not in error
    assert sorted(folder.rglob("*")) == before


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


# ---- what goes where -------------------------------------------------------------------------------------------------


def process(words: str, folder: Path, code: str = "from cnngp.cli import main; main()", **options: Any) -> Any:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, "-c", code, *words.split()], cwd=folder, env=environment, **options)


def test_as_a_process(tmp_path: Path) -> None:
    """The real thing: no progress bar in a pipe, help without importing the world."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with process(FEW, tmp_path, **pipes) as running:
        out, err = running.communicate(timeout=120)
    assert (running.returncode, err) == (0, "")
    assert out.startswith("data ")
    assert (tmp_path / "out" / "digits-small_cnn-40" / "report.html").is_file()
    heavy = "import sys; import cnngp.cli; print([m for m in ('sklearn', 'numba', 'matplotlib') if m in sys.modules])"
    with process("", tmp_path, heavy, **pipes) as running:
        assert running.communicate(timeout=300)[0].strip() == "[]"


def test_quiet_says_nothing(tmp_path: Path, command: Command) -> None:
    words = f"{FEW} --no-model --output {tmp_path}"
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
