"""Stores that grow: no chunk is taken for one that it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnngp import Conv, Dense, Kernel, ReLU, Sequential, gram
from cnngp.matrix.store.store import GramStore
from helpers.sealed import KERNEL, X, Z
from helpers.tile_count import computed


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
    assert seen[0] is False


def test_images_in_channels_are_sealed_too(tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((40, 2, 4, 4))
    kernel = Kernel(Sequential(Conv(3), ReLU(), Dense()), device="cpu", threads=1)
    K = gram(kernel, images, store=tmp_path / "K", tile=16)
    np.testing.assert_array_equal(K[:], kernel(images))
    assert sorted(p.name for p in (tmp_path / "K/K/seals/0").iterdir()) == ["0", "1", "2"]
