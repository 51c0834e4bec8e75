"""Folders of pictures, one sub-folder a class."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

RNG = np.random.default_rng(0)


def save_images(folder: Path, n: int, size: tuple[int, int], mode: str = "L", suffix: str = "png", **how: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(n):
        shape = (*size, 3) if mode == "RGB" else size
        Image.fromarray(RNG.integers(0, 256, shape, dtype=np.uint8)).save(folder / f"{i}.{suffix}", **how)


def save_classes(folder: Path, n: int, size: tuple[int, int] = (8, 8), names: str = "ab", **how: Any) -> Path:
    """So many images of each of the classes, whose names are letters."""
    for name in names:
        save_images(folder / name, n, size, **how)
    return folder
