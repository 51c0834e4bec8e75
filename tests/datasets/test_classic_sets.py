"""The classic sets from their original files, and what is said where these are missing or broken."""

import gzip
import os
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from cnngp import datasets
from cnngp.common.errors import DatasetError
from cnngp.datasets import sets
from helpers.idx_files import idx

HAS_MNIST = bool(os.environ.get("CNNGP_DATA")) and (Path(os.environ["CNNGP_DATA"]) / "mnist").is_dir()


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data, no cache, no network."""
    monkeypatch.setenv("CNNGP_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sets, "_URLS", dict.fromkeys(sets._URLS, "http://127.0.0.1:9/"))
    return tmp_path / "data"


@pytest.fixture
def fashion(empty: Path) -> Path:
    """Files of the right form, some gzipped: every image holds its row number."""
    folder = empty / "fashion_mnist"
    folder.mkdir(parents=True)
    for prefix, n, zipped in (("train", 60_000, False), ("t10k", 10_000, True)):
        X = np.zeros((n, 28, 28), np.uint8)
        X[:, 0, 0], X[:, 0, 1] = np.arange(n) // 256, np.arange(n) % 256
        for kind, data in (("images-idx3", idx(X)), ("labels-idx1", idx((np.arange(n) % 10).astype(np.uint8)))):
            content = gzip.compress(data, 1) if zipped else data
            (folder / f"{prefix}-{kind}-ubyte{'.gz' if zipped else ''}").write_bytes(content)
    return folder


def rows(X: np.ndarray) -> np.ndarray:
    return np.rint(X[:, 0, 0, 0] * 255 * 256 + X[:, 0, 0, 1] * 255).astype(int)


def test_original_files_and_the_papers_split(fashion: Path) -> None:
    data = datasets.fashion_mnist()
    assert data.X_test.shape == (10_000, 1, 28, 28)
    np.testing.assert_array_equal(rows(data.X), np.arange(60_000))
    np.testing.assert_array_equal(data.y[:12], np.arange(12) % 10)
    paper = datasets.load("fashion_mnist", split="paper")
    np.testing.assert_array_equal(rows(paper.X), np.arange(5_000, 55_000))
    assert paper.X_validation is not None
    np.testing.assert_array_equal(rows(paper.X_validation), np.r_[55_000:60_000, 0:5_000])


def test_damaged_files_are_refused(fashion: Path) -> None:
    name = "t10k-images-idx3-ubyte.gz"
    whole = (fashion / name).read_bytes()
    for content, message in (
        (whole[: len(whole) // 2], r"cannot be unpacked .*cut short or damaged, replace it"),
        (gzip.compress(gzip.decompress(whole)[:-1], 1), "says .* but has 7,840,015 bytes"),
        (b"<html>not found</html>", "is not an IDX file"),
    ):
        (fashion / name).write_bytes(content)
        with pytest.raises(DatasetError, match=f"{name} {message}"):
            datasets.fashion_mnist()
    fashion.rename(fashion.parent / "mnist")  # right in form, wrong in content
    with pytest.raises(DatasetError, match="is not the original train-images-idx3-ubyte of mnist"):
        datasets.mnist()


def test_offline_says_what_to_put_where(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pooch = pytest.importorskip("pooch")
    with pytest.raises(DatasetError) as error:
        datasets.mnist()
    assert "\n" not in str(error.value)
    assert f"no train-images-idx3-ubyte.gz in {empty / 'mnist'} or " in str(error.value)
    assert str(error.value).endswith("; downloading it failed: no connection to 127.0.0.1")
    said = "the hash of the downloaded file does not match: " + "0123456789" * 40 + "\nthe end."

    def fail(*_: object, **__: object) -> None:
        raise ValueError(said)

    monkeypatch.setattr(pooch, "retrieve", fail)
    with pytest.raises(DatasetError) as error:
        datasets.fashion_mnist()
    assert str(error.value).endswith(said.replace("\n", " "))
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DatasetError, match=r'pip install "cnngp\[data\]"'):
        datasets.mnist()


@pytest.mark.parametrize("packed", [True, False])
def test_cifar10_from_its_binary_archive(empty: Path, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sets, "CIFAR_IMAGES", 100)  # in each of the six batches
    folder = empty / "cifar10"
    (folder / "cifar-10-batches-bin").mkdir(parents=True)
    for i, file in enumerate(sets.CIFAR_FILES):
        records = np.zeros((100, 3073), np.uint8)
        records[:, 0] = np.arange(100) % 10
        records[:, 1] = i  # the first red pixel
        records[:, -1] = 255  # the last blue one
        (folder / "cifar-10-batches-bin" / file).write_bytes(records.tobytes())
    if packed:
        with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz", compresslevel=1) as archive:
            archive.add(folder / "cifar-10-batches-bin", "cifar-10-batches-bin")
        (folder / "cifar-10-batches-bin").rename(folder / "elsewhere")
    data = datasets.cifar10()
    assert data.X.shape == (500, 3, 32, 32)
    np.testing.assert_allclose(data.X[::100, 0, 0, 0] * 255, [0, 1, 2, 3, 4])
    assert data.X_test[0, 0, 0, 0] * 255 == 5
    assert (data.X[:5, 2, 31, 31] == 1).all()


@pytest.mark.skipif(not HAS_MNIST, reason="MNIST's files are not in $CNNGP_DATA/mnist")
def test_real_mnist() -> None:
    data = datasets.mnist("paper")
    assert data.X.shape == (50_000, 1, 28, 28)
    assert data.y[:5].tolist() == datasets.mnist().y[5_000:5_005].tolist()
    assert data.y_test[:5].tolist() == [7, 2, 1, 0, 4]


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("imagenet", {}, "no data 'imagenet': expected one of digits, mnist"),
        ("photso", {"size": 32, "skip_bad": True}, "no data 'photso': expected"),  # nor that these are for folders
        ("", {}, r"no data was named .* this folder itself is '\.'"),  # not the folder that the command runs in
        (" ", {}, r"no data was named .* this folder itself is '\.'"),
        ("digits", {"size": 16}, r"size \(--size\) is for folders and tables of image files, and digits is none"),
        ("digits", {"skip_bad": True}, r"skip_bad \(--skip-bad\) is for folders and tables of image files"),
        ("digits", {"input_shape": (1, 8, 8)}, r"input_shape \(--input-shape\) is for \.npz files"),
        (".", {"input_shape": (1, 8, 8)}, r"input_shape \(--input-shape\) is for \.npz files"),
        (".", {"columns": "a"}, r"columns \(--columns\) is for tables of image files"),
        ([], {"size": 16}, r"size \(--size\) is for folders and tables of image files, and list is none"),
        ("digits", {"split": "paper"}, "the paper's split needs 60,000 training images"),
        ("digits", {"split": "half"}, "split='half': expected 'standard' or 'paper'"),
    ],
)
def test_unknown_sources_and_options_for_other_kinds(source: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        datasets.load(source, **options)  # type: ignore[arg-type]
