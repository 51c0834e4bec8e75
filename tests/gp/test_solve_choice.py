"""Which method `solve` chooses, what it refuses, and matrices on cards and clusters."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cnngp import gram
from cnngp.common import memory
from cnngp.common.errors import StoreError
from cnngp.gp import solve
from cnngp.gp.exact import ExactGP
from cnngp.gp.solving import solve_matrix
from cnngp.gp.solving.matrices import SymmetricMatrix
from helpers import fake_cupy
from helpers.solves import DIGITS, KERNEL, targets


@pytest.mark.parametrize(("free", "method"), [(720_000, "cholesky"), (719_999, "cg")])
def test_auto_takes_what_fits(stored: Path, monkeypatch: pytest.MonkeyPatch, free: int, method: str) -> None:
    monkeypatch.setattr(memory, "available", lambda device="cpu": free)
    assert solve(stored, targets(), 0.01, device="cpu").method == method


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "lu"}, "method='lu' is not one of 'auto', 'cholesky', 'cg'"),
        ({"noise": -1.0}, "noise=-1.0: expected a variance"),
        ({"noise": "ml"}, "noise='ml': expected a variance"),
        ({"tolerance": 2.0}, "tolerance=2.0: expected a number between 0 and 1"),
        ({"device": "tpu"}, "device='tpu' is not"),
        ({"Y": np.ones(5)}, r"shape of the targets is \(5, 1\); expected \(4 points"),
        ({"store": np.ones((3, 4))}, r"shape \(3, 4\); expected \(N, N\)"),
        ({"store": np.diag([1.0, np.nan, 1.0, 1.0])}, "contains NaN or infinity"),
        ({"store": np.diag([1.0, -1.0, 1.0, 1.0])}, "negative numbers on its diagonal"),
        ({"client": SimpleNamespace(scatter=0, map=0, gather=0)}, "client= needs a matrix in a store"),
        ({"client": "tcp://host:8786"}, "client='tcp://host:8786': expected a dask.distributed.Client"),
        ({"method": ["cg"]}, r"method=\['cg'\] is not one of"),
        ({"noise": [0.1]}, r"noise=\[0.1\]: expected a variance"),
        ({"tolerance": "1e-6"}, "tolerance='1e-6': expected a number between 0 and 1"),
        ({"rank": -1}, "rank=-1: expected a whole number of 0 or more, or None"),
        ({"rank": 2.5}, "rank=2.5: expected a whole number"),
        ({"iterations": 0}, "iterations=0: expected a whole number of 1 or more"),
        ({"iterations": None}, "iterations=None: expected a whole number"),
        ({"checkpoint": 3}, "checkpoint=3: expected the path of a file, or None"),
        ({"checkpoint": ""}, "checkpoint='': expected the path of a file"),
        ({"Y": np.ones(4) + 0j}, "^Y has type complex128; expected real numbers$"),
        ({"Y": [1, "2", 3, 4]}, "^Y has type <U21; expected real numbers$"),
        ({"store": np.eye(4) + 0j}, "^the kernel matrix has type complex128; expected real numbers$"),
        ({"store": np.eye(4).astype("S8")}, r"^the kernel matrix has type \|S8; expected real numbers$"),
        ({"store": np.full((4, 4), "1", object)}, "^the kernel matrix holds Python objects that are not all real"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    good = {"store": np.eye(4), "Y": np.ones(4), "noise": 0.1, "method": "cg", "device": "cpu"}
    for method in ("cg", "cholesky") if {"Y", "store"} & set(arguments) and "has type" in message else ("cg",):
        with pytest.raises(ValueError, match=message) as caught:
            solve(**(good | {"method": method} | arguments))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["cholesky", "cg"])
def test_any_library_and_any_real_type(method: Any) -> None:
    K = np.diag([1.0, 2.0, 3.0]) + 1.0
    expected = np.linalg.solve(K + 0.5 * np.eye(3), [1.0, 2.0, 3.0])
    torch_K = torch.tensor(K, requires_grad=True)
    for matrix in (K.astype(np.float32), K.astype(np.int64), K.astype(object), K.tolist(), torch_K):
        Y = torch.tensor([1.0, 2.0, 3.0]) if matrix is torch_K else [1, 2, 3]
        options = {"rank": np.int64(1), "iterations": np.int32(50), "tolerance": np.float64(1e-10)}
        for noise in (np.float32(0.5), np.array(0.5), torch.tensor(0.5)):
            found = solve(matrix, Y, noise, method, device="cpu", **options)
            np.testing.assert_allclose(found.weights, expected, rtol=1e-8)


def test_stores_that_cannot_be_solved(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is no store of a kernel matrix; compute it there with gram"):
        solve(tmp_path / "nothing.zarr", targets(), 0.1)
    assert not (tmp_path / "nothing.zarr").exists()
    gram(KERNEL, DIGITS.X[:40], DIGITS.X[40:60], store=tmp_path / "cross.zarr")
    with pytest.raises(StoreError, match="matrix of two sets of images"):
        solve(tmp_path / "cross.zarr", targets(40), 0.1)
    K = gram(KERNEL, DIGITS.X[:60], store=tmp_path / "K.zarr", tile=32)
    chunk = tmp_path / "K.zarr" / "K" / "c" / "0" / "1"
    data = bytearray(chunk.read_bytes())
    data[100] ^= 1
    chunk.write_bytes(bytes(data))
    with pytest.raises(StoreError, match=r"cannot be used: its checksum is wrong; run gram on the store again"):
        solve(K, targets(60), 0.1, "cg", device="cpu")
    chunk.unlink()
    with pytest.raises(StoreError, match="lacks 1 of 3 tiles; run gram"):
        solve(tmp_path / "K.zarr", targets(60), 0.1)
    with pytest.raises(StoreError, match=r"chunk \(0, 1\) .* cannot be used: it is not there; run gram"):
        solve(K, targets(60), 0.1, "cg", device="cpu")


@pytest.mark.parametrize("method", ["cg", "cholesky"])
def test_arrays_on_a_card_take_the_same_path(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    K, Y = KERNEL(DIGITS.X[:100]), targets(100)
    fake_cupy.install(monkeypatch)
    monkeypatch.setattr(memory, "available", lambda device="cpu": None)
    here = solve_matrix(SymmetricMatrix(K), Y, 0.01, method)
    there = solve_matrix(SymmetricMatrix(fake_cupy.ndarray(K)), fake_cupy.ndarray(Y), 0.01, method)
    assert isinstance(there.weights, fake_cupy.ndarray)
    np.testing.assert_allclose(there.weights.get(), here.weights, rtol=1e-8, atol=1e-10)


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["auto", "cg", "cholesky"])
def test_on_a_real_card(stored: Path, method: Any) -> None:
    cupy = pytest.importorskip("cupy")
    exact = ExactGP(KERNEL(DIGITS.X), targets(), noise=0.01).alpha
    K = KERNEL(DIGITS.X)
    tensors = [torch.as_tensor(K, device="cuda")] if torch.cuda.is_available() else []
    for matrix in (stored, K, cupy.asarray(K), *tensors):
        found = solve(matrix, targets(), cupy.asarray(0.01), method, device="cuda")
        assert found.converged
        assert isinstance(found.weights, np.ndarray)
        np.testing.assert_allclose(found.weights, exact, atol=1e-6 * np.abs(exact).max())


def test_workers_multiply_rows_of_tiles(stored: Path) -> None:
    distributed = pytest.importorskip("distributed")
    alone = solve(stored, targets(), 0.01, "cg", device="cpu")
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
    ):
        found = solve(stored, targets(), 0.01, client=client, device="cpu")
    assert found.method == "cg"
    np.testing.assert_allclose(found.weights, alone.weights, rtol=1e-7, atol=1e-9)
