"""A store is the folder that it was when gram began, whatever is done to its name meanwhile."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnngp import Dense, Kernel, gram
from cnngp.common.errors import StoreError
from cnngp.kernel.engines.cpu.engine import CpuEngine
from helpers.sealed import contents
from helpers.stores import KERNEL, TILE, X, expected


def delete(place: Path, other: Path) -> None:
    place.rename(place.with_name("aside"))
    shutil.rmtree(place.with_name("aside"), ignore_errors=True)  # in which a tile may just be written


def replace(place: Path, other: Path) -> None:
    place.rename(place.with_name("aside"))
    shutil.copytree(other, place)


def link(place: Path, other: Path) -> None:
    place.rename(place.with_name("aside"))
    place.symlink_to(other)


@pytest.mark.parametrize("harm", [delete, replace, link])
@pytest.mark.parametrize("tiles", [1, 9, 27])
def test_a_store_whose_name_is_taken_away_while_it_is_filled(
    harm: Any, tiles: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written elsewhere, and nothing is left that the next run would refuse."""
    place, other = tmp_path / "K.zarr", tmp_path / "other.zarr"
    gram(Kernel(Dense(bias_var=1.0), device="cpu", threads=1), X, store=other, tile=TILE)
    whole = contents(other)
    calls: list[int] = []
    monkeypatch.setattr("cnngp.kernel.kernel.compared", lambda *given: None)

    def harmed(original: Any) -> Any:
        def call(*arguments: Any) -> Any:
            calls.append(1)
            if len(calls) == tiles:
                harm(place, other)
            return original(*arguments)

        return call

    with monkeypatch.context() as m:
        for name in ("cross", "symmetric"):
            m.setattr(CpuEngine, name, harmed(getattr(CpuEngine, name)))
        with pytest.raises(StoreError, match=r"K\.zarr was moved, deleted or replaced while it was in use") as caught:
            gram(KERNEL, X, store=place, tile=TILE)
    assert "\n" not in str(caught.value)
    assert contents(other) == whole
    if harm is replace:
        assert contents(place) == whole
        shutil.rmtree(place)
    elif harm is link:
        place.unlink()
    else:
        assert not place.exists()
    np.testing.assert_array_equal(gram(KERNEL, X, store=place, tile=TILE)[:], expected())


def test_metadata_that_is_lost_meanwhile_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, cross = tmp_path / "K.zarr", CpuEngine.cross

    def lose(*arguments: Any) -> Any:
        (place / "zarr.json").unlink(missing_ok=True)
        return cross(*arguments)

    with monkeypatch.context() as m:
        m.setattr(CpuEngine, "cross", lose)
        gram(KERNEL, X, store=place, tile=TILE)
    np.testing.assert_array_equal(gram(KERNEL, X, store=place)[:], expected())
