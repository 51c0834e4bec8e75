"""Folders of photographs: what is read, what is left out and said to be, sizes and proportions."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cnngp import datasets
from cnngp.common.errors import DatasetError
from cnngp.datasets import images
from cnngp.datasets.folders_and_tables import image_files

from .conftest import RNG, save_classes, save_images


def grey(folder: Path, level: int, n: int) -> None:
    """Images that tell their own class and number."""
    folder.mkdir(parents=True)
    for i in range(n):
        Image.fromarray(np.full((4, 4), level + i, np.uint8)).save(folder / f"{i:03}.png")


def kept(test: int, images: int) -> str:
    return (
        f"{test} of {images} images, about a fifth of each class, are kept for testing; "
        "--test 0 of `cnngp classify` and `cnngp regress`, or whole=True in Python, fits all of them"
    )


def sizes(data: datasets.Dataset) -> tuple[int, ...]:
    return tuple(len(X) for X in (data.X, data.X_test, data.X_validation) if X is not None)


def test_folder_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pets = tmp_path / "pets"
    save_images(pets / "cät", 10, (12, 9))
    save_images(pets / "dog", 5, (12, 9), suffix="jpg")
    save_images(pets / "fox", 5, (30, 40))
    data = datasets.load(pets)
    assert data.name == "pets"
    assert data.X.shape == (16, 1, 12, 9)
    assert sorted(data.y_test) == ["cät", "cät", "dog", "fox"]
    save_images(pets / "owl", 5, (12, 9), mode="RGB")
    assert datasets.load(pets, size=16).X.shape[1:] == (3, 16, 16)
    monkeypatch.chdir(pets / "dog")
    assert datasets.load("..").name == "pets"


def test_the_first_images_of_a_split_folder_are_of_all_classes(tmp_path: Path) -> None:
    levels = {"a": 0, "b": 80, "c": 160}
    for name, level in levels.items():
        grey(tmp_path / "train" / name, level, {"a": 40, "b": 20, "c": 5}[name])
        grey(tmp_path / "test" / name, level, 10)
    data = datasets.load(tmp_path)
    for X, y in ((data.X, data.y), (data.X_test, data.y_test)):
        shown = np.rint(X[:, 0, 0, 0] * 255).astype(int)
        assert (np.diff(shown[y == "a"]) < 0).any()  # nor are the images of a class in the order of their names
    small = data.take(26, 15)
    assert dict(zip(*np.unique(small.y, return_counts=True), strict=True)) == {"a": 16, "b": 8, "c": 2}
    assert dict(zip(*np.unique(small.y_test, return_counts=True), strict=True)) == {"a": 5, "b": 5, "c": 5}
    np.testing.assert_array_equal(datasets.load(tmp_path).X, data.X)


@pytest.mark.parametrize("name", ["val", "validation"])
def test_validation_folders(tmp_path: Path, name: str) -> None:
    for part, n in (("train", 6), ("test", 2), (name, 3)):
        for label, level in (("yes", 0), ("no", 100)):
            grey(tmp_path / part / label, level, n)
    save_images(tmp_path / "more" / "yes", 1, (8, 8))
    data = datasets.load(tmp_path)
    assert sizes(data) == (12, 4, 6)
    assert sorted(data.names_validation)[0] == f"{name}/no/000.png"  # type: ignore[type-var]
    assert data.notes == ("folders without images, or not used: more",)
    shutil.rmtree(tmp_path / "test")
    data = datasets.load(tmp_path)
    assert sizes(data) == (10, 2, 6)
    assert data.notes[-1] == kept(2, 12)
    assert sizes(datasets.load(tmp_path, whole=True)) == (12, 0, 6)
    grey(tmp_path / "test" / "perhaps", 200, 1)
    with pytest.raises(DatasetError, match="test images have labels that no training image has: perhaps"):
        datasets.load(tmp_path)


def test_a_class_that_is_called_train(tmp_path: Path) -> None:
    for name in ("train", "bus"):
        save_images(tmp_path / name, 4, (8, 8))
    assert set(datasets.load(tmp_path).y) == {"train", "bus"}


def test_names_stay_with_their_images(tmp_path: Path) -> None:
    for name, level in (("a", 0), ("b", 100)):
        grey(tmp_path / name, level, 30)
    data = datasets.load(tmp_path)
    for part in (data, data.take(11, 3), data.mixed(), data.hold_out(8)):
        for X, y, names in (
            (part.X, part.y, part.names),
            (part.X_test, part.y_test, part.names_test),
            (part.X_validation, part.y_validation, part.names_validation),
        ):
            if X is not None:
                levels = np.rint(X[:, 0, 0, 0] * 255).astype(int)
                assert [f"{label}/{level % 100:03}.png" for label, level in zip(y, levels, strict=True)] == list(names)
    assert datasets.digits().take(5).names is None


def test_the_whole_folder_may_be_for_training(tmp_path: Path) -> None:
    for name, n in (("a", 10), ("b", 10), ("lonely", 1)):
        grey(tmp_path / name, 0, n)
    data = datasets.load(tmp_path, whole=True)
    assert repr(data) == f"<{tmp_path.name}: 21 training images of 1 × 4 × 4>"
    assert data.notes == ()
    assert set(data.y[:3]) == {"a", "b", "lonely"}  # in a mixed order


# ---- what cannot be read, or is none -------------------------------------------------------------------------------


def test_bad_folders(tmp_path: Path) -> None:
    save_images(tmp_path / "cat", 3, (8, 8))
    with pytest.raises(DatasetError, match=r"images of one class only \(cat\)"):
        datasets.load(tmp_path)
    with pytest.raises(DatasetError, match="no sub-folders with images"):
        datasets.load(tmp_path / "cat")
    with pytest.raises(DatasetError, match="is not a folder"):
        datasets.folder(tmp_path / "none")
    with pytest.raises(DatasetError, match="aspect='crop': expected 'squash' or 'pad'"):
        datasets.folder(tmp_path, aspect="crop")  # type: ignore[arg-type]


def test_what_is_left_out_is_counted_by_kind(tmp_path: Path) -> None:
    save_classes(tmp_path, 4)
    for file in ("a/notes.txt", "b/notes.txt", "a/README", "a/.DS_Store"):
        (tmp_path / file).write_text("hello")
    (tmp_path / "empty").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "loose.png")
    assert datasets.load(tmp_path, whole=True).notes == (
        "left out 5 files: 2 .txt, 1 hidden, 1 outside of the class folders, 1 without a suffix; folders without "
        "images, or not used: empty",
    )
    (tmp_path / "only" / "films").mkdir(parents=True)
    (tmp_path / "only" / "films" / "a.mp4").write_text("hello")
    with pytest.raises(DatasetError, match=r"no sub-folders with images; .*left out 1 file: 1 \.mp4"):
        datasets.load(tmp_path / "only")


def test_all_bad_files_are_listed_at_once_or_left_out(tmp_path: Path) -> None:
    save_classes(tmp_path, 6, (100, 50), mode="RGB", suffix="jpg")
    half = (tmp_path / "b" / "1.jpg").read_bytes()
    (tmp_path / "b" / "1.jpg").write_bytes(half[: len(half) // 2])
    with pytest.raises(DatasetError, match=r"b/1\.jpg is not a readable image .*leave it out with skip_bad"):
        datasets.load(tmp_path)
    (tmp_path / "a" / "2.jpg").write_bytes(b"hello")
    both = r"^2 of 12 files in .*a/2\.jpg is not a readable .*b/1\.jpg is not a readable .* out with skip_bad=True"
    with pytest.raises(DatasetError, match=both):
        datasets.load(tmp_path)
    data = datasets.load(tmp_path, skip_bad=True)
    assert data.notes == (
        "10 images of 10 brought to 64 × 32 (the commonest size, at most 64 a side)",
        "left out 2 files: 2 not readable",
        kept(2, 10),
    )
    for file in (tmp_path / "a").iterdir():
        file.write_bytes(b"hello")
    with pytest.raises(DatasetError, match="no image of these classes can be read: a"):
        datasets.load(tmp_path, skip_bad=True)


# ---- kinds of images and sizes -------------------------------------------------------------------------------------


def test_every_format_nested_or_not(tmp_path: Path) -> None:
    for suffix in ("png", "jpg", "jpeg", "webp", "bmp", "tif", "tiff", "gif", "ppm", "tga"):
        for name in ("cat", "dog"):
            place = tmp_path / name / ("deep" if suffix in ("bmp", "gif") else "")
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(RNG.integers(0, 256, (8, 8), dtype=np.uint8)).save(place / f"{suffix}.{suffix}")
    data = datasets.load(tmp_path, whole=True)
    assert len(data.X) == 20
    assert {"cat/webp.webp", str(Path("dog") / "deep" / "bmp.bmp")} <= set(data.names)  # type: ignore[arg-type]


def test_images_as_a_viewer_shows_them(tmp_path: Path) -> None:
    """16 bits, transparency, fractions, palettes and a camera's rotation."""
    clear = np.zeros((2, 2, 4), np.uint8)
    clear[0, 0, 3] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # turn a quarter clockwise
    for image, shape, suffix, shown in (
        (Image.fromarray(np.array([[0, 25700], [51400, 65535]], np.uint16)), (2, 2), "png", [[0, 100], [200, 255]]),
        (Image.fromarray(clear), (2, 2), "png", [[0, 255], [255, 255]]),
        (Image.fromarray(np.array([[0.0, 0.5], [1.0, 0.2]], np.float32)), (2, 2), "tif", [[0, 128], [255, 51]]),
        (Image.fromarray(np.array([[0, 100]], np.uint8)), (2, 1), "png", [[0], [100]]),
    ):
        image.save(tmp_path / f"a.{suffix}", **({"exif": exif} if shape == (2, 1) else {}))
        assert images.read_image(tmp_path / f"a.{suffix}", (1, *shape)).tolist() == [shown]
    Image.new("RGB", (2, 2), (255, 0, 0)).convert("P").save(tmp_path / "p.gif")
    assert images.read_image(tmp_path / "p.gif", (3, 2, 2))[:, 0, 0].tolist() == [255, 0, 0]
    turned = save_classes(tmp_path / "turned", 3, (20, 40), suffix="jpg", exif=exif)
    assert datasets.load(turned).image_shape == (1, 40, 20)


def test_sizes_and_proportions_are_reported(tmp_path: Path) -> None:
    for name in save_classes(tmp_path, 4, (100, 50)).iterdir():
        Image.new("L", (60, 60), 255).save(name / "square.png")
    data = datasets.load(tmp_path)
    assert data.image_shape == (1, 64, 32)
    assert data.notes[0] == (
        "10 images of 10 brought to 64 × 32 (the commonest size, at most 64 a side); 2 of another aspect ratio "
        "squashed; aspect='pad' (--aspect pad) keeps theirs"
    )
    padded = datasets.load(tmp_path, aspect="pad", size=(64, 32), whole=True)
    assert padded.notes == ("10 images of 10 brought to 64 × 32; 2 of another aspect ratio padded with black",)
    square = padded.X[list(padded.names).index("a/square.png"), 0]  # type: ignore[arg-type]
    assert (square[:16] == 0).all()  # 32 × 32 in the middle of 64 × 32
    assert (square[16:48] == 1).all()
    assert (square[48:] == 0).all()


def test_a_banner_does_not_set_the_size_of_pictures_that_all_differ(tmp_path: Path) -> None:
    for k, name in enumerate(("a", "b")):
        (tmp_path / name).mkdir()
        for i in range(12):
            Image.new("L", (400 + 2 * i + k, 300 - 2 * i - k)).save(tmp_path / name / f"{i:02}.png")
    Image.new("L", (600, 24)).save(tmp_path / "a" / "00.png")
    data = datasets.load(tmp_path)
    assert data.image_shape[2] == 64
    assert 42 <= data.image_shape[1] <= 48  # 300 of 400, and a little less
    assert "(their median proportions, at most 64 a side)" in data.notes[0]


def test_pictures_that_all_differ_are_not_enlarged_and_may_stand_or_lie(tmp_path: Path) -> None:
    for name, shapes in (("a", [(10, 20), (11, 22), (12, 24)]), ("b", [(20, 10), (22, 11), (24, 12)])):
        (tmp_path / name).mkdir()
        for shape in shapes:
            Image.new("L", shape).save(tmp_path / name / f"{shape[0]}.png")
    assert datasets.load(tmp_path).image_shape == (1, 20, 20)


@pytest.mark.parametrize("size", [0, "8x8", (1, 2, 3), (0, 4), 2.5, True])
def test_sizes_that_are_none(size: Any) -> None:
    with pytest.raises(DatasetError, match="expected a height and a width such as"):
        images.check_size(size)


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_12_bits_in_files_of_16_are_said_to_come_out_dark(tmp_path: Path, suffix: str) -> None:
    for largest in (4095, 65535):
        for name in ("a", "b"):
            (tmp_path / name).mkdir(exist_ok=True)
            for i in range(3):
                deep = RNG.integers(0, largest + 1, (8, 8)).astype(np.uint16)
                deep[0, 0] = largest if i else largest // 2
                Image.fromarray(deep).save(tmp_path / name / f"{i}.{suffix}")
        dark = (
            "the largest value of 6 images with 16 bits is 4,095 of 65,535, as of 12-bit data, so that they come out "
            "nearly black; multiply their values by 16 and save them again, also those that are predicted later",
        )
        assert datasets.load(tmp_path, whole=True).notes == (dark if largest == 4095 else ())


def test_images_of_folders_and_files(tmp_path: Path) -> None:
    save_images(tmp_path / "deep" / "er", 2, (8, 8))
    (tmp_path / "deep" / "notes.txt").write_text("hello")
    Image.new("L", (4, 4)).save(tmp_path / "one.webp")
    found = list(image_files([tmp_path / "one.webp", tmp_path / "deep"]))
    assert [p.name for p in found] == ["one.webp", "0.png", "1.png"]
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DatasetError, match="nothing holds no images that can be read"):
        list(image_files([tmp_path / "nothing"]))
