"""Stores without seals, of the first format, and stores that grow: no chunk is taken for one that it is not."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from cnngp import Conv, Dense, Kernel, ReLU, Sequential, gram, solve
from cnngp.matrix.plan import status
from cnngp.matrix.store.store import GramStore
from helpers.sealed import KERNEL, X, Z, contents, swap
from helpers.tile_count import computed


def as_format_1(store: Path) -> Path:
    """What an earlier version would have written: the same without seals, identity and checksum of the metadata."""
    shutil.rmtree(store / "K/seals")
    document = json.loads((store / "zarr.json").read_text())
    attributes = {k: v for k, v in document["attributes"].items() if k not in ("id", "sha256")}
    (store / "zarr.json").write_text(json.dumps(document | {"attributes": attributes | {"cnngp_gram": 1}}))
    return store


def test_a_store_of_an_earlier_version_is_checked_and_sealed(
    store: Path, cross: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without computing a tile, and the result is what would be written today."""
    for place, others in ((store, None), (cross, Z)):
        whole = contents(place)
        as_format_1(place)
        assert status(place).whole
        with monkeypatch.context() as m:
            m.setattr(GramStore, "write", None)
            np.testing.assert_array_equal(gram(KERNEL, X, others, store=place)[:], KERNEL(X, others))
        assert contents(place) == whole


def test_a_chunk_of_an_earlier_version_that_is_nothing_but_the_checksum_of_nothing(store: Path) -> None:
    whole = contents(store)
    as_format_1(store)
    (store / "K/c/0/0").write_bytes(b"\0\0\0\0")
    assert status(store).damaged == 1
    gram(KERNEL, X, store=store)
    assert contents(store) == whole


def test_nan_in_an_earlier_version_is_damage(store: Path, cross: Path) -> None:
    """Whatever its checksum says: as another program may have written it."""
    for place, others in ((store, None), (cross, Z)):
        as_format_1(place)
        zarr.open_array(place, path="K", mode="r+")[3, 4] = np.nan
        assert status(place).damaged == 1
        np.testing.assert_array_equal(gram(KERNEL, X, others, store=place)[:], KERNEL(X, others))


@pytest.mark.parametrize(("a", "b"), [("0/0", "1/1"), ("2/2", "0/0")])
def test_a_misplaced_tile_of_an_earlier_version_is_found(
    store: Path, cross: Path, a: str, b: str, caplog: pytest.LogCaptureFixture
) -> None:
    for place, others in ((store, None), (cross, Z)):
        whole = contents(place)
        as_format_1(place)
        swap(place, f"K/c/{a}", f"K/c/{b}")
        np.testing.assert_array_equal(gram(KERNEL, X, others, store=place)[:], KERNEL(X, others))
        assert "2 of" in caplog.text
        assert "tiles were damaged and are computed again" in caplog.text
        assert contents(place) == whole


def test_an_earlier_version_that_is_only_read_says_what_it_cannot_know(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    as_format_1(store)
    whole = contents(store)
    with caplog.at_level(logging.WARNING, "cnngp"):
        K = gram(KERNEL, X, store=store, verify=False)
    assert "whose tiles do not say where they belong" in caplog.text
    np.testing.assert_array_equal(K[:], KERNEL(X))
    assert contents(store) == whole
    solution = solve(store, np.ones(100), 0.1, device="cpu")
    np.testing.assert_allclose(KERNEL(X) @ solution.weights + 0.1 * solution.weights, np.ones(100), rtol=1e-6)
    grown = gram(KERNEL, np.concatenate([X, Z]), store=store, verify=False)  # grows as it is
    np.testing.assert_array_equal(grown[:], KERNEL(np.concatenate([X, Z])))
    gram(KERNEL, np.concatenate([X, Z]), store=store)
    assert GramStore(store, read_only=True).sealed


def test_an_upgrade_that_is_killed_is_done_again(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = contents(store)
    as_format_1(store)
    seal = GramStore.seal

    def killed(self: GramStore, i: int, j: int) -> None:
        if (i, j) == (1, 2):
            raise KeyboardInterrupt
        seal(self, i, j)

    with monkeypatch.context() as m:
        m.setattr(GramStore, "seal", killed)
        with pytest.raises(KeyboardInterrupt):
            gram(KERNEL, X, store=store)
    assert not GramStore(store, read_only=True).sealed
    gram(KERNEL, X, store=store)
    assert contents(store) == whole


# ---- growth ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verify", [True, False])
def test_growth_keeps_no_chunk_that_was_cut(cross: Path, verify: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Z, of X and of both: an edge chunk holds NaN where the new images are, verified or not."""
    more_x, more_z = np.concatenate([X, X[:9] + 1]), np.concatenate([Z, Z[:9] + 1])
    for x, z, cut in ((X, more_z, 4), (more_x, more_z, 3)):
        calls = computed(monkeypatch)
        K = gram(KERNEL, x, z, store=cross, verify=verify)
        assert len(calls) == cut
        np.testing.assert_array_equal(K[:], KERNEL(x, z))
        monkeypatch.undo()


def test_chunks_that_growth_cuts_go_before_the_metadata_says_so(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in between, the old matrix lacks its edge; the other way round the new one would have NaN in it."""
    seen: list[bool] = []
    update = GramStore._update

    def look(self: GramStore, attributes: dict[str, Any]) -> None:
        if "X" in attributes:
            seen.append(any((store / f"K/{kind}/{i}/3").exists() for kind in ("c", "seals") for i in range(4)))
        update(self, attributes)

    monkeypatch.setattr(GramStore, "_update", look)
    gram(KERNEL, np.concatenate([X, Z]), store=store)
    assert seen == [False]


def test_images_in_channels_are_sealed_too(tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((40, 2, 4, 4))
    kernel = Kernel(Sequential(Conv(3), ReLU(), Dense()), device="cpu", threads=1)
    K = gram(kernel, images, store=tmp_path / "K", tile=16)
    np.testing.assert_array_equal(K[:], kernel(images))
    assert sorted(p.name for p in (tmp_path / "K/K/seals/0").iterdir()) == ["0", "1", "2"]
