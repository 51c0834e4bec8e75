"""Several engines at one matrix, as on a machine with several cards; and matrices that stay where they are computed."""

import sys
import threading
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cnngp import Conv, Dense, Kernel, ReLU, Sequential, gram
from cnngp.common.arrays import to_numpy
from cnngp.common.tiles import Grid
from cnngp.kernel.engines.cpu.engine import CpuEngine
from cnngp.matrix.fill import Lane, fill, lanes
from cnngp.matrix.images import ImageRows
from cnngp.matrix.store.store import GramStore
from helpers import fake_cupy

NET = Sequential(Conv(3), ReLU(), Dense())
X = np.random.default_rng(0).random((37, 1, 4, 4), dtype=np.float32)


@pytest.fixture
def kernel() -> Kernel:
    return Kernel(NET, device="cpu", threads=1)


def begun(kernel: Kernel, place: Path, tile: int) -> None:
    """A store without its tiles."""
    gram(kernel, X, store=place, tile=tile)
    for path in place.glob("K/c/*/*"):
        path.unlink()


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("bad", [0, 3, -1])
def test_an_error_of_the_writer_is_never_swallowed(kernel: Kernel, bad: int, lanes: int) -> None:
    """It comes a tile later than the tile, and that of the last one after all of them."""
    grid, written = Grid((37, 37), (4, 4), True), []
    wrong = list(grid)[bad]

    def write(tile: Any, block: Any) -> None:
        written.append(tile)
        if tile == wrong:
            raise OSError("the disk")

    with pytest.raises(OSError, match="the disk"):
        fill(grid, [Lane(kernel.engine_for(X.shape[1:]))] * lanes, ImageRows(X, kernel, "X"), None, write, lambda _: 0)
    assert bad < 0 or lanes > 1 or len(written) < 15  # of 55; another lane goes on until this one is told


def test_a_processor_with_several_threads_has_two_lanes_that_share_them(tmp_path: Path) -> None:
    assert len(lanes(Kernel(NET, device="cpu", threads=1), X.shape[1:])) == 1
    several = Kernel(NET, device="cpu", threads=3)
    first, second = lanes(several, X.shape[1:])
    assert first.engine is second.engine
    assert len(lanes(several, X.shape[1:], most=1)) == 1
    np.testing.assert_array_equal(gram(several, X, store=tmp_path / "K", tile=4)[:], several(X))


# ---- cards ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def three_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy's look with three cards, the last of another kind. Arrays know their card, and only that may read them."""
    entered = threading.local()

    def now() -> int:
        return getattr(entered, "cards", [0])[-1]

    class Device:
        def __init__(self, k: int) -> None:
            self.k = k

        def __enter__(self) -> None:
            entered.cards = [*getattr(entered, "cards", [0]), self.k]

        def __exit__(self, *_: object) -> None:
            entered.cards.pop()

    class Array(fake_cupy.ndarray):
        def __init__(self, a: Any) -> None:
            super().__init__(a)
            self.device = Device(now())

        def get(self) -> Any:
            assert self.device.k == now()
            return self._a

    class Engine(CpuEngine):
        def __init__(self, program: Any, dtype: str, devices: list[int]) -> None:
            super().__init__(program, dtype, threads=1)
            self.card, self.tiles = devices[0], 0
            self.identity = "other" if self.card == 2 else "card"

        def cross(self, x: Any, z: Any, output: str, advance: Any) -> Any:
            assert x.device.k == z.device.k == self.card == now()
            assert output == "cupy"
            self.tiles += 1
            threading.Event().wait(0.01)
            return Array(super().cross(x._a, z._a, "numpy", advance))

        def symmetric(self, x: Any, output: str, advance: Any) -> Any:
            return Array(super().symmetric(x._a, "numpy", advance))

    monkeypatch.setattr(fake_cupy, "ndarray", Array)
    modules = fake_cupy.modules()
    runtime = types.SimpleNamespace(getDeviceCount=lambda: 3)
    modules["cupy"].cuda = types.SimpleNamespace(Device=Device, runtime=runtime)  # type: ignore[attr-defined]
    fake_cupy.install(monkeypatch, modules)
    monkeypatch.setattr("cnngp.kernel.engines.cuda.engine.CudaEngine", Engine)


@pytest.mark.usefixtures("three_cards")
def test_every_card_of_one_kind_takes_tiles(tmp_path: Path, kernel: Kernel) -> None:
    expected = kernel(X)
    begun(kernel, tmp_path / "K", tile=4)
    engine = kernel.engine_for(X.shape[1:])
    engine.identity = "card"
    kernel.device = "cuda"
    found = lanes(kernel, X.shape[1:])
    assert [lane.card for lane in found] == [0, 1]
    assert [lane.card for lane in lanes(kernel, X.shape[1:], most=1)] == [0]
    place = GramStore(tmp_path / "K")
    x = ImageRows(X, kernel, "X")
    x.room = 10**6
    fill(place.grid, found, x, None, place.write, lambda _: None)
    np.testing.assert_array_equal(place.array()[:], expected)
    first, second = (lane.engine.tiles for lane in found)
    assert first > 0
    assert second > 0
    assert first + second == 45
    assert {card for _, _, card in x._kept} == {0, 1}


def test_images_are_kept_as_far_as_there_is_room(kernel: Kernel) -> None:
    x = ImageRows(X, kernel, "X")
    x.room = 20 * X[0].nbytes
    first, second = ([x.block(slice(start, start + 16)) for start in (0, 16)] for _ in range(2))
    assert (first[0] is second[0], first[1] is second[1]) == (True, False)
    np.testing.assert_array_equal(second[1], X[16:32].reshape(16, 1, -1))


# ---- where a matrix goes --------------------------------------------------------------------------------------------


def test_output(kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    K = gram(kernel, X, output="torch")
    assert isinstance(K, torch.Tensor)
    np.testing.assert_array_equal(to_numpy(K), kernel(X))
    with pytest.raises(ValueError, match="output='jax' is not one of 'numpy', 'cupy', 'torch'"):
        gram(kernel, X, output="jax")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="output='torch' is for a matrix in memory"):
        gram(kernel, X, store=tmp_path / "K", output="torch")
    for output, extra in (("cupy", "cuda"), ("torch", "torch")):
        monkeypatch.setitem(sys.modules, output, None)
        with pytest.raises(ImportError, match=rf'^output={output!r} needs .*: pip install "cnngp\[{extra}\]"$'):
            gram(kernel, X, output=output)


def test_a_matrix_for_the_card_is_measured_against_the_card(monkeypatch: pytest.MonkeyPatch, kernel: Kernel) -> None:
    asked: list[str] = []

    def available(device: str = "cpu") -> int:
        asked.append(device)
        return 1000

    fake_cupy.install(monkeypatch)
    monkeypatch.setattr("cnngp.common.memory.available", available)
    kernel.engine_for(X.shape[1:])
    kernel.device = "cuda"
    with pytest.raises(MemoryError, match=r"free on the card; .* or keep it on disk with store="):
        gram(kernel, X, output="cupy")
    with pytest.raises(MemoryError, match="free on this machine"):
        gram(kernel, X)
    assert asked == ["cuda", "cpu"]


# ---- on a real card -------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_a_store_and_two_lanes_on_a_card(tmp_path: Path) -> None:
    """Two lanes on one card: what several cards do, but for the copies between them."""
    import cupy

    from cnngp.kernel.engines.cuda.engine import CudaEngine

    kernel = Kernel(NET, device="cuda")
    K = gram(kernel, X, output="cupy")
    assert isinstance(K, cupy.ndarray)
    np.testing.assert_array_equal(K.get(), kernel(X))
    np.testing.assert_array_equal(gram(kernel, X, store=tmp_path / "K", tile=8)[:], K.get())
    begun(kernel, tmp_path / "K", tile=8)
    engine = kernel.engine_for(X.shape[1:])
    pair = [Lane(CudaEngine(engine.program, kernel.dtype, devices=[0]), 0) for _ in range(2)]
    assert all(lane.engine.identity == engine.identity for lane in pair)
    place = GramStore(tmp_path / "K")
    fill(place.grid, pair, ImageRows(X, kernel, "X"), None, place.write, lambda _: None)
    np.testing.assert_array_equal(place.array()[:], K.get())


@pytest.mark.gpu
def test_workers_with_a_card(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    from distributed import Client, LocalCluster

    kernel = Kernel(NET)
    assert kernel.device == "cuda"
    with LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=":0") as local, Client(local) as client:
        K = gram(kernel, X, store=tmp_path / "K", tile=8, client=client)
    np.testing.assert_array_equal(K[:], kernel(X))
