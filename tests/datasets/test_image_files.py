"""Image files that are not what they say: of another kind, larger, shorter, or nothing that can be read to its end."""

import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
from PIL import Image

from cnngp import datasets
from cnngp.common import memory
from cnngp.common.errors import DatasetError
from cnngp.datasets import images

from .conftest import save_classes


@pytest.fixture
def patience() -> Iterator[None]:
    """Ten seconds, for what may wait for ever."""

    def stop(_: int, __: FrameType | None) -> None:
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_too_many_pixels_are_refused_before_they_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.png").write_bytes(b"P5 1 170000000 255\n\0")
    monkeypatch.setattr(Image.Image, "load", None)
    for read in (images.read_head, lambda path: images.read_image(path, (1, 8, 8))):
        with pytest.raises(DatasetError, match=r"a\.png .* 1 × 170,000,000 pixels, more than 40,000,000: max_pixels="):
            read(tmp_path / "a.png")


def test_the_limit_of_pixels_can_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40)  # Pillow's own, which would warn or refuse at less
    save_classes(tmp_path, 2, (10, 10))
    with pytest.raises(DatasetError, match=r"4 of 4 files in .* 10 × 10 pixels, more than 99: max_pixels= \(--max-pix"):
        datasets.load(tmp_path, max_pixels=99)
    assert datasets.load(tmp_path, max_pixels=100).image_shape == (1, 10, 10)
    assert Image.MAX_IMAGE_PIXELS == 40


def encoded(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


PHOTO = encoded(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8), "JPEG")
CUT = PHOTO[: len(PHOTO) // 3]
PAGE = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (CUT + b"\xff\xd9", r"it is cut short: its last rows are mis"),  # with the mark of an end behind it
        (CUT, "truncated"),
        (encoded(np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8))[:-30], "truncated|cut|broken"),
        (encoded(np.array([[0.0, np.nan]], np.float32), "TIFF"), "it holds NaN or infinity"),
        (encoded(np.array([[0.0, np.inf]], np.float32), "TIFF"), "it holds NaN or infinity"),
        (PAGE, "its content is of no kind of image"),  # Pillow would start Ghostscript
    ],
    ids=range(6),
)
def test_content_that_is_no_whole_picture_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(DatasetError, match=rf"the file is not a readable image \(.*({message})"):
        images.read_image(content, (3, 8, 8))


def test_pages_and_films_are_no_pictures_by_their_names() -> None:
    assert not any(images.is_image(Path(f"a.{suffix}")) for suffix in ("eps", "pdf", "wmf", "mpg"))


@pytest.mark.parametrize("shape", [(33, 20, 3), (9, 9)])
def test_whole_pictures_that_end_in_grey_are_read(shape: tuple[int, ...]) -> None:
    found = images.read_image(encoded(np.full(shape, 128, np.uint8), "JPEG"), (1, 8, 8))
    assert (found == found[0, 0, 0]).all()


def test_16_bits_become_8_by_rounding() -> None:
    deep = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    np.testing.assert_array_equal(images.read_image(encoded(deep), (1, 256, 256))[0], np.rint(deep / 257.0))


@pytest.mark.usefixtures("patience")
def test_pipes_and_files_of_the_system_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    os.mkfifo(tmp_path / "pipe.npz")
    for path in (tmp_path / "pipe.png", Path("/proc/self/mem"), Path("/dev/zero"), tmp_path):
        with pytest.raises(DatasetError, match="is not a regular file, but a folder, a pipe, a device or"):
            images.read_image(path, (1, 8, 8))
    with pytest.raises(DatasetError, match="is not a regular file"):
        datasets.load(tmp_path / "pipe.npz")


@pytest.mark.parametrize("size", [5000, None])
def test_images_that_do_not_fit_are_refused_before_the_first_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int | None
) -> None:
    save_classes(tmp_path, 2, (60, 60))
    monkeypatch.setattr(images, "read_deep_image", None)
    if size is not None:
        monkeypatch.setattr(images, "read_head", None)
    free = 10**8 if size else 4 * 60 * 60 * 8 - 1
    monkeypatch.setattr(memory, "available", lambda device="cpu": free)
    needed = "5,000 × 5,000 pixels .* needs 800 MB" if size else "60 × 60 pixels .* needs 115 kB"
    with pytest.raises(MemoryError, match=rf"4 images of {needed} of memory, but"):
        datasets.load(tmp_path, size=size)
