"""Image files to arrays with Pillow, the one place that knows it."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from cnngp.common.checks import is_whole
from cnngp.common.errors import DatasetError

Size = int | tuple[int, int]
"""Height and width, or one number for both."""
Aspect = Literal["squash", "pad"]
"""What becomes of an image of another shape than the one wanted: it is squashed, or padded with black at two sides."""

# Pillow knows the suffixes of these, but they are films or pages that it cannot read by itself.
_NOT_PICTURES = {"EPS", "MPEG", "PDF", "WMF"}
_ORIENTATION = 0x0112
_TURNED = (5, 6, 7, 8)  # by a quarter, so that height and width change places
_GREY = ("1", "L", "LA", "I", "I;16", "I;16B", "F")


class Head(NamedTuple):
    """What the header of an image file says, seen as a viewer shows the image."""

    height: int
    width: int
    grey: bool


@functools.cache
def suffixes() -> frozenset[str]:
    """Of the files that Pillow reads as pictures, in small letters."""
    Image.init()
    known = Image.registered_extensions().items()
    return frozenset(s for s, kind in known if kind in Image.OPEN and kind not in _NOT_PICTURES)


def is_image(path: Path) -> bool:
    """By its name."""
    return path.suffix.lower() in suffixes()


def read_head(path: Path) -> Head:
    try:
        with Image.open(path) as image:
            height, width = image.height, image.width
            if image.getexif().get(_ORIENTATION) in _TURNED:
                height, width = width, height
            return Head(height, width, image.mode in _GREY)
    except Exception as error:
        raise unreadable(path, error) from None


def read_image(path: str | Path, shape: Sequence[int], aspect: Aspect = "squash") -> NDArray[np.uint8]:
    """One image file as (C, H, W) bytes of the given shape; C is 1 (grey) or 3 (colour)."""
    return read_deep_image(path, shape, aspect)[0]


def read_deep_image(
    path: str | Path, shape: Sequence[int], aspect: Aspect = "squash"
) -> tuple[NDArray[np.uint8], int | None]:
    """`read_image`, and the largest value of a file that has 16 bits for one; None for other files."""
    channels, height, width = shape
    if channels not in (1, 3):
        raise DatasetError(f"{path}: image files have 1 or 3 channels, but the model takes {channels}")
    try:
        with Image.open(path) as image:
            deep = image.mode.startswith("I")
            largest = int(np.asarray(image).max(initial=0)) if deep else None
            shown = _eight_bits(ImageOps.exif_transpose(image)).convert("L" if channels == 1 else "RGB")
            if shown.size != (width, height):
                resize = ImageOps.pad if aspect == "pad" else _squash
                shown = resize(shown, (width, height), Image.Resampling.BILINEAR)
            pixels = np.asarray(shown, dtype=np.uint8)
    except FileNotFoundError:
        raise DatasetError(f"{path}: no such file") from None
    except Exception as error:  # Pillow's decoders raise many types for broken files
        raise unreadable(path, error) from None
    return pixels[None] if channels == 1 else np.moveaxis(pixels, 2, 0), largest


def unreadable(path: str | Path, error: Exception) -> DatasetError:
    reason = str(error).replace(repr(str(path)), "").strip() or type(error).__name__
    return DatasetError(f"{path} is not a readable image ({reason}); replace or remove it")


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


def _squash(image: Image.Image, size: tuple[int, int], method: Image.Resampling) -> Image.Image:
    return image.resize(size, method)


def _eight_bits(image: Any) -> Any:
    """What a viewer shows: transparency over white; 16 bits and fractions scaled to 8, where Pillow would cut."""
    if image.mode.startswith("I"):
        return Image.fromarray((np.asarray(image, dtype=np.float64) / 257.0).round().clip(0, 255).astype(np.uint8))
    if image.mode == "F":
        pixels = np.asarray(image, dtype=np.float64)
        scale = 255.0 if float(pixels.max(initial=0.0)) <= 1.0 else 1.0
        return Image.fromarray((scale * pixels).round().clip(0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return image
