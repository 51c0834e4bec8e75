"""The command line as a user types it: what it prints, its exit codes, and one line for every mistake."""

from __future__ import annotations

import csv
import errno
import json
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cnngp import GPClassifier, __version__, datasets, zoo
from cnngp.cli import run
from cnngp.common import files, memory


@pytest.fixture(scope="module")
def classified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    arguments = ["classify", "--train", "200", "--test", "100", "--network", "small_cnn", "--output", str(folder)]
    assert run(arguments) == 0
    return folder


def test_classify_writes_report_results_and_model(classified: Path) -> None:
    results = json.loads((classified / "results.json").read_text())
    assert results["train"] == 200
    assert results["test_error"] < 0.15
    data = datasets.digits().take(200, 100)
    again = GPClassifier.load(classified / "model.gp")
    assert 1 - again.score(data.X_test, data.y_test) == pytest.approx(results["test_error"])
    page = (classified / "report.html").read_text()
    assert "cnngp classify --network small_cnn --train 200 --test 100" in page


def test_classify_prints_the_certificate_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["classify", "--train", "60", "--test", "30", "--noise", "ml", "--output", str(tmp_path), "--json"]
    assert run(arguments) == 0
    printed = capsys.readouterr()
    for text in (
        "digits: 60 training, 30 test images",
        "pooled_cnn-large-halved0 (chosen)",
        "cpu-",
        "leave-one-out",
        "kernel error",
    ):
        assert text in printed.err
    last = json.loads(printed.out)
    assert last["command"] == "classify"
    assert last["fit"]["noise"] > 0
    assert set(last["files"]) == {"model", "results", "report"}


@pytest.mark.parametrize(("seconds", "shown"), [(8.123, True), (0.3, False)])
def test_compiling_is_an_item_of_its_own_where_it_takes_long(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    shown: bool,
) -> None:
    fit = GPClassifier.fit

    def compiled(clf: GPClassifier, X: Any, y: Any, names: Any) -> GPClassifier:
        fit(clf, X, y, names=names)
        clf.fit_report_ = replace(clf.fit_report_, compile_seconds=seconds)
        return clf

    monkeypatch.setattr(GPClassifier, "fit", compiled)
    assert run(["classify", "--train", "40", "--test", "20", "--no-model", "--output", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if line.startswith("compiling")] == [
        ["compiling,", "loading", "8.12", "s"]
    ] * shown
    assert (
        "compiling, or loading compiled code</th><td>8.12 s</td>" in (tmp_path / "report.html").read_text()
    ) == shown
    assert json.loads((tmp_path / "results.json").read_text())["fit"]["compile_seconds"] == seconds


def test_learned_variances_are_told_written_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["classify", "--train", "40", "--test", "20", "--network", "small_cnn", "--learn", "likelihood"]
    assert run([*arguments, "--output", str(tmp_path), "--json"]) == 0
    printed = capsys.readouterr()
    assert "−log likelihood" in printed.err
    learned = json.loads(printed.out)["learned"]
    assert learned["after"] < learned["before"]
    model = GPClassifier.load(tmp_path / "model.gp")
    assert model.learned_ is not None
    assert model.network_.to_json() == learned["network"] != zoo.small_cnn().to_json()
    page = (tmp_path / "report.html").read_text()
    assert "What was learned" in page
    assert "cnngp classify --network small_cnn --train 40 --test 20 --learn likelihood" in page
    assert run(["classify", "--learn", "map"]) != 0
    assert "learn='map': expected" in capsys.readouterr().err


def test_a_network_from_a_json_file_and_no_model(tmp_path: Path) -> None:
    (tmp_path / "net.json").write_text(zoo.small_cnn().to_json())
    arguments = ["classify", "--network", str(tmp_path / "net.json"), "--train", "50", "--test", "20", "--no-model"]
    assert run([*arguments, "--output", str(tmp_path / "out")]) == 0
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["report.html", "results.json"]


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    assert run(["classify", "--output", str(tmp_path / "file" / "out")]) == 1
    printed = capsys.readouterr()
    assert (
        printed.err
        == f"error: --output {tmp_path / 'file' / 'out'} cannot be written: Not a directory; choose another\n"
    )
    assert printed.out == ""


def test_a_folder_that_is_there_but_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not even root may write to /proc; making sure of the folder alone would find that out after the work."""
    if not Path("/proc/self").exists():
        pytest.skip("no /proc here")
    assert run(["classify", "--train", "40", "--output", "/proc"]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("error: --output /proc cannot be written: ")
    assert printed.out == ""


def test_what_is_refused_makes_no_folder(tmp_path: Path) -> None:
    for arguments in (["--noise", "-1"], ["--device", "tpu"], ["--train", "5"], ["--dtype", "float16"]):
        assert run(["classify", *arguments, "--output", str(tmp_path / "out")]) == 1
    assert not list(tmp_path.iterdir())


def test_a_folder_in_class_order_is_tested_on_all_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        for shift, name in enumerate("abc"):
            (tmp_path / "f" / part / name).mkdir(parents=True)
            for i in range(15):
                pixels = 200.0 * np.eye(8)[np.roll(np.arange(8), 2 * shift)] + rng.uniform(0, 50, (8, 8))
                Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "f" / part / name / f"{i}.png")
    monkeypatch.chdir(tmp_path / "f")
    assert run(["classify", "--data", ".", "--train", "24", "--test", "15", "--no-model", "--json"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["train"], last["classes"]) == (24, 3)
    assert last["test_error"] == 0
    assert (tmp_path / "f" / "out" / "f-auto-24" / "report.html").is_file()


def test_an_npz_in_class_order_is_tested_on_all_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = datasets.digits()
    rows, rows_test = np.argsort(data.y, kind="stable"), np.argsort(data.y_test, kind="stable")
    arrays = {"x_train": data.X[rows], "y_train": data.y[rows]}
    np.savez(tmp_path / "sorted.npz", **arrays, x_test=data.X_test[rows_test], y_test=data.y_test[rows_test])
    seen: list[Any] = []
    fit = GPClassifier.fit
    monkeypatch.setattr(GPClassifier, "fit", lambda clf, X, y, names: (seen.append(y), fit(clf, X, y))[1])
    arguments = ["classify", "--data", str(tmp_path / "sorted.npz"), "--train", "100", "--test", "40", "--no-model"]
    assert run([*arguments, "--output", str(tmp_path / "out"), "--json"]) == 0
    assert set(seen[0]) == set(range(10))
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["test_error"] < 0.3


def test_a_folder_of_images_to_predictions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What users have: folders of PNGs, then a new image."""
    rng = np.random.default_rng(0)
    for name, slant in (("left", 1), ("right", -1)):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(20):
            pixels = 255.0 * np.eye(12)[:, ::slant] + rng.uniform(0, 60, (12, 12))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(tmp_path / "data" / name / f"{i}.png")
    assert run(["classify", "--data", str(tmp_path / "data"), "--output", str(tmp_path / "out")]) == 0
    Image.fromarray((255 * np.eye(24)).astype(np.uint8)).save(tmp_path / "new.png")
    capsys.readouterr()
    assert run(["predict", str(tmp_path / "out" / "model.gp"), str(tmp_path / "new.png"), "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith("engine")
    assert "left" in printed.err.splitlines()[2]
    image = json.loads(printed.out)["images"][0]
    assert image["class"] == "left"
    assert image["for"][0]["name"].startswith("left/")
    total = sum(voice["share"] for voice in (*image["for"], *image["against"])) + image["rest"]
    assert total == pytest.approx(image["mean"], abs=1e-12)
    assert 0 < image["novelty"] < 1


def test_class_names_that_no_figure_expects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A broken formula, letters that the font lacks (one warning line), a name wider than the figure."""
    names = np.array(["$x_$ % {y}", "汉", "a" * 120, *"3456789"])
    data = datasets.digits().take(60, 30)
    arrays = {"x_train": data.X, "y_train": names[data.y], "x_test": data.X_test, "y_test": names[data.y_test]}
    np.savez(tmp_path / "named.npz", **arrays)
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # as at a user's command line
        assert run(["classify", "--data", str(tmp_path / "named.npz"), "--output", str(tmp_path / "out")]) == 0
    error = capsys.readouterr().err.splitlines()
    assert error
    assert all(line.startswith("warning: Glyph 27721 ") for line in error)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["model.gp", "report.html", "results.json"]


@pytest.mark.parametrize("full", ["results.json", "model.gp", "report.html"])
def test_a_full_disk_is_said_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], full: str
) -> None:
    replacing = files.replacing

    def no_room(path: Path) -> Any:
        if path.name == full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # without the name, as of `write`
        return replacing(path)

    monkeypatch.setattr(files, "replacing", no_room)
    assert run(["classify", "--train", "40", "--test", "20", "--output", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {tmp_path / full} cannot be written: No space left on device; ")
    assert error.count("\n") == 1
    assert (tmp_path / "results.json").exists() == (full != "results.json")  # the small file first


@pytest.mark.parametrize(("scale", "pixels"), [(255, 255), (1, 1)])
def test_predict_takes_pixels_on_the_scale_of_the_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], scale: int, pixels: int
) -> None:
    """A model of bytes fitted in Python: with pixels from 0 to 1 every image would be all but black to it."""
    data = datasets.digits().take(100)
    X = (255 * data.X).astype(np.uint8)
    clf = GPClassifier(zoo.small_cnn()).fit(X if scale == 255 else X / np.float32(255), data.y)
    clf.save(tmp_path / "m.gp")
    new = (255 * data.X_test[0, 0]).astype(np.uint8)
    Image.fromarray(new).save(tmp_path / "new.png")
    assert run(["predict", str(tmp_path / "m.gp"), str(tmp_path / "new.png"), "--json"]) == 0
    printed = capsys.readouterr()
    last = json.loads(printed.out)
    assert last["images"][0]["class"] == str(data.y_test[0])
    expected = clf.predict_proba((new if scale == 255 else new / np.float32(255))[None, None])[0]
    assert list(last["images"][0]["probabilities"].values()) == pytest.approx(expected, abs=1e-6)
    assert last["pixels"] == pixels
    assert ("pixels                 from 0 to 255, as in the images that" in printed.err) == (scale == 255)


@pytest.mark.parametrize(("factor", "shift", "range_"), [(16.0, 0.0, "0 to 16"), (2.0, -1.0, "-1 to 1")])
def test_predict_refuses_a_scale_that_files_do_not_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], factor: float, shift: float, range_: str
) -> None:
    data = datasets.digits().take(40)
    GPClassifier(zoo.small_cnn()).fit(factor * data.X + shift, data.y).save(tmp_path / "m.gp")
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "new.png")
    assert run(["predict", str(tmp_path / "m.gp"), str(tmp_path / "new.png")]) == 1
    error = capsys.readouterr().err
    assert f"m.gp was fitted on pixels from {range_}, and image files are read as 0 to 1 or 0 to 255" in error
    assert len(error.splitlines()) == 1


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
    assert run(["networks", "resnet8", "--shape", "3x32x32"]) == 0
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
        (["classify", "--threads", "0"], 2, "'--threads'"),
        (["sample", "--seed", "-1"], 2, "'--seed'"),
        (["search", "--seed", "-1"], 2, "'--seed'"),
        (["reproduce", "figure2", "--seed", "-1"], 2, "'--seed'"),
        (["reproduce", "table1", "--out", "/dev/null/a"], 1, "--out /dev/null/a cannot be written: Not a directory"),
        (["classify", "--train", "0"], 1, "digits has 1,297 training images, but 0 were asked for"),
        (["classify", "--train", "5"], 1, "the test set has labels that are missing from the training set"),
        (["classify", "--noise", "-1"], 1, "noise=-1.0: expected a variance"),
        (["classify", "--split", "paper"], 1, "split='paper' needs 60,000 training images"),
        (["classify", "--device", "tpu"], 1, "device='tpu' is not"),
        (["classify", "--train", "many"], 2, "valid int"),
        (["classify", "--colour", "red"], 2, "No such option"),
        (["predict", "none.gp", "a.png"], 1, "none.gp: no such model file"),
        (["predict"], 2, "Missing argument"),
        (["networks", "--shape", "big"], 1, "shape 'big': expected channels,height,width"),
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
    assert run(["classify", "--output", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: an exact fit of 1,297 images needs 60.6 MB of memory, but 1 MB are free")
    assert not any(tmp_path.iterdir())


def test_repeated_images_give_one_warning_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = datasets.digits().take(40, 20)
    twice, labels = np.concatenate([data.X, data.X]), np.concatenate([data.y, data.y])
    np.savez(tmp_path / "twice.npz", x_train=twice, y_train=labels, x_test=data.X_test, y_test=data.y_test)
    arguments = ["classify", "--data", str(tmp_path / "twice.npz"), "--output", str(tmp_path / "out")]
    assert run(arguments) == 0  # noise by leave-one-out is enough for them
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

    def warning(clf: GPClassifier, X: Any, y: Any, names: Any) -> GPClassifier:
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
        [sys.executable, "-c", code, "classify", "--train", "40", "--test", "20"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stderr == ""
    assert (tmp_path / "out" / "digits-auto-40" / "report.html").is_file()
    heavy = "import sys; import cnngp.cli; print([m for m in ('sklearn', 'numba', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, timeout=60, check=True,
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
    arguments = ["classify", "--train", "40", "--test", "20", "--no-model", "--output", str(tmp_path)]
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
            assert running.communicate(timeout=60)[1] == ""
            assert running.returncode == 141


def test_output_that_is_closed_from_the_start(tmp_path: Path) -> None:
    code = "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, '-m', 'cnngp', 'networks'])"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, timeout=60
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


# ---- photographs -----------------------------------------------------------------------------------------------------


def slanted(folder: Path, suffix: str = "png", n: int = 12) -> None:
    rng = np.random.default_rng(0)
    for name, slant in (("left", 1), ("right", -1)):
        (folder / name).mkdir(parents=True)
        for i in range(n):
            pixels = 255.0 * np.eye(12)[:, ::slant] + rng.uniform(0, 60, (12, 12))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name / f"{i:02}.{suffix}")


def test_photographs_start_to_finish(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slanted(tmp_path / "data", "webp")
    (tmp_path / "data" / "left" / "05.webp").rename(tmp_path / "data" / "right" / "wrong.webp")
    (tmp_path / "data" / "left" / "broken.png").write_bytes(b"hello")
    (tmp_path / "data" / "left" / "notes.txt").write_text("hello")
    arguments = ["classify", "--data", str(tmp_path / "data"), "--output", str(tmp_path / "out"), "--size", "10x12"]
    arguments += ["--aspect", "pad", "--suspects", str(tmp_path / "deep" / "suspects.csv")]
    assert run(arguments) == 1
    assert "broken.png is not a readable image" in capsys.readouterr().err
    assert run([*arguments, "--skip-bad", "--json"]) == 0
    printed = capsys.readouterr()
    assert "24 images of 24 brought to 10 × 12; 24 of another aspect ratio padded with black" in printed.err
    assert "left out 1 file of other kinds: 1 .txt; left out 1 image that cannot be read" in printed.err
    result = json.loads(printed.out)
    assert len(result["notes"]) == 2
    with (tmp_path / "deep" / "suspects.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0].keys() == {"row", "name", "given", "proposed", "score"}
    assert len(rows) == result["train"]
    first = rows[0] if result["test_error"] == 0 else None
    shown = [s["name"] for s in result["suspects"]] + [m["name"] for m in result["mistakes"]]
    assert "right/wrong.webp" in shown
    if first is not None:
        assert (first["name"], first["given"], first["proposed"]) == ("right/wrong.webp", "right", "left")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "right/wrong.webp" in page
    assert "--size 10x12 --aspect pad --skip-bad" in page
    model = str(tmp_path / "out" / "model.gp")
    assert GPClassifier.load(model).image_aspect_ == "pad"
    assert run(["predict", model, str(tmp_path / "data" / "left"), "--json"]) == 1
    printed = capsys.readouterr()
    assert "warning: " in printed.err
    assert "broken.png is not a readable image" in printed.err
    result = json.loads(printed.out)
    assert len(result["images"]) == 11
    assert {image["class"] for image in result["images"]} == {"left"}
    assert result["unreadable"][0]["image"].endswith("broken.png")
    assert run(["predict", model, str(tmp_path / "none.png")]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path / 'none.png'}: no such file\n"


@pytest.mark.parametrize("size", ["ten", "10x", "0"])
def test_sizes_that_are_none(size: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slanted(tmp_path / "data", n=3)
    assert run(["classify", "--data", str(tmp_path / "data"), "--size", size]) == 1
    assert "expected a height and a width such as 48x64" in capsys.readouterr().err
