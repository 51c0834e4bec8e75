"""Pictures of what is not an image: signals and volumes."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from cnngp.report import plots


def drawn(pixels: np.ndarray) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(plots.picture(pixels))).convert("L"))


def test_signals_are_drawn_as_curves() -> None:
    ramp = drawn(np.linspace(-1, 1, 40)[None])
    assert ramp.shape == (20, 40)
    assert ramp.any(0).all()  # the curve goes through every column
    assert ramp[-1, 0] == ramp[0, -1] == 255  # from the bottom left to the top right
    assert ramp[0, 0] == ramp[-1, -1] == 0
    both = drawn(np.stack([np.zeros(40), np.ones(40)]))
    assert both[0].all()
    assert both[-1].all()
    assert drawn(np.zeros((1, 5))).shape == (16, 5)  # a flat signal, and a short one


def test_of_volumes_the_middle_slice_is_shown() -> None:
    volume = np.zeros((1, 5, 4, 6))
    volume[0, 2, 1, 3] = 1.0
    shown = drawn(volume)
    assert shown.shape == (4, 6)
    assert shown[1, 3] == 255
