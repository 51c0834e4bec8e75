"""Image files that are not what they say: of another kind, larger, shorter, or nothing that can be read to its end."""

import io
import os
import signal
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
from PIL import Image

from cnngp import datasets
from cnngp.common import memory
from cnngp.common.errors import DatasetError
from cnngp.datasets import images

from .conftest import RNG, save_classes


def png(width: int, height: int, rows: int) -> bytes:
    """A grey PNG whose data, complete in themselves, hold so many of its rows."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(rows * (b"\0" + width * b"\1")))
    return b"\x89PNG\r\n\x1a\n" + header + data + chunk(b"IEND", b"")


def jpeg(pixels: np.ndarray, cut: float = 1.0) -> bytes:
    """A JPEG, or the first part of one with the mark of an end behind it."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG")
    return out.getvalue() if cut == 1.0 else out.getvalue()[: int(cut * len(out.getvalue()))] + b"\xff\xd9"


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


def test_a_page_that_is_called_a_picture_starts_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = tmp_path / "started"
    (tmp_path / "bin").mkdir()
    ghostscript = tmp_path / "bin" / "gs"
    ghostscript.write_text(f"#!/bin/sh\ntouch {started}\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    page = tmp_path / "photo.png"
    page.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n")
    with pytest.raises(DatasetError, match=r"photo\.png is not a readable image \(its content is of no kind of image"):
        images.read_image(page, (1, 8, 8))
    assert not started.exists()
    assert not any(images.is_image(page.with_suffix(suffix)) for suffix in (".eps", ".pdf", ".wmf", ".mpg"))


@pytest.mark.parametrize("read", [images.read_head, lambda path: images.read_image(path, (1, 8, 8))])
def test_more_pixels_than_allowed_are_refused_before_they_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], object]
) -> None:
    (tmp_path / "a.png").write_bytes(png(1, 170_000_000, 1))
    monkeypatch.setattr(Image.Image, "load", None)
    with pytest.raises(DatasetError, match=r"a\.png .* 1 × 170,000,000 pixels, more than 40,000,000: max_pixels="):
        read(tmp_path / "a.png")


def test_the_limit_of_pixels_can_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40)  # Pillow's own, which would warn or refuse at less
    save_classes(tmp_path, 2, (10, 10))
    with pytest.raises(DatasetError, match=r"4 of 4 files in .* 10 × 10 pixels, more than 99: max_pixels= \(--max-pix"):
        datasets.load(tmp_path, max_pixels=99)
    assert datasets.load(tmp_path, max_pixels=100).image_shape == (1, 10, 10)
    assert Image.MAX_IMAGE_PIXELS == 40
    with pytest.raises(DatasetError, match="max_pixels=0: expected the most pixels"):
        datasets.load(tmp_path, max_pixels=0)


def test_pictures_without_their_last_rows_are_refused() -> None:
    cut = jpeg(RNG.integers(0, 256, (64, 64, 3), np.uint8), 0.3)
    for content, message in ((cut, r"it is cut short: its last rows are mis"), (cut[:-2], "truncated"),
                             (png(64, 64, 64)[:-30], "truncated|cut|broken")):  # fmt: skip
        with pytest.raises(DatasetError, match=rf"the file is not a readable image \(.*({message})"):
            images.read_image(content, (3, 8, 8))
    for shape in ((33, 20, 3), (9, 9)):  # whole, though they end in grey
        found = images.read_image(jpeg(np.full(shape, 128, np.uint8)), (1, 8, 8))
        assert (found == found[0, 0, 0]).all()


def test_fractions_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    for value in (np.nan, np.inf):
        Image.fromarray(np.array([[0.0, value]], np.float32)).save(tmp_path / "f.tif")
        with pytest.raises(DatasetError, match=r"f\.tif is not a readable image \(it holds NaN or infinity\)"):
            images.read_image(tmp_path / "f.tif", (1, 1, 2))


def test_16_bits_become_8_by_rounding() -> None:
    deep = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    out = io.BytesIO()
    Image.fromarray(deep).save(out, "PNG")
    np.testing.assert_array_equal(images.read_image(out.getvalue(), (1, 256, 256))[0], np.rint(deep / 257.0))


@pytest.mark.usefixtures("patience")
def test_pipes_and_files_of_the_system_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    os.mkfifo(tmp_path / "pipe.npz")
    for path in (tmp_path / "pipe.png", Path("/proc/self/mem"), Path("/dev/zero"), tmp_path):
        with pytest.raises(DatasetError, match="is not a regular file, but a folder, a pipe, a device or"):
            images.read_image(path, (1, 8, 8))
    with pytest.raises(DatasetError, match="is not a regular file"):
        datasets.load(tmp_path / "pipe.npz")
    with pytest.raises(DatasetError, match="/proc is not a folder of files"):
        datasets.load("/proc")


def test_pipes_in_folders_are_counted(tmp_path: Path) -> None:
    save_classes(tmp_path, 2)
    os.mkfifo(tmp_path / "a" / "pipe.png")
    (tmp_path / "b" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    assert datasets.load(tmp_path, whole=True).notes == ("left out 2 files: 2 not regular",)


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
