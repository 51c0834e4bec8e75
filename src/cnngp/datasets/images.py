"""Image files to arrays with Pillow, the one place that knows it."""

from __future__ import annotations

import functools
import io
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from cnngp.common.errors import DatasetError, is_whole
from cnngp.common.files import check_regular

Size = int | tuple[int, int]
"""Height and width, or one number for both."""
Aspect = Literal["squash", "pad"]
"""What becomes of an image of another shape than the one wanted: it is squashed, or padded with black at two sides."""

# Pillow goes by the content of a file and not by its name, and may try these formats alone: of the others, EPS starts
# another program (Ghostscript), and some are films, pages or several images of different sizes.
_FORMATS = (
    *("AVIF", "BMP", "DIB", "GIF", "JPEG", "JPEG2000", "MPO"),
    *("PCX", "PNG", "PPM", "SGI", "TGA", "TIFF", "WEBP"),
)
MAX_PIXELS = 40_000_000
"""Limit of one image file, checked before decoding: a few bytes may claim any size and take the memory for it."""
_ORIENTATION = 0x0112
_TURNED = (5, 6, 7, 8)  # by a quarter, so that height and width change places
_GREY = ("1", "L", "LA", "I", "I;16", "I;16B", "F")
_END_OF_JPEG = b"\xff\xd9"
_PILLOWS_LIMIT = threading.Lock()


class Head(NamedTuple):
    """Size and kind of an image file by its header, in the orientation in which a viewer shows it."""

    height: int
    width: int
    grey: bool


@functools.cache
def _formats() -> tuple[str, ...]:
    """Those that this Pillow was built with."""
    Image.init()
    return tuple(kind for kind in _FORMATS if kind in Image.OPEN)


def is_image(path: Path) -> bool:
    """Whether a file is one that is read as a picture, by its name."""
    return Image.registered_extensions().get(path.suffix.lower()) in _formats()


def read_head(path: Path, max_pixels: int = MAX_PIXELS) -> Head:
    with _opened(path, max_pixels) as image:
        height, width = image.height, image.width
        if image.getexif().get(_ORIENTATION) in _TURNED:
            height, width = width, height
        return Head(height, width, image.mode in _GREY)


def read_image(
    source: str | Path | bytes, shape: Sequence[int], aspect: Aspect = "squash", max_pixels: int = MAX_PIXELS
) -> NDArray[np.uint8]:
    """One image file, or its content, as (C, H, W) bytes of the given shape; C is 1 (grey) or 3 (colour)."""
    return read_deep_image(source, shape, aspect, max_pixels)[0]


def read_deep_image(
    source: str | Path | bytes, shape: Sequence[int], aspect: Aspect = "squash", max_pixels: int = MAX_PIXELS
) -> tuple[NDArray[np.uint8], int | None]:
    """`read_image`, and the largest value of a file that has 16 bits for one; None for other files."""
    channels, height, width = shape
    if channels not in (1, 3):
        raise DatasetError(f"{_name(source)}: image files have 1 or 3 channels, but the model takes {channels}")
    with _opened(source, max_pixels) as image:
        image.load()
        _check_whole(image, source)
        largest = int(np.asarray(image).max(initial=0)) if image.mode.startswith("I") else None
        shown = _eight_bits(ImageOps.exif_transpose(image)).convert("L" if channels == 1 else "RGB")
        if shown.size != (width, height) and aspect == "pad":
            shown = ImageOps.pad(shown, (width, height), Image.Resampling.BILINEAR)
        elif shown.size != (width, height):
            shown = shown.resize((width, height), Image.Resampling.BILINEAR)
        return _channels_first(shown), largest


def as_shown(image: Image.Image) -> NDArray[np.uint8]:
    """An image that Pillow has opened as (C, H, W) bytes; C is 1 (grey) or 3 (colour)."""
    return _channels_first(_eight_bits(image).convert("L" if image.mode in _GREY else "RGB"))


def _channels_first(image: Any) -> NDArray[np.uint8]:
    pixels = np.asarray(image, dtype=np.uint8)
    return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, 2, 0)


def check_size(size: Any) -> tuple[int, int]:
    """`size=` of a user as (height, width).

    >>> check_size(32), check_size("48x64")
    ((32, 32), (48, 64))
    """
    parts: Any = size
    if isinstance(size, str):
        words = re.split(r"[x×,]", size.strip())
        parts = [int(word) if word.strip().isdecimal() else word for word in words]
    elif not isinstance(size, (tuple, list)):
        parts = [size]
    pair = list(parts) * 2 if len(parts) == 1 else list(parts)
    if len(pair) != 2 or not all(is_whole(n, least=1) for n in pair):
        raise DatasetError(f"size={size!r}: expected a height and a width such as 48x64, or one number for both")
    return int(pair[0]), int(pair[1])


def check_aspect(aspect: object) -> None:
    if aspect not in get_args(Aspect):
        raise DatasetError(f"aspect={aspect!r}: expected 'squash' or 'pad'")


def check_max_pixels(max_pixels: object) -> None:
    if not is_whole(max_pixels, least=1):
        raise DatasetError(f"max_pixels={max_pixels!r}: expected the most pixels that an image file may have")


@contextmanager
def _opened(source: str | Path | bytes, max_pixels: int) -> Iterator[Image.Image]:
    """An image before its pixels are decoded: of a regular file, in a known format, with no more pixels than allowed.

    What goes wrong then or later, for which Pillow's decoders have many types of errors, is one line.
    """
    if not isinstance(source, bytes):
        check_regular(Path(source))
    try:
        with _open(source) as image:
            if image.width * image.height > max_pixels:
                raise ValueError(
                    f"it has {image.width:,} × {image.height:,} pixels, more than {max_pixels:,}: "
                    "max_pixels= (--max-pixels) allows more"
                )
            yield image
    except DatasetError:
        raise
    except Exception as error:
        reason = " ".join(str(error).replace(repr(str(source)), "").split()) or type(error).__name__
        if isinstance(error, Image.UnidentifiedImageError):
            reason = "its content is of no kind of image that is read"
        raise DatasetError(f"{_name(source)} is not a readable image ({reason}); replace or remove it") from None


def _name(source: str | Path | bytes) -> str:
    return "the file" if isinstance(source, bytes) else str(source)


def _open(source: str | Path | bytes) -> Image.Image:
    """Opened without Pillow's own limit, which warns first and cannot be set for one file."""
    file: Any = io.BytesIO(source) if isinstance(source, bytes) else source
    with _PILLOWS_LIMIT:
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            return Image.open(file, formats=_formats())
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def _check_whole(image: Image.Image, source: str | Path | bytes) -> None:
    """Refuse a JPEG that ends before its last row and has the mark of its end all the same, which Pillow fills with
    grey. Bytes before the mark change nothing behind the last row, and are read before it; few are read twice."""
    width, height = image.size
    last = image.crop((max(width - 4, 0), height - 1, width, height))
    if image.format != "JPEG" or any(low != high for low, high in np.reshape(last.getextrema(), (-1, 2))):
        return
    jpeg = source if isinstance(source, bytes) else Path(source).read_bytes()
    end = jpeg.rfind(_END_OF_JPEG)
    with _open(jpeg[:end] + 64 * b"\x5a\xa5\x33\xcc" + jpeg[end:]) as longer:
        if longer.tobytes() != image.tobytes():
            raise ValueError("it is cut short: its last rows are missing")


def _eight_bits(image: Any) -> Any:
    """What a viewer shows: transparency over white; 16 bits and fractions scaled to 8, where Pillow would cut."""
    if image.mode.startswith("I"):
        deep = np.asarray(image).clip(0, 65_535).astype(np.uint32)
        return Image.fromarray(((deep + 128) // 257).astype(np.uint8))
    if image.mode == "F":
        pixels = np.asarray(image, dtype=np.float64)
        if not np.isfinite(pixels).all():
            raise ValueError("it holds NaN or infinity")
        scale = 255.0 if float(pixels.max(initial=0.0)) <= 1.0 else 1.0
        return Image.fromarray((scale * pixels).round().clip(0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return image
