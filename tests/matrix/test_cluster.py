"""Kernel matrices on a Dask cluster of real processes: the same bits, and the cost of a million images."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

pytest.importorskip("distributed")

from distributed import Client

import cnngp
from cnngp import Kernel, datasets, gram
from cnngp.cli import run
from cnngp.matrix.cluster import cluster
from cnngp.matrix.cluster import worker as cluster_worker
from cnngp.matrix.plan import status
from helpers.clusters import KERNEL, SLOW, X, names, wait_for_chunks


def seen_by_worker() -> tuple[int, int, int]:
    """Sites on this worker, images that it holds, and the threads of its engine."""
    sites = cluster_worker._sites
    held = sum(len(block) for block in sites[0].x._kept.values()) if sites else 0
    return len(sites), held, sites[0].lanes[0].engine.threads if sites else 0


def test_the_matrix_of_a_cluster_is_the_kernels_own(
    client: Client, tmp_path: Path, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int, int]] = []
    let_go = cluster.Crew._release

    def look_first(crew: Any) -> None:
        seen.extend(client.run(seen_by_worker).values())
        let_go(crew)

    monkeypatch.setattr(cluster.Crew, "_release", look_first)
    place = tmp_path / "K.zarr"
    K = gram(KERNEL, X, store=place, tile=16, client=client)
    assert isinstance(K, zarr.Array)
    np.testing.assert_array_equal(K[:], expected)
    assert status(place).whole
    assert names(place) == [".lock", "K", "c", "seals", "zarr.json", "zarr.json"]  # images and mark are gone
    assert [site for site, _, _ in seen] == [1, 1]  # both took part
    assert all(0 < held <= len(X) for _, held, _ in seen)  # no image twice
    assert [threads for _, _, threads in seen] == [1, 1]
    assert [site for site, _, _ in client.run(seen_by_worker).values()] == [0, 0]  # the images are let go


def with_memory(dask_worker: Any, limit: int | None) -> int | None:
    """A machine of 64 TB, and a limit for the worker; gives the limit before. None for the machine's own memory."""
    before: int | None = dask_worker.memory_manager.memory_limit
    if limit is None:
        cluster_worker.memory = cnngp.common.memory
    else:
        cluster_worker.memory = types.SimpleNamespace(available=lambda device: 64 << 40)
        dask_worker.memory_manager.memory_limit = limit
    return before


def room_for_images() -> list[int]:
    """Bytes of images that each set may take."""
    site = cluster_worker._sites[0]
    return [r.room + sum(b.nbytes for b in r._kept.values()) for r in (site.x, site.z) if r is not None]


def test_images_take_an_eighth_of_a_workers_memory_limit(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask pauses a worker that comes near its limit, whatever the machine has."""
    monkeypatch.setattr(cluster.Crew, "_release", lambda crew: None)
    limit = 32 << 30
    before = client.run(with_memory, limit=limit)
    try:
        for z, rooms in ((None, [limit // 8]), (X[:8], [limit // 16] * 2)):
            gram(KERNEL, X, z, store=tmp_path / f"{z is None}", tile=(8, 8), client=client)
            assert list(client.run(room_for_images).values()) == [rooms, rooms]
    finally:
        for worker, own in before.items():
            client.run(with_memory, limit=own, workers=[worker])
        client.run(with_memory, limit=None)
        client.run(cluster_worker.release)


def test_only_what_is_missing_or_damaged_is_computed(
    client: Client, tmp_path: Path, expected: Any, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "K.zarr"
    gram(KERNEL, X[:100], store=place, tile=32)
    (place / "K/c/1/0").unlink()
    (place / "K/c/2/2").write_bytes(b"broken")
    kept = (place / "K/c/0/1").stat().st_mtime_ns
    np.testing.assert_array_equal(gram(KERNEL, X[:100], store=place, client=client)[:], expected[:100, :100])
    assert "1 of 10 tiles were damaged" in caplog.text
    (place / "K/c/0/2").unlink()
    unmoved = (place / "K/c/1/1").stat().st_mtime_ns
    np.testing.assert_array_equal(gram(KERNEL, X, store=place, client=client)[:], expected)  # grown
    assert (place / "K/c/1/1").stat().st_mtime_ns == unmoved
    assert (place / "K/c/0/1").stat().st_mtime_ns != kept  # its mirror image was missing


def test_two_sets_and_a_url(client: Client, tmp_path: Path) -> None:
    K = gram(KERNEL, X, X[:40], store=f"file://{tmp_path}/K.zarr", tile=(32, 16), client=client)
    np.testing.assert_array_equal(K[:], KERNEL(X, X[:40]))
    assert not (tmp_path / "K.zarr/images").exists()


def test_a_relative_path_and_a_python_function(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    network = cnngp.Sequential(cnngp.Conv(3), cnngp.Elementwise(lambda v: np.tanh(v)), cnngp.Dense())
    kernel = Kernel(network, device="cpu")
    K = gram(kernel, X[:40], store="K.zarr", tile=16, client=client)
    np.testing.assert_array_equal(K[:], kernel(X[:40]))


def test_the_command_is_interrupted_and_goes_on(client: Client, tmp_path: Path, capsys: Any) -> None:
    place = tmp_path / "K.zarr"
    arguments = ["gram", "--store", str(place), "--scheduler", client.scheduler.address, "--device", "cpu"]
    arguments += ["--network", "resnet14", "--train", "200", "--tile", "8"]
    command = [sys.executable, "-m", "cnngp", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_chunks(place, 12)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert re.search(r"cluster +tcp://\S+, 2 workers, 2 threads", out)
    assert errors.count("\n") == 1
    assert re.search(r"interrupted; \d+ of 325 tiles are there and stay valid", errors)
    assert not (place / "images").exists()
    assert run([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["shape"] == [200, 200]
    K = zarr.open_array(place, path="K", mode="r")
    np.testing.assert_array_equal(K[:], SLOW(datasets.digits().X[:200]))


# Pairs per second of resnet(32) on one H200 (docs/gpu.md).
RATE = 98.9e6


MILLION = 1_000_000


@pytest.mark.parametrize("images", [200_000, pytest.param(MILLION, marks=pytest.mark.slow)])
def test_a_million_images_cost_the_client_little(images: int, tmp_path: Path) -> None:
    """Client, scheduler and workers in one process, an engine that computes nothing: all of it under 1 GB, and for one
    million images under 1 % of the time of one card, by processor time, which other programs disturb little.
    """
    script = Path(__file__).parents[1] / "helpers" / "cluster_scale.py"
    command = [sys.executable, str(script), str(images), "4096", str(tmp_path / "K.zarr")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    side = -(-images // 4096)
    assert found["tiles"] == side * (side + 1) // 2
    assert found["once"]
    assert found["shape"] == [images, images]
    assert found["peak_bytes"] < 1e9
    assert found["tasks"] < 200 + found["tiles"] / 16
    expected = images * (images - 1) / 2 / RATE
    print(f"{found}; {found['processor'] / expected:.2%} of {expected:.0f} s")
    if images == MILLION:
        assert found["processor"] < 0.01 * expected
