"""Images and labels from .npz files and from iterables of pairs, and what is said of those that are none."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cnngp import datasets
from cnngp.common.errors import DatasetError

RNG = np.random.default_rng(0)


def test_parts_by_the_names_that_others_give_them(tmp_path: Path) -> None:
    X, y = RNG.random((24, 5, 5)).astype(np.float32), np.arange(24) % 3
    parts = (X[:12], y[:12, None], X[12:18], y[12:18], X[18:], y[18:])
    for names in (
        ("x_train", "y_train", "x_val", "y_val", "x_test", "y_test"),
        ("train_images", "train_labels", "val_images", "val_labels", "test_images", "test_labels"),
        ("X", "y", "X_validation", "y_validation", "X_test", "y_test"),
        ("trainData", "trainTargets", "validData", "validTargets", "testData", "testTargets"),
    ):
        np.savez(tmp_path / "a.npz", **dict(zip(names, parts, strict=True)), mean=X.mean(0))
        data = datasets.load(tmp_path / "a.npz")
        for found, wanted in ((data.X, X[:12]), (data.X_validation, X[12:18]), (data.X_test, X[18:])):
            np.testing.assert_array_equal(found[:, 0], wanted)  # type: ignore[index]
        np.testing.assert_array_equal(np.concatenate([data.y, data.y_validation, data.y_test]), y)


def test_a_file_without_a_test_set_keeps_a_fifth_or_all_in_order(tmp_path: Path) -> None:
    X, rows = RNG.integers(0, 256, (40, 6, 5), dtype=np.uint8), np.arange(40)
    y, others = np.array(["a", "b"])[rows % 2], {"groups": rows // 3, "noise": rows / 2, "names": rows.astype(str)}
    np.savez(tmp_path / "one.npz", images=X, labels=y)
    data = datasets.load(tmp_path / "one.npz")
    assert data.X.shape == (32, 1, 6, 5)
    assert sorted(data.y_test) == ["a"] * 4 + ["b"] * 4
    np.savez(tmp_path / "one.npz", images=X, labels=y, **others)
    whole = datasets.load(tmp_path / "one.npz", whole=True)
    np.testing.assert_array_equal(whole.X[:, 0], X.astype(np.float32) / np.float32(255))
    for found, expected in zip(
        (whole.groups, whole.image_noise, whole.names, whole.y), (*others.values(), y), strict=True
    ):
        np.testing.assert_array_equal(found, expected)  # type: ignore[arg-type]
    assert len(whole.X_test) == len(whole.notes) == 0


@pytest.mark.parametrize(
    ("held", "shape", "read"),
    [
        ((1, 128), (1, 128), (1, 128)),
        ((128,), (2, 64), (2, 64)),
        ((128, 2), (2, 128), (2, 128)),  # the channels came last
        ((6, 5, 3), None, (3, 6, 5)),
        ((1, 128), (1, 1, 128), (1, 1, 128)),
        ((64,), (1, 8, 8), (1, 8, 8)),
        ((2, 3, 4, 5), (2, 3, 4, 5), (2, 3, 4, 5)),
        ((3, 4, 5), (1, 3, 4, 5), (1, 3, 4, 5)),
        ((2, 6), None, (1, 2, 6)),  # grey images need no shape
    ],
)
def test_shapes_of_signals_images_and_volumes(tmp_path: Path, held: Any, shape: Any, read: tuple[int, ...]) -> None:
    X, y = RNG.random((20, *held)).astype(np.float32), np.arange(20) % 2
    expected = np.moveaxis(X, -1, 1) if held[-1] == read[0] else X.reshape(20, *read)
    np.savez(tmp_path / "t.npz", x_train=X, y_train=y, x_test=X[:7], y_test=y[:7])
    data = datasets.load(tmp_path / "t.npz", input_shape=shape)
    np.testing.assert_array_equal(data.X, expected)
    np.testing.assert_array_equal(data.X_test, expected[:7])


IMAGES, LABELS = np.ones((4, 3, 3)), np.arange(4) % 2


def archive(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


ARCHIVE = archive(X=RNG.random((20, 4, 4)), y=np.arange(20) % 2)


def of_shape(*shape: int) -> dict[str, Any]:
    return {"X": np.ones((6, *shape)), "y": np.arange(6) % 2}


# What is loaded, and what is said of it.
REFUSED: list[tuple[Any, str]] = [
    # shapes that do not tell
    (of_shape(1, 128), r"could be signals or images; say which: input_shape=\(1, 128\) \(--input-shape 1,128\) for si"),
    (of_shape(1, 128), r"of 128 samples in 1 channel, .*\(--input-shape 1,1,128\) for grey images of 1 × 128$"),
    (of_shape(127), r"rows of 127 numbers; say what they are, such as input_shape=\(1, 127\) .* for signals$"),
    (of_shape(64), r"for signals, or input_shape=\(1, 8, 8\) \(--input-shape 1,8,8\) for images"),
    (of_shape(2, 3, 4, 5), "or the shape of one, channels first"),
    # arrays
    ({"A": np.ones(3), "X": np.ones(3)}, r"holds A \(3,\), X \(3,\); expected X and y"),
    ({"X": IMAGES, "y": np.ones(5)}, r"images of shape \(4, 3, 3\) and labels of shape \(5,\)"),
    ({"X": IMAGES, "y": np.array([0.0, np.nan, 1.0, 1.0])}, "label 1 is NaN; every image needs a label"),
    ({"X": np.where(LABELS[:, None, None], np.nan, IMAGES), "y": LABELS}, "image 1 holds NaN or infinity; replace"),
    ({"X": np.array([{}]), "y": np.ones(1)}, r"a\.npz: X holds Python objects, which are never unpickled"),
    ({"X": IMAGES.astype(str), "y": LABELS}, r"images of type <U\d+; expected numbers"),
    ({"X": IMAGES, "images": IMAGES, "y": LABELS}, "X and images could be the images for train; keep one"),
    ({"X": IMAGES, "y": LABELS, "X_test": IMAGES}, r"y \(4,\); expected X and y .* both for each part"),
    ({"X": IMAGES, "y": LABELS, "groups": LABELS[:3]}, r"groups of shape \(3,\) for 4 images"),
    ({"X": IMAGES, "y": np.array([0, 0, 0, 1])}, "a: class 1 has a single image"),
    (
        {"x_train": IMAGES.astype(np.uint8), "y_train": LABELS, "x_test": IMAGES, "y_test": LABELS},
        "training images are uint8 and test images float64, of which uint8 alone is divided by 255",
    ),
    (
        {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES[:, 1:], "y_test": LABELS},
        r"training images are \(1, 3, 3\), test images \(1, 2, 3\)",
    ),
    # files that are none; NumPy's own advice is to unpickle them
    (b"abc", "is not an .npz file, or is cut short"),
    (ARCHIVE[: len(ARCHIVE) // 2], "is not an .npz file, or is cut short"),
    (ARCHIVE[:200] + bytes([ARCHIVE[200] ^ 0xFF]) + ARCHIVE[201:], r"a\.npz is damaged \((?!.*pickle)"),
    # pairs
    ([], r"train holds no pairs \(image, label\)"),
    ([IMAGES[0]], r"train\[0\] is a ndarray; expected pairs \(image, label\)"),
    ([(IMAGES[0], 0), (IMAGES[0, 1:], 1)], r"image 1 of train has shape \(2, 3\), and those before it \(3, 3\)"),
    ([(IMAGES[0] * np.inf, 0)] * 2, "image 0 holds NaN or infinity"),
    ([(IMAGES[0], 0), (IMAGES[0], [0, 1])], r"label 1 of train has shape \(2,\), and those before it \(\)"),
    ([(IMAGES[:, None], LABELS)], r"train\[0\] is a batch of 4 images; give the loader's dataset itself"),
    (3, r"train is a int; expected pairs \(image, label\)"),
]
WRONG_SHAPES: list[tuple[Any, Any, str]] = [
    (of_shape(128), (1, 100), r"does not hold images of \(1, 100\), 100 numbers each; give another shape"),
    (of_shape(128), (1, 0), r"shape=\(1, 0\): expected the channels first"),
    (of_shape(128), 128, "shape=128: expected the channels first"),
]


@pytest.mark.parametrize(("given", "shape", "told"), [*((g, None, told) for g, told in REFUSED), *WRONG_SHAPES])
def test_arrays_and_pairs_are_refused_with_what_was_seen(tmp_path: Path, given: Any, shape: Any, told: str) -> None:
    if isinstance(given, dict | bytes):
        (tmp_path / "a.npz").write_bytes(archive(**given) if isinstance(given, dict) else given)
        given = tmp_path / "a.npz"
    with pytest.raises(DatasetError, match=told) as error:
        datasets.load(given, input_shape=shape)
    assert "\n" not in str(error.value)


def test_pairs_from_pytorch_generators_and_pillow() -> None:
    torch = pytest.importorskip("torch")
    X, y = RNG.integers(0, 256, (10, 6, 5, 3), dtype=np.uint8), np.arange(10) % 2

    class Photos(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
        """As many of them are: it has no end but its length."""

        def __len__(self) -> int:
            return len(X)

        def __getitem__(self, i: int) -> tuple[Any, Any]:
            return torch.from_numpy(X[i % 10]), torch.tensor(y[i % 10])

    expected = np.moveaxis(X, -1, 1) / np.float32(255)
    for pairs in (Photos(), ((Image.fromarray(x), int(k)) for x, k in zip(X, y, strict=True))):
        data = datasets.load(pairs, whole=True)
        np.testing.assert_array_equal(data.X, expected)
        np.testing.assert_array_equal(data.y, y)
    both = datasets.from_pairs(Photos(), [(x, k) for x, k in zip(X[:4], y, strict=False)])
    assert (len(both.X), len(both.X_test)) == (10, 4)
