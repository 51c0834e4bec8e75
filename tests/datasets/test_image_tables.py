"""Tables of image files: columns, labels and numbers, parts, groups and noise; and mistakes in them."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cnngp import datasets
from cnngp.common.errors import DatasetError


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Twelve grey images that tell their number, below the folder of the table."""
    (tmp_path / "photos").mkdir()
    for i in range(12):
        Image.fromarray(np.full((6, 4), 20 * i, np.uint8)).save(tmp_path / "photos" / f"{i:02}.png")
    return tmp_path


def write(folder: Path, head: str, *columns: list[object], name: str = "table.csv") -> Path:
    files = [f"photos/{i:02}.png" for i in range(12)]
    lines = [",".join(map(str, line)) for line in zip(files, *columns, strict=True)]
    path = folder / name
    path.write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    return path


def numbers(X: np.ndarray) -> list[int]:
    return np.rint(X[:, 0, 0, 0] * 255 / 20).astype(int).tolist()


def test_a_table_names_files_and_labels(photos: Path) -> None:
    data = datasets.load(write(photos, "file,label", ["cat", "dög"] * 6))
    assert data.name == "table"
    assert data.image_shape == (1, 6, 4)
    assert (len(data.X), len(data.X_test)) == (10, 2)
    assert data.notes[0].startswith("2 of 12 images, about a fifth of each class, are kept for testing")
    for X, y, names in ((data.X, data.y, data.names), (data.X_test, data.y_test, data.names_test)):
        assert names.tolist() == [f"photos/{i:02}.png" for i in numbers(X)]
        assert y.tolist() == [("cat", "dög")[i % 2] for i in numbers(X)]
    whole = datasets.table(photos / "table.csv", whole=True, size=3)
    assert whole.X.shape == (12, 1, 3, 3)


def test_parts_groups_and_noise_go_with_their_images(photos: Path) -> None:
    split = ["train"] * 6 + ["", "Test", "test", "val", "validation", "TRAIN"]
    columns = [[i % 2 for i in range(12)], split, list("abcabcabcabc"), [f"{i / 4}" for i in range(12)]]
    data = datasets.load(write(photos, "Image,class,split,group,noise", *columns))
    assert sorted(numbers(data.X)) == [0, 1, 2, 3, 4, 5, 6, 11]
    assert sorted(numbers(data.X_test)) == [7, 8]
    assert sorted(numbers(data.X_validation)) == [9, 10]
    for held in (data, data.take(5), data.mixed()):
        assert held.y.tolist() == [i % 2 for i in numbers(held.X)]
        assert held.groups.tolist() == ["abc"[i % 3] for i in numbers(held.X)]
        assert held.image_noise.tolist() == [i / 4 for i in numbers(held.X)]


def test_whole_groups_are_kept_for_testing_and_held_out(photos: Path) -> None:
    group = [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    data = datasets.load(write(photos, "file,label,group", ["a", "b"] * 6, group))
    assert set(data.y_test) == {"a", "b"}
    assert {group[i] for i in numbers(data.X)} & {group[i] for i in numbers(data.X_test)} == set()
    assert "about a fifth in whole groups" in data.notes[0]
    held = data.hold_out(4)
    assert len(held.X_validation) == 4
    assert {group[i] for i in numbers(held.X)} & {group[i] for i in numbers(held.X_validation)} == set()
    with pytest.raises(DatasetError, match="no whole group can be kept for testing"):
        datasets.load(write(photos, "file,label,group", ["a", "b"] * 6, ["one", "two"] * 6))


def test_columns_of_numbers_and_of_several_labels(photos: Path) -> None:
    path = write(photos, "file,age,height,tall", range(12), [f"{1 + i / 10:g}" for i in range(12)], [0, 1] * 6)
    ages = datasets.load(path, columns="age", whole=True)
    assert ages.y.dtype == np.int64
    assert ages.y.tolist() == numbers(ages.X)
    assert len(datasets.load(path, columns="age").y_test) == 2  # ages are no classes of one image each
    heights = datasets.load(path, columns=["height"])
    assert heights.y.dtype == np.float64
    np.testing.assert_allclose(heights.y, 1 + np.array(numbers(heights.X)) / 10)
    assert "2 of 12 images, about a fifth, are kept" in heights.notes[0]
    both = datasets.load(path, columns="age,tall", whole=True)
    assert both.y.tolist() == [[i, i % 2] for i in numbers(both.X)]


def test_files_by_any_name_in_any_place_with_any_separator(photos: Path) -> None:
    (photos / "tables").mkdir()
    odd = os.fsdecode(b"photos/=caf\xe9\r.png")
    (photos / "photos" / "00.png").rename(photos / odd)
    rows = [rf"..\photos\{i:02}.png;{i % 2}" for i in range(1, 11)]
    rows += [r"../photos/=caf\xe9\x0d.png;1", f"{photos}/photos/11.png;0"]
    path = photos / "tables" / "t.csv"
    path.write_bytes(("\ufeffwhere;what\r\n" + "\r\n".join(rows) + "\r\n").encode())
    data = datasets.load(path, whole=True)
    assert sorted(numbers(data.X)) == list(range(12))
    assert f"../{odd}" in data.names


def test_files_that_are_missing_or_bad_are_left_out_with_their_labels(photos: Path) -> None:
    path = write(photos, "file,label", ["a", "b"] * 6)
    (photos / "photos" / "04.png").unlink()
    with pytest.raises(DatasetError, match=r"04\.png: no such file; leave it out with skip_bad=True \(--skip-bad\)$"):
        datasets.load(path)
    (photos / "photos" / "03.png").write_bytes(b"hello")
    data = datasets.load(path, skip_bad=True, whole=True)
    assert sorted(numbers(data.X)) == [0, 1, 2, 5, 6, 7, 8, 9, 10, 11]
    assert data.y.tolist() == ["ab"[i % 2] for i in numbers(data.X)]


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("", None, "is empty; expected a table with the names of its columns"),
        ("file,label\n", None, "has no rows"),
        ("file,file\na.png,b\n", None, "has columns of one name: file"),
        ("a,b\nx,y\n", None, "has the columns a, b, of which none hold names of image files; call the one"),
        ("a,b,c\nx.png,y.png,z\n", None, "of which a, b hold names of image files"),
        ("file\na.png\n", None, "has no column for labels; say which with columns="),
        ("file,p,q\na.png,1,2\n", None, r"has the columns p, q for labels; say which with columns= \(--columns\)"),
        ("file,p\na.png,1\n", "q", "has no column q of labels .*; it has p"),
        ("file,p,q\na.png,1,x\n", "p,q", "columns p, q hold words"),
        ("file,label\na.png,1\nb.png,\n", None, "column label is empty in line 3; every image needs one"),
        ("file,label\na.png,1.5\nb.png,nan\n", None, "column label holds nan in line 3; expected finite numbers"),
        ("file;label\na.png;2\nb.png;1,5\n", None, "column label holds 1,5; write decimals with a point, as in 1.5"),
        ("file,label,split\na.png,1,exam\n", None, "split 'exam'; expected train, test, val or nothing"),
        ("file,label,noise\na.png,1,-2\n", None, "column noise holds something else than variances of 0 or more"),
        ("file,label\na.png,1,2\n", None, "row 2 has 3 cells, and there are 2 columns"),
        ("file,label,split\na.png,1,test\n", None, "has no images for training"),
        ("file,label\na.png,\udce4\n", None, "is not a table in UTF-8"),
    ],
)  # fmt: skip
def test_mistakes_in_tables_are_told(tmp_path: Path, text: str, columns: str | None, message: str) -> None:
    (tmp_path / "t.csv").write_text(text, errors="surrogateescape")
    with pytest.raises(DatasetError, match=message) as told:
        datasets.load(tmp_path / "t.csv", columns=columns)
    assert "\n" not in str(told.value)


def test_rows_of_features_go_with_the_pictures_of_a_table(photos: Path) -> None:
    path, rows = write(photos, "file,label", ["cat", "dog"] * 6), np.arange(24.0).reshape(12, 2)
    np.save(photos / "features.npy", rows)
    for features in (rows, photos / "features.npy"):
        data = datasets.load(path, features=features)
        for X, pictures in ((data.X, data.pictures), (data.X_test, data.pictures_test)):
            np.testing.assert_array_equal(X, rows[numbers(pictures)].astype(X.dtype))
        assert data.image_shape == (2,)
        assert data.take(3).pictures.shape == (3, 1, 6, 4)
    np.savez(photos / "both.npz", features=rows, images=np.zeros((12, 6, 4), np.uint8), labels=np.arange(12) % 2)
    assert datasets.load(photos / "both.npz").pictures.shape[1:] == (1, 6, 4)
    for features, message in (
        (rows[:11], r"features of shape \(11, 2\) and type float64; expected 12 rows of finite numbers"),
        (np.full((12, 2), np.nan), "expected 12 rows of finite numbers"),
        (np.zeros((12, 2, 2)), r"features of shape \(12, 2, 2\)"),
        (path, "is no .npy file of numbers; write it with numpy.save"),
    ):
        with pytest.raises(DatasetError, match=message):
            datasets.load(path, features=features)
