"""Folders of photographs: what is read, what is left out and said to be, sizes and proportions."""

import os
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

LEVELS = {"yes": 0, "no": 100}


def grey(folder: Path, counts: dict[str, int]) -> None:
    """So many images of each class, which tell their class and number."""
    for label, n in counts.items():
        (folder / label).mkdir(parents=True)
        for i in range(n):
            Image.fromarray(np.full((4, 4), LEVELS[label] + i, np.uint8)).save(folder / label / f"{i:03}.png")


def shown(X: np.ndarray) -> np.ndarray:
    return np.rint(X[:, 0, 0, 0] * 255).astype(int)


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
    save_images(pets / "train", 5, (12, 9), suffix="jpg")  # a class of this name
    save_images(pets / "fox", 5, (30, 40))
    data = datasets.load(pets)
    assert data.name == "pets"
    assert data.X.shape == (16, 1, 12, 9)
    assert sorted(data.y_test) == ["cät", "cät", "fox", "train"]
    save_images(pets / "owl", 5, (12, 9), mode="RGB")
    assert datasets.load(pets, size=16).X.shape[1:] == (3, 16, 16)
    monkeypatch.chdir(pets / "fox")
    assert datasets.load("..").name == "pets"


def test_parts_of_a_split_folder_are_mixed_and_names_stay_with_their_images(tmp_path: Path) -> None:
    for part, counts in (("train", (60, 30)), ("test", (10, 10)), ("val", (3, 3))):
        grey(tmp_path / part, dict(zip(LEVELS, counts, strict=True)))
    data = datasets.load(tmp_path)
    assert sizes(data) == (90, 20, 6)
    small = data.take(30, 10)
    for y, counts in ((small.y, [10, 20]), (small.y_test, [5, 5])):
        assert np.unique(y, return_counts=True)[1].tolist() == counts
    for X, y in ((data.X, data.y), (data.X_test, data.y_test)):
        assert (np.diff(shown(X[y == "yes"])) < 0).any()  # nor are the images of a class in the order of their names
    np.testing.assert_array_equal(datasets.load(tmp_path).X, data.X)
    shutil.rmtree(tmp_path / "val")
    for part in (data, small, data.mixed(), datasets.load(tmp_path).hold_out(8)):
        for X, y, names in (
            (part.X, part.y, part.names),
            (part.X_test, part.y_test, part.names_test),
            (part.X_validation, part.y_validation, part.names_validation),
        ):
            assert X is not None
            assert names is not None
            expected = [f"{label}/{level - LEVELS[label]:03}.png" for label, level in zip(y, shown(X), strict=True)]
            assert [name.split("/", 1)[1] for name in names] == expected


@pytest.mark.parametrize("name", ["val", "validation"])
def test_validation_folders_and_a_folder_without_test_images(tmp_path: Path, name: str) -> None:
    grey(tmp_path / "train", {"yes": 6, "no": 6})
    grey(tmp_path / name, {"yes": 3, "no": 3})
    save_images(tmp_path / "more" / "yes", 1, (8, 8))
    data = datasets.load(tmp_path)
    assert sizes(data) == (10, 2, 6)
    assert data.notes == ("folders without images, or not used: more", kept(2, 12))
    whole = datasets.load(tmp_path, whole=True)
    assert sizes(whole) == (12, 0, 6)
    assert whole.notes == data.notes[:1]
    assert set(whole.y[:2]) == set(LEVELS)  # in a mixed order
    save_images(tmp_path / "test" / "perhaps", 1, (4, 4))
    with pytest.raises(DatasetError, match="test images have labels that no training image has: perhaps"):
        datasets.load(tmp_path)


def test_bad_folders(tmp_path: Path) -> None:
    save_images(tmp_path / "cat", 3, (8, 8))
    for path, options, message in (
        (tmp_path, {}, r"images of one class only \(cat\)"),
        (tmp_path / "cat", {}, "no sub-folders with images"),
        (tmp_path / "none", {}, "is not a folder"),
        ("/proc", {}, "/proc is not a folder of files"),
        (tmp_path, {"aspect": "crop"}, "aspect='crop': expected 'squash' or 'pad'"),
        (tmp_path, {"max_pixels": 0}, "max_pixels=0: expected the most pixels"),
        *((tmp_path, {"size": s}, "expected a height and a width such") for s in (0, "8x8", (1, 2, 3), (0, 4), 2.5)),
    ):
        with pytest.raises(DatasetError, match=message):
            datasets.folder(path, **options)  # type: ignore[arg-type]


def test_what_is_left_out_is_counted_by_kind(tmp_path: Path) -> None:
    save_classes(tmp_path, 4)
    for file in ("a/notes.txt", "b/notes.txt", "README", "a/.DS_Store"):
        (tmp_path / file).write_text("hello")
    (tmp_path / "empty").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "loose.png")
    os.mkfifo(tmp_path / "a" / "pipe.png")
    (tmp_path / "b" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    assert datasets.load(tmp_path, whole=True).notes == (
        "left out 7 files: 2 .txt, 1 hidden, 2 not regular, 1 outside of the class folders, 1 without a suffix; "
        "folders without images, or not used: empty",
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


def test_every_format_nested_or_not(tmp_path: Path) -> None:
    for suffix in ("png", "jpg", "jpeg", "webp", "bmp", "tif", "tiff", "gif", "ppm", "tga"):
        for name in ("cat", "dog"):
            save_images(
                tmp_path / name / ("deep" if suffix in ("bmp", "gif") else "") / suffix, 1, (8, 8), suffix=suffix
            )
    data = datasets.load(tmp_path, whole=True)
    assert len(data.X) == 20
    assert {"cat/webp/0.webp", str(Path("dog") / "deep" / "bmp" / "0.bmp")} <= set(data.names)  # type: ignore[arg-type]
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "nothing").mkdir()
    found = list(image_files([tmp_path / "dog" / "png" / "0.png", tmp_path / "cat"]))
    assert len(found) == 11
    assert found[1:] == sorted(found[1:])
    with pytest.raises(DatasetError, match="nothing holds no images that can be read"):
        list(image_files([tmp_path / "nothing"]))


def test_images_as_a_viewer_shows_them(tmp_path: Path) -> None:
    """Transparency, fractions, palettes and a camera's rotation."""
    clear = np.zeros((2, 2, 4), np.uint8)
    clear[0, 0, 3] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # turn a quarter clockwise
    for image, shape, suffix, seen in (
        (Image.fromarray(clear), (2, 2), "png", [[0, 255], [255, 255]]),
        (Image.fromarray(np.array([[0.0, 0.5], [1.0, 0.2]], np.float32)), (2, 2), "tif", [[0, 128], [255, 51]]),
        (Image.fromarray(np.array([[0, 100]], np.uint8)), (2, 1), "png", [[0], [100]]),
    ):
        image.save(tmp_path / f"a.{suffix}", **({"exif": exif} if shape == (2, 1) else {}))
        assert images.read_image(tmp_path / f"a.{suffix}", (1, *shape)).tolist() == [seen]
    Image.new("RGB", (2, 2), (255, 0, 0)).convert("P").save(tmp_path / "p.gif")
    assert images.read_image(tmp_path / "p.gif", (3, 2, 2))[:, 0, 0].tolist() == [255, 0, 0]
    turned = save_classes(tmp_path / "turned", 3, (20, 40), suffix="jpg", exif=exif)
    assert datasets.load(turned).image_shape == (1, 40, 20)


BANNER = [*((300 - i, 400 + i) for i in range(23)), (24, 600)]
COMMONEST, MEDIAN = "(the commonest size, at most 64 a side)", "(their median proportions, at most 64 a side)"


@pytest.mark.parametrize(
    ("of", "size", "why"),
    [
        ([(100, 50)] * 8 + [(60, 60)] * 2, (64, 32), f"64 × 32 {COMMONEST}; 2 of another aspect ratio squashed; asp"),
        (BANNER, (44, 64), f"44 × 64 {MEDIAN}"),  # one banner does not set the size
        ([(10, 20), (11, 22), (12, 24), (20, 10), (22, 11), (24, 12)], (20, 20), MEDIAN),  # standing and lying
    ],
)
def test_the_size_is_the_commonest_or_of_median_proportions(tmp_path: Path, of: Any, size: Any, why: str) -> None:
    for i, (height, width) in enumerate(of):
        (tmp_path / "ab"[i % 2]).mkdir(exist_ok=True)
        Image.new("L", (width, height)).save(tmp_path / "ab"[i % 2] / f"{i:02}.png")
    data = datasets.load(tmp_path)
    assert data.image_shape == (1, *size)
    assert why in data.notes[0]


def test_padding_keeps_proportions(tmp_path: Path) -> None:
    for name in save_classes(tmp_path, 4, (100, 50)).iterdir():
        Image.new("L", (60, 60), 255).save(name / "square.png")
    padded = datasets.load(tmp_path, aspect="pad", size=(64, 32), whole=True)
    assert padded.notes == ("10 images of 10 brought to 64 × 32; 2 of another aspect ratio padded with black",)
    square = padded.X[list(padded.names).index("a/square.png"), 0]  # type: ignore[arg-type]
    np.testing.assert_array_equal(square, np.repeat([0.0, 1.0, 0.0], [16, 32, 16])[:, None] * np.ones(32))


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
