"""Matrices that several files of tests solve."""

from __future__ import annotations

from pathlib import Path

import pytest

from cnngp import gram
from helpers.solves import DIGITS, KERNEL


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 digits in 16 tiles, of which 10 are on or above the diagonal."""
    path = tmp_path_factory.mktemp("solve") / "K.zarr"
    gram(KERNEL, DIGITS.X, store=path, tile=80)
    return path
