"""Tangent kernels on a Dask cluster: workers compute the kind that was asked for, and a store holds one kind alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("distributed")

from distributed import Client

from cnngp import Kernel, gram
from cnngp.common.errors import StoreError
from helpers.clusters import KERNEL, X

THETA = Kernel(KERNEL.network, device="cpu", threads=1, kind="ntk")


def test_a_tangent_kernel_has_its_own_bits_on_a_cluster_and_its_own_store(
    client: Client, tmp_path: Path, expected: np.ndarray
) -> None:
    theta = gram(THETA, X, store=tmp_path / "theta.zarr", tile=48, client=client)
    np.testing.assert_array_equal(theta[:], THETA(X))
    across = gram(KERNEL.network, X[:40], X[40:], store=tmp_path / "across.zarr", tile=48, client=client, kind="ntk")
    np.testing.assert_array_equal(across[:], THETA(X[:40], X[40:]))
    # The same workers, which have just made Θ, make K of the same network and images.
    K = gram(KERNEL, X, store=tmp_path / "K.zarr", tile=48, client=client)
    np.testing.assert_array_equal(K[:], expected)
    for kernel, place in ((KERNEL, "theta.zarr"), (THETA, "K.zarr")):
        with pytest.raises(StoreError, match="was made for something else: the kernel"):
            gram(kernel, X, store=tmp_path / place, tile=48, client=client)
    np.testing.assert_array_equal(gram(THETA, X, store=tmp_path / "theta.zarr", client=client)[:], theta[:])


def test_what_a_cluster_began_as_one_kind_is_not_finished_as_the_other(client: Client, tmp_path: Path) -> None:
    place = tmp_path / "theta.zarr"
    gram(THETA, X, store=place, tile=48, client=client)
    next((place / "K" / "c" / "1").iterdir()).unlink()  # a tile is missing, as after a kill
    with pytest.raises(StoreError, match="was made for something else: the kernel"):
        gram(KERNEL, X, store=place, tile=48, client=client)
    np.testing.assert_array_equal(gram(THETA, X, store=place, client=client)[:], THETA(X))
