"""Data from every source, and what is said when it is missing or broken."""

from __future__ import annotations

import gzip
import io
import os
import struct
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnngp import datasets
from cnngp.common.errors import DatasetError
from cnngp.datasets import classics

RNG = np.random.default_rng(0)
HAS_MNIST = bool(os.environ.get("CNNGP_DATA")) and (Path(os.environ["CNNGP_DATA"]) / "mnist").is_dir()


def idx(array: np.ndarray) -> bytes:
    return b"\x00\x00\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data, no cache, no network."""
    monkeypatch.setenv("CNNGP_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(classics, "_URLS", dict.fromkeys(classics._URLS, "http://127.0.0.1:9/"))
    return tmp_path / "data"


@pytest.fixture
def fashion(empty: Path) -> Path:
    """Files of the right form: every image holds its row number."""
    folder = empty / "fashion_mnist"
    folder.mkdir(parents=True)
    for prefix, n, zipped in (("train", 60_000, False), ("t10k", 10_000, True)):
        X = np.zeros((n, 28, 28), np.uint8)
        X[:, 0, 0], X[:, 0, 1] = np.arange(n) // 256, np.arange(n) % 256
        for kind, data in (("images-idx3", idx(X)), ("labels-idx1", idx((np.arange(n) % 10).astype(np.uint8)))):
            name = f"{prefix}-{kind}-ubyte"
            if zipped:
                (folder / f"{name}.gz").write_bytes(gzip.compress(data, 1))
            else:
                (folder / name).write_bytes(data)
    return folder


def rows(X: np.ndarray) -> np.ndarray:
    return np.rint(X[:, 0, 0, 0] * 255 * 256 + X[:, 0, 0, 1] * 255).astype(int)


def test_digits() -> None:
    data = datasets.load("digits")
    assert data.X.shape == (1297, 1, 8, 8)
    assert data.X.dtype == np.float32
    assert (data.X.min(), data.X.max()) == (0.0, 1.0)
    assert len(data.X_test) == len(data.y_test) == 500
    again = datasets.digits()
    np.testing.assert_array_equal(data.X, again.X)
    small = data.take(10, 20)
    np.testing.assert_array_equal(small.X, data.X[:10])
    assert len(small.y_test) == 20


def test_take_more_than_there_is() -> None:
    with pytest.raises(DatasetError, match="digits has 1,297 training images, but 2,000 were asked for"):
        datasets.digits().take(2000)
    with pytest.raises(DatasetError, match="digits has 500 test images, but 501 were asked for"):
        datasets.digits().take(test=501)


def test_take_less_than_there_can_be() -> None:
    with pytest.raises(DatasetError, match="train=0: expected how many training images to take, 1 or more"):
        datasets.digits().take(0)
    with pytest.raises(DatasetError, match="test=-1: expected how many test images to take, 0 or more"):
        datasets.digits().take(test=-1)


def test_no_test_images_at_all() -> None:
    for data in (datasets.digits().take(10, 0), datasets.digits().some(10, 0)):
        assert data.X_test.shape == (0, 1, 8, 8)
        assert len(data.y_test) == 0
        assert repr(data) == "<digits: 10 training images of 1 × 8 × 8>"


def test_original_files_gzipped_or_not(fashion: Path) -> None:
    data = datasets.fashion_mnist()
    assert data.X.shape == (60_000, 1, 28, 28)
    assert data.X_test.shape == (10_000, 1, 28, 28)
    np.testing.assert_array_equal(rows(data.X), np.arange(60_000))
    np.testing.assert_array_equal(data.y[:12], np.arange(12) % 10)


def test_paper_split(fashion: Path) -> None:
    data = datasets.load("fashion_mnist", split="paper")
    np.testing.assert_array_equal(rows(data.X), np.arange(5_000, 55_000))
    assert data.X_validation is not None
    np.testing.assert_array_equal(rows(data.X_validation), np.r_[55_000:60_000, 0:5_000])
    assert len(data.X_test) == 10_000


def test_paper_split_of_others_is_refused() -> None:
    with pytest.raises(DatasetError, match="the paper's split needs 60,000 training images"):
        datasets.load("digits", split="paper")


def test_damaged_files_are_refused(fashion: Path) -> None:
    name = "t10k-images-idx3-ubyte.gz"
    whole = (fashion / name).read_bytes()
    (fashion / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DatasetError, match=rf"{name} cannot be unpacked .*cut short or damaged, replace it"):
        datasets.fashion_mnist()
    (fashion / name).write_bytes(gzip.compress(gzip.decompress(whole)[:-1], 1))
    with pytest.raises(DatasetError, match=rf"{name} says .* but has 7,840,015 bytes"):
        datasets.fashion_mnist()
    (fashion / name).write_bytes(b"<html>not found</html>")
    with pytest.raises(DatasetError, match=rf"{name} is not an IDX file"):
        datasets.fashion_mnist()


def test_content_is_what_is_hashed(fashion: Path) -> None:
    """The same files under MNIST's name: right in form, wrong in content."""
    fashion.rename(fashion.parent / "mnist")
    with pytest.raises(DatasetError, match="is not the original train-images-idx3-ubyte of mnist"):
        datasets.mnist()


def test_offline_says_what_to_put_where(empty: Path) -> None:
    pytest.importorskip("pooch")
    with pytest.raises(DatasetError) as error:
        datasets.mnist()
    assert "\n" not in str(error.value)
    assert f"no train-images-idx3-ubyte.gz in {empty / 'mnist'} or " in str(error.value)
    assert str(error.value).endswith("; downloading it failed: no connection to 127.0.0.1")


def test_a_download_that_fails_otherwise_is_told_to_the_end(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pooch = pytest.importorskip("pooch")
    said = "the hash of the downloaded file does not match: " + "0123456789" * 40 + "\nthe end."

    def fail(*_: Any, **__: Any) -> None:
        raise ValueError(said)

    monkeypatch.setattr(pooch, "retrieve", fail)
    with pytest.raises(DatasetError) as error:
        datasets.fashion_mnist()
    assert str(error.value).endswith(said.replace("\n", " "))


def test_without_pooch(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DatasetError, match=r'pip install "cnngp\[data\]"'):
        datasets.mnist()


@pytest.mark.parametrize("packed", [True, False])
def test_cifar10_from_its_binary_archive(empty: Path, packed: bool) -> None:
    folder = empty / "cifar10"
    folder.mkdir(parents=True)
    batches = {}
    for i, file in enumerate(classics._CIFAR_FILES):
        records = np.zeros((10_000, 3073), np.uint8)
        records[:, 0] = np.arange(10_000) % 10
        records[:, 1] = i  # the first red pixel
        records[:, -1] = 255  # the last blue one
        batches[file.name] = records.tobytes()
    if packed:
        with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz", compresslevel=1) as archive:
            for name, data in batches.items():
                info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    else:
        (folder / "cifar-10-batches-bin").mkdir()
        for name, data in batches.items():
            (folder / "cifar-10-batches-bin" / name).write_bytes(data)
    data = datasets.cifar10()
    assert data.X.shape == (50_000, 3, 32, 32)
    np.testing.assert_allclose(data.X[::10_000, 0, 0, 0] * 255, [0, 1, 2, 3, 4])
    assert data.X_test[0, 0, 0, 0] * 255 == 5
    assert (data.X[:5, 2, 31, 31] == 1).all()


def test_npz(tmp_path: Path) -> None:
    X = RNG.integers(0, 256, (40, 6, 5), dtype=np.uint8)
    y = np.array(["a", "b"])[np.arange(40) % 2]
    np.savez(tmp_path / "one.npz", X=X, y=y)
    data = datasets.load(tmp_path / "one.npz")
    assert data.X.shape == (32, 1, 6, 5)
    assert sorted(data.y_test) == ["a"] * 4 + ["b"] * 4
    assert data.X.max() <= 1.0
    colour = RNG.random((40, 6, 5, 3))
    np.savez(tmp_path / "two.npz", x_train=colour, y_train=y, x_test=colour[:7], y_test=y[:7])
    data = datasets.load(tmp_path / "two.npz")
    assert data.X.shape == (40, 3, 6, 5)
    np.testing.assert_allclose(data.X_test[:, 2, 1, 4], colour[:7, 1, 4, 2], rtol=1e-6)


def test_the_whole_of_an_npz_keeps_its_order(tmp_path: Path) -> None:
    X, y = RNG.random((9, 6, 5)).astype(np.float32), np.array([0, 0, 0, 0, 1, 1, 1, 1, 2])
    np.savez(tmp_path / "one.npz", X=X, y=y)
    with pytest.raises(DatasetError, match="one: class 2 has a single image"):
        datasets.load(tmp_path / "one.npz")
    data = datasets.load(tmp_path / "one.npz", whole=True)
    np.testing.assert_array_equal(data.X[:, 0], X)
    np.testing.assert_array_equal(data.y, y)
    assert len(data.X_test) == len(data.y_test) == 0
    np.savez(tmp_path / "two.npz", X=X[:8], y=y[:8])
    assert (
        datasets.load(tmp_path / "two.npz").notes[0].startswith("2 of 8 images, about a fifth of each class, are kept")
    )
    assert datasets.load(tmp_path / "two.npz", whole=True).notes == ()


@pytest.mark.parametrize(
    ("held", "shape", "read"),
    [
        ((1, 128), (1, 128), (1, 128)),
        ((128,), (1, 128), (1, 128)),
        ((128,), (2, 64), (2, 64)),
        ((128, 2), (2, 128), (2, 128)),  # the channels came last
        ((1, 128), (1, 1, 128), (1, 1, 128)),
        ((64,), (1, 8, 8), (1, 8, 8)),
        ((8, 8), (1, 8, 8), (1, 8, 8)),
        ((2, 3, 4, 5), (2, 3, 4, 5), (2, 3, 4, 5)),
        ((3, 4, 5), (1, 3, 4, 5), (1, 3, 4, 5)),
        ((8, 8), None, (1, 8, 8)),  # grey images need no shape
        ((2, 6), None, (1, 2, 6)),
    ],
)
def test_the_shape_of_signals_images_and_volumes(
    tmp_path: Path, held: tuple[int, ...], shape: tuple[int, ...] | None, read: tuple[int, ...]
) -> None:
    X, y = RNG.random((20, *held)).astype(np.float32), np.arange(20) % 2
    np.savez(tmp_path / "s.npz", X=X, y=y)
    data = datasets.load(tmp_path / "s.npz", input_shape=shape, whole=True)
    assert data.image_shape == read
    expected = np.moveaxis(X, -1, 1) if held == (128, 2) else X.reshape(20, *read)
    np.testing.assert_array_equal(data.X, expected)
    np.savez(tmp_path / "t.npz", x_train=X, y_train=y, x_test=X[:7], y_test=y[:7])
    data = datasets.load(tmp_path / "t.npz", input_shape=shape)
    np.testing.assert_array_equal(data.X_test, expected[:7])


@pytest.mark.parametrize(
    ("held", "shape", "message"),
    [
        (
            (1, 128),
            None,
            r"could be signals or images; say which: input_shape=\(1, 128\) \(--input-shape 1,128\) for signals of "
            r"128 samples in 1 channel, input_shape=\(1, 1, 128\) \(--input-shape 1,1,128\) for grey images of 1 × 128",
        ),
        ((3, 100), None, r"\(--input-shape 3,100\) for signals of 100 samples in 3 channels"),
        (
            (127,),
            None,
            r"rows of 127 numbers; say what they are, such as input_shape=\(1, 127\) "
            r"\(--input-shape 1,127\) for signals$",
        ),
        ((64,), None, r"for signals, or input_shape=\(1, 8, 8\) \(--input-shape 1,8,8\) for images"),
        ((2, 3, 4, 5), None, "or the shape of one, channels first"),
        ((128,), (1, 100), r"does not hold images of \(1, 100\), 100 numbers each; give another shape"),
        ((128,), (128,), r"shape=\(128,\): expected the channels first"),
        ((128,), (1, 0), r"shape=\(1, 0\): expected the channels first"),
        ((128,), 128, "shape=128: expected the channels first"),
    ],
)
def test_shapes_that_do_not_tell_or_do_not_fit(tmp_path: Path, held: tuple[int, ...], shape: Any, message: str) -> None:
    np.savez(tmp_path / "s.npz", X=np.ones((6, *held)), y=np.arange(6) % 2)
    with pytest.raises(DatasetError, match=message) as told:
        datasets.load(tmp_path / "s.npz", input_shape=shape)
    assert "\n" not in str(told.value)


def test_a_shape_is_for_files_of_arrays(tmp_path: Path) -> None:
    for source in ("digits", tmp_path):
        with pytest.raises(DatasetError, match=r"input_shape \(--input-shape\) is for \.npz files"):
            datasets.load(source, input_shape=(1, 8, 8))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"A": np.ones(3), "X": np.ones(3)}, r"holds A \(3,\), X \(3,\); expected X and y"),
        ({"X": np.ones((4, 3, 3)), "y": np.ones(5)}, r"images of shape \(4, 3, 3\) and labels of shape \(5,\)"),
        ({"X": np.ones((3, 2, 2)), "y": np.array([0.0, np.nan, 1.0])}, r"label 1 is NaN; every image needs a label"),
        ({"X": np.array([{}]), "y": np.ones(1)}, r"bad\.npz: X holds Python objects, which are never unpickled"),
    ],
)
def test_bad_npz_arrays(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(DatasetError, match=message):
        datasets.load(tmp_path / "bad.npz")


def test_a_damaged_npz_is_not_said_to_need_unpickling(tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    np.savez(path, X=RNG.random((20, 4, 4)), y=np.arange(20) % 2)
    whole = path.read_bytes()
    inside = bytearray(whole)
    inside[200] ^= 0xFF
    for content, message in (
        (b"abc", "is not an .npz file, or is cut short"),
        (b"", "is not an .npz file, or is cut short"),
        (whole[: len(whole) // 2], "is not an .npz file, or is cut short"),
        (bytes(inside), r"is damaged \("),
    ):
        path.write_bytes(content)
        with pytest.raises(DatasetError, match=rf"bad\.npz {message}") as caught:
            datasets.load(path)
        assert "pickle" not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_parts_of_an_npz_on_two_scales(tmp_path: Path) -> None:
    """Bytes are divided by 255 and floats are not: together they would be predicted on another scale."""
    X, y = RNG.integers(0, 256, (20, 4, 4), dtype=np.uint8), np.arange(20) % 2
    np.savez(tmp_path / "two.npz", x_train=X, y_train=y, x_test=X.astype(np.float32), y_test=y)
    with pytest.raises(DatasetError, match="training images are uint8 and test images float32"):
        datasets.load(tmp_path / "two.npz")


def numbered(y: np.ndarray, y_test: np.ndarray | None = None) -> datasets.Dataset:
    """Every image holds its row number."""

    def images_of(labels: np.ndarray) -> np.ndarray:
        return np.broadcast_to(np.arange(len(labels), dtype=np.float32)[:, None, None, None], (len(labels), 1, 2, 2))

    y_test = y[:0] if y_test is None else y_test
    return datasets.Dataset("numbered", images_of(y), y, images_of(y_test), y_test)


@pytest.mark.parametrize(
    "y",
    [
        np.repeat([0, 1, 2], 20),
        np.repeat(["b", "a"], [50, 5]),
        np.tile(np.repeat([0, 1], 10), 4),  # by class, again and again
    ],
)
def test_images_in_class_order_are_mixed(y: np.ndarray) -> None:
    data = numbered(y, y[::-1])
    mixed = data.mixed()
    for X, labels, given in ((mixed.X, mixed.y, y), (mixed.X_test, mixed.y_test, y[::-1])):
        rows = X[:, 0, 0, 0].astype(int)
        assert sorted(rows) == list(range(len(y)))
        np.testing.assert_array_equal(labels, given[rows])
        assert set(labels[:4]) == set(y)


def test_images_in_another_order_stay_in_it() -> None:
    """What is published of the first images of a data set must not move."""
    data = datasets.digits()
    assert data.mixed() is data
    y = np.random.default_rng(1).integers(0, 3, 40)
    for labels in (y, np.tile([0, 1], 10), np.array([0, 1]), np.array([3]), np.zeros(5, int), y[:0]):
        data = numbered(labels, labels)
        assert data.mixed() is data


def test_held_out_images_are_of_all_classes_in_proportion() -> None:
    y = np.repeat(["a", "b", "c", "d"], [100, 50, 9, 1])
    data = numbered(y).hold_out(40)
    assert data.X_validation is not None
    assert data.y_validation is not None
    rows = np.concatenate([data.X, data.X_validation])[:, 0, 0, 0].astype(int)
    assert sorted(rows) == list(range(160))
    np.testing.assert_array_equal(np.concatenate([data.y, data.y_validation]), y[rows])
    for label, share in (("a", 25.0), ("b", 12.5), ("c", 2.25), ("d", 0.25)):
        assert abs(np.count_nonzero(data.y_validation == label) - share) <= 1
    assert (data.y == "d").any()
    assert set(data.y[:4]) == set("abcd")
    np.testing.assert_array_equal(numbered(y).hold_out(40).X, data.X)
    assert set(numbered(y).hold_out(156).y) == set("abcd")  # every class keeps one for training
    for n in (0, 160):
        with pytest.raises(DatasetError, match=f"160 training images, of which {n} cannot be held out"):
            numbered(y).hold_out(n)
    with pytest.raises(DatasetError, match="has validation images of its own"):
        data.hold_out(10)


def test_size_is_for_folders() -> None:
    with pytest.raises(
        DatasetError, match=r"size \(--size\) is for folders and tables of image files, and digits is none"
    ):
        datasets.load("digits", size=16)


def test_unknown_source() -> None:
    with pytest.raises(DatasetError, match="no data 'imagenet': expected one of digits, mnist"):
        datasets.load("imagenet")
    with pytest.raises(DatasetError, match="no data 'photso': expected one of digits, mnist"):
        datasets.load("photso", size=32, skip_bad=True)  # nor is it said that these are for folders
    for nothing in ("", " "):  # not the folder that the command runs in
        with pytest.raises(DatasetError, match=r"no data was named .* this folder itself is '\.'"):
            datasets.load(nothing)


@pytest.mark.skipif(not HAS_MNIST, reason="MNIST's files are not in $CNNGP_DATA/mnist")
def test_real_mnist() -> None:
    data = datasets.mnist("paper")
    assert data.X.shape == (50_000, 1, 28, 28)
    assert data.y[:5].tolist() == datasets.mnist().y[5_000:5_005].tolist()
    assert data.y_test[:5].tolist() == [7, 2, 1, 0, 4]


def test_some_of_images_in_class_order_are_of_all_classes() -> None:
    """All of them stay where they are, so that a matrix of `cnngp gram` fits `cnngp classify`."""
    y = np.repeat(np.arange(5), 40)
    X = np.arange(200, dtype=np.float32).reshape(200, 1, 1, 1)
    data = datasets.Dataset("by class", X, y, X, y)
    for whole in (data.some(), data.some(None, 20)):
        np.testing.assert_array_equal(whole.X, X)
    np.testing.assert_array_equal(data.some(20).X_test, X)
    for part in (data.some(20).y, data.some(None, 20).y_test):
        assert np.bincount(part).tolist() == [4] * 5
    np.testing.assert_array_equal(data.some(20).X, data.some(20, 30).X)


def test_small_classes_are_held_out_in_proportion_too() -> None:
    y = np.concatenate([np.zeros(300, int), np.repeat(np.arange(1, 21), 3)])
    X = np.zeros((360, 1, 1, 1), np.float32)
    held = datasets.Dataset("uneven", X, y, X, y).hold_out(90)
    assert held.y_validation is not None
    assert 10 <= np.count_nonzero(held.y_validation) <= 20  # 15 of the 60
    assert set(held.y) == set(range(21))


def test_a_test_set_beside_x_and_y_is_taken_and_half_of_one_refused(tmp_path: Path) -> None:
    X, y = np.random.default_rng(0).random((12, 5, 5)), np.arange(12) % 3
    np.savez(tmp_path / "a.npz", X=X[:8], y=y[:8], X_test=X[8:], y_test=y[8:])
    data = datasets.load(tmp_path / "a.npz")
    np.testing.assert_allclose(data.X_test[:, 0], X[8:], rtol=1e-6)
    np.testing.assert_array_equal(data.y, y[:8])
    np.savez(tmp_path / "b.npz", X=X[:8], y=y[:8], X_test=X[8:])
    with pytest.raises(
        DatasetError,
        match=r"holds X \(8, 5, 5\), X_test \(4, 5, 5\), y \(8,\); expected X and y .*, and both for each part",
    ):
        datasets.load(tmp_path / "b.npz")


@pytest.mark.parametrize(
    "names",
    [
        ("x_train", "y_train", "x_val", "y_val", "x_test", "y_test"),
        ("train_images", "train_labels", "val_images", "val_labels", "test_images", "test_labels"),
        ("X", "y", "X_validation", "y_validation", "X_test", "y_test"),
        ("trainData", "trainTargets", "validData", "validTargets", "testData", "testTargets"),
    ],
)
def test_arrays_by_the_names_that_others_give_them(tmp_path: Path, names: tuple[str, ...]) -> None:
    X, y = RNG.random((24, 5, 5)).astype(np.float32), np.arange(24) % 3
    parts = (X[:12], y[:12, None], X[12:18], y[12:18], X[18:], y[18:])
    np.savez(tmp_path / "a.npz", **dict(zip(names, parts, strict=True)), mean=X.mean(0))
    data = datasets.load(tmp_path / "a.npz")
    for found, wanted in ((data.X, X[:12]), (data.X_validation, X[12:18]), (data.X_test, X[18:])):
        np.testing.assert_array_equal(found[:, 0], wanted)
    np.testing.assert_array_equal(np.concatenate([data.y, data.y_validation, data.y_test]), y)


def test_groups_noise_and_names_in_an_npz(tmp_path: Path) -> None:
    X, rows = RNG.random((12, 5, 5)), np.arange(12)
    np.savez(tmp_path / "a.npz", images=X, labels=rows % 2, groups=rows // 3, noise=rows / 2, names=rows.astype(str))
    data = datasets.load(tmp_path / "a.npz", whole=True)
    np.testing.assert_array_equal(data.groups, rows // 3)
    np.testing.assert_array_equal(data.image_noise, rows / 2)
    np.testing.assert_array_equal(data.names, rows.astype(str))
    np.savez(tmp_path / "a.npz", images=X, labels=rows % 2, groups=rows[:3])
    with pytest.raises(DatasetError, match=r"groups of shape \(3,\) for 12 images"):
        datasets.load(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("X", "images", "y"), "of which X and images could be the images for train; keep one of them"),
        (("X", "y", "train_y"), "of which train_y and y could be the labels for train"),
        (("train_X", "test_y"), r"holds test_y \(6,\), train_X \(6, 4, 4\); expected X and y \(or images and labels"),
    ],
)
def test_ambiguous_arrays_are_refused_with_what_was_seen(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    arrays = {name: np.zeros(6) if "y" in name else np.zeros((6, 4, 4)) for name in names}
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DatasetError, match=message):
        datasets.load(tmp_path / "a.npz")
