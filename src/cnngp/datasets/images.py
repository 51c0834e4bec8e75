"""Image files to arrays with Pillow, the one place that knows it: folders of classes, and single images to predict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.errors import DatasetError

_SUFFIXES = {".png", ".jpg", ".jpeg"}
_LARGEST = 64


def read_classes(
    path: Path, size: int | Sequence[int] | None = None, channels: int | None = None
) -> tuple[NDArray[np.uint8], NDArray[np.str_]]:
    """All images in `path`'s sub-folders as (N, C, H, W) bytes, and the name of the sub-folder of each.

    Without `channels`, one if every image is grey, else three. Without `size`, the commonest one, at most 64 a side.
    """
    if not path.is_dir():
        raise DatasetError(f"{path} is not a folder")
    files: list[Path] = []
    labels: list[str] = []
    for folder in sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith(".")):
        here = sorted(p for p in folder.iterdir() if p.suffix.lower() in _SUFFIXES and not p.name.startswith("."))
        files += here
        labels += [folder.name] * len(here)
    if len(set(labels)) < 2:
        found = f"images of one class only ({labels[0]})" if labels else "no sub-folders with PNG or JPEG images"
        raise DatasetError(f"{path} has {found}; expected one sub-folder of images per class, and at least two classes")
    heads = [_head(file) for file in files]
    if channels is None:
        channels = 1 if all(grey for _, grey in heads) else 3
    shape = _shape(size) if size is not None else _common_size([dims for dims, _ in heads])
    return np.stack([read_image(file, (channels, *shape)) for file in files]), np.array(labels)


def read_image(path: str | Path, shape: Sequence[int]) -> NDArray[np.uint8]:
    """One image file as (C, H, W) bytes of the given shape; C is 1 (grey) or 3 (colour)."""
    Image, ImageOps = _pillow()
    channels, height, width = shape
    if channels not in (1, 3):
        raise DatasetError(f"{path}: image files have 1 or 3 channels, but the model takes {channels}")
    try:
        with Image.open(path) as image:
            image = _eight_bits(ImageOps.exif_transpose(image), Image).convert("L" if channels == 1 else "RGB")
            if image.size != (width, height):
                image = image.resize((width, height), Image.Resampling.BILINEAR)
            pixels = np.asarray(image, dtype=np.uint8)
    except FileNotFoundError:
        raise DatasetError(f"{path}: no such file") from None
    except Exception as error:  # Pillow's decoders raise many types for broken files
        raise DatasetError(f"{path} is not a readable PNG or JPEG image ({error}); replace or remove it") from None
    return pixels[None] if channels == 1 else np.moveaxis(pixels, 2, 0)


def _eight_bits(image: Any, Image: Any) -> Any:
    """What a viewer shows: transparency over white, 16 bits scaled to 8 where Pillow would cut them off."""
    if image.mode.startswith("I"):
        return Image.fromarray((np.asarray(image, dtype=np.float64) / 257.0).round().clip(0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return image


def _head(path: Path) -> tuple[tuple[int, int], bool]:
    """(height, width) and whether the image is grey, from its header alone."""
    Image, _ = _pillow()
    try:
        with Image.open(path) as image:
            return (image.height, image.width), image.mode in ("1", "L", "LA", "I", "I;16", "F")
    except Exception as error:
        raise DatasetError(f"{path} is not a readable PNG or JPEG image ({error}); replace or remove it") from None


def _shape(size: int | Sequence[int]) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    if height < 1 or width < 1:
        raise DatasetError(f"size={size!r}: expected a positive height and width")
    return height, width


def _common_size(sizes: list[tuple[int, int]]) -> tuple[int, int]:
    """Cost grows with the number of pixels, so photographs are brought down to at most 64 on their longer side."""
    height, width = Counter(sizes).most_common(1)[0][0]
    scale = min(1.0, _LARGEST / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def _pillow() -> tuple[Any, Any]:
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise DatasetError("reading image files needs Pillow: pip install 'cnngp[plots]'") from None
    return Image, ImageOps
