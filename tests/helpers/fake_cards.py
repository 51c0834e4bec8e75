"""Cards on the CPU: enough of CuPy for the GPU engine, which runs its real generated kernels here (cuda_on_cpu.hpp).

What a card does is done late: work waits in its stream until someone synchronises with it, and memory that was not
written is NaN, so a missing wait gives wrong numbers instead of right ones by luck. Memory is counted: what does not
fit fails, and an array is of use on its own card alone.
"""

from __future__ import annotations

import ctypes
import threading
import types
import weakref
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cnngp.kernel.engines.cuda.formula_text.device_functions import PRIMITIVES
from helpers import fake_cupy
from helpers.cuda_on_cpu import compiled

SHARED = 227 * 1024
_working = threading.RLock()  # the compiled kernels have one state for all threads


class Cards:
    """`modules()` is what to put into sys.modules; the rest is what a test wants to know or to set."""

    def __init__(self, count: int = 1, memory: int = 1 << 30) -> None:
        self.count, self.memory = count, memory
        self.used: Counter[int] = Counter()
        self.peak: Counter[int] = Counter()
        self.launches: list[tuple[int, str]] = []
        self.made: list[Stream] = []
        self.before_launch: Callable[[int, str], None] = lambda card, kernel: None
        self._here = threading.local()
        self._null = [Stream(self) for _ in range(count)]

    # ---- what is current: of each thread, and of each card in it -----------------------------------------------------

    @property
    def current(self) -> int:
        return self._here.__dict__.setdefault("cards", [0])[-1]

    def streams(self, card: int) -> list[Stream]:
        return self._here.__dict__.setdefault(card, [self._null[card]])

    def stream(self, non_blocking: bool) -> Stream:
        self.made.append(Stream(self))
        return self.made[-1]

    def work(self, task: Callable[[], None]) -> None:
        self.streams(self.current)[-1].put(task)

    # ---- memory ------------------------------------------------------------------------------------------------------

    def free(self) -> int:
        return max(0, self.memory - self.used[self.current])

    def empty(self, shape: Any, dtype: Any = float) -> Array:
        dtype = np.dtype(dtype)
        n, card = int(np.prod(shape)) * dtype.itemsize, self.current
        with _working:
            if n > self.free():
                raise MemoryError(f"{n:,} bytes on card {card}, where {self.free():,} are free")
            self.used[card] += n
            self.peak[card] = max(self.peak[card], self.used[card])
        raw = np.full(n + 16, 0xFF, np.uint8)  # NaN
        skip = -raw.ctypes.data % 16
        block = Block()
        weakref.finalize(block, self._give_back, card, n)
        return Array(self, raw[skip : skip + n].view(dtype).reshape(shape), card, block)

    def _give_back(self, card: int, n: int) -> None:
        with _working:
            self.used[card] -= n

    # ---- arrays ------------------------------------------------------------------------------------------------------

    def filled(self, values: Any, dtype: Any = None) -> Array:
        """A new array with a copy of these numbers, once the current stream comes to it."""
        dtype = values.dtype if dtype is None else dtype
        made = self.empty(values.shape, dtype)
        target = made._a
        self.work(lambda: np.copyto(target, values, casting="unsafe"))
        return made

    def asarray(self, a: Any) -> Array:
        if not isinstance(a, Array):
            return self.filled(np.array(a))  # the caller may change it after this
        self.check(a)
        return a

    def ascontiguousarray(self, a: Array, dtype: Any = None) -> Array:
        self.check(a)
        dtype = a.dtype if dtype is None else np.dtype(dtype)
        return a if a.flags.c_contiguous and a.dtype == dtype else self.filled(a._a, dtype)

    def zeros(self, shape: Any, dtype: Any = float) -> Array:
        return self.filled(np.zeros(shape, dtype))

    def fill_diagonal(self, a: Array, values: Array) -> None:
        self.check(a, values)
        target, source = a._a, values._a
        self.work(lambda: np.fill_diagonal(target, source))

    def check(self, *arrays: Array) -> None:
        for a in arrays:
            if a.card != self.current:
                raise RuntimeError(f"an array of card {a.card} is used on card {self.current}")

    def kernels(self, code: str) -> Any:
        """The kernels of a text."""
        real = next(real for real, text in PRIMITIVES.items() if code.startswith(text))
        with _working:
            library = compiled(code.removeprefix(PRIMITIVES[real]), real, SHARED)
        return types.SimpleNamespace(get_function=lambda name: Function(self, name, getattr(library, f"run_{name}")))

    def install(self, monkeypatch: pytest.MonkeyPatch) -> Cards:
        """These cards in the place of real ones until the test ends."""
        fake_cupy.install(monkeypatch, self.modules())
        return self

    # ---- the module --------------------------------------------------------------------------------------------------

    def modules(self) -> dict[str, types.ModuleType]:
        modules = fake_cupy.modules()
        cards = self

        class Device:
            attributes = types.MappingProxyType({"MaxSharedMemoryPerBlockOptin": SHARED, "MultiProcessorCount": 2})
            compute_capability = "90"

            def __init__(self, k: int) -> None:
                self.k = k

            def __enter__(self) -> None:
                _ = cards.current
                cards._here.cards.append(self.k)

            def __exit__(self, *_: object) -> None:
                cards._here.cards.pop()

        runtime = types.SimpleNamespace(getDeviceCount=lambda: cards.count, memGetInfo=lambda: (cards.free(), 0))
        made: dict[str, Any] = {
            "ndarray": Array,
            "RawModule": lambda code, options: cards.kernels(code),
            "get_default_memory_pool": lambda: types.SimpleNamespace(free_bytes=lambda: 0),
            "cuda": types.SimpleNamespace(
                Device=Device,
                Stream=cards.stream,
                get_current_stream=lambda: cards.streams(cards.current)[-1],
                runtime=runtime,
            ),
        }
        for name in ("empty", "zeros", "asarray", "ascontiguousarray", "fill_diagonal"):
            made[name] = getattr(cards, name)
        for name, value in made.items():
            setattr(modules["cupy"], name, value)
        return modules


MakeCards = Callable[..., Cards]
"""cards(count, memory) of tests/kernel/conftest.py."""


class Block:
    """Memory of a card: given back with the last array that lies in it."""


class Array(fake_cupy.ndarray):
    def __init__(self, cards: Cards, a: np.ndarray, card: int, block: Block) -> None:
        self._a, self._cards, self.card, self._block = a, cards, card, block

    @property
    def device(self) -> Any:
        return types.SimpleNamespace(id=self.card)

    def __getitem__(self, key: Any) -> Array:
        return Array(self._cards, self._a[key], self.card, self._block)

    def __setitem__(self, key: Any, value: Any) -> None:
        assert isinstance(value, Array)
        self._cards.check(self, value)
        target, source = self._a[key], value._a
        self._cards.work(lambda: np.copyto(target, source))

    def astype(self, dtype: Any) -> Array:
        return self._cards.filled(self._a, dtype)

    def get(self, stream: Any = None) -> np.ndarray:
        (stream or self._cards.streams(self.card)[-1]).synchronize()
        return self._a.copy()


class Stream:
    """Work in order, none of it done before it has to be."""

    def __init__(self, cards: Cards) -> None:
        self._cards = cards
        self._waiting: deque[Callable[[], None]] = deque()
        self._put = self._done = 0

    def put(self, task: Callable[[], None]) -> None:
        with _working:
            self._waiting.append(task)
            self._put += 1

    def run(self, until: int) -> None:
        with _working:
            while self._done < until:
                self._waiting.popleft()()
                self._done += 1

    def record(self) -> Any:
        at = self._put
        return types.SimpleNamespace(synchronize=lambda: self.run(at))

    def wait_event(self, event: Any) -> None:
        self.put(event.synchronize)

    def synchronize(self) -> None:
        self.run(self._put)

    def __enter__(self) -> Stream:
        self._cards.streams(self._cards.current).append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._cards.streams(self._cards.current).pop()


class Function:
    def __init__(self, cards: Cards, name: str, run: Callable[..., None]) -> None:
        self._cards, self._name, self._run = cards, name, run
        self.max_dynamic_shared_size_bytes = 48 * 1024

    def __call__(self, grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...], shared_mem: int = 0) -> None:
        assert grid[0] > 0, "a launch of nothing"
        assert shared_mem <= self.max_dynamic_shared_size_bytes
        card = self._cards.current
        self._cards.before_launch(card, self._name)
        self._cards.launches.append((card, self._name))
        arrays = [a for a in arguments if isinstance(a, Array)]
        self._cards.check(*arrays)
        assert all(a._a.flags.writeable for a in arrays)
        values = [*map(_argument, arguments), grid[0], block[0]]
        self._cards.work(lambda alive=arrays: self._run(*values))


def _argument(a: Any) -> Any:
    if isinstance(a, Array):
        return ctypes.c_void_p(a._a.ctypes.data)
    made = {np.int32: ctypes.c_int, np.int64: ctypes.c_longlong, np.uint64: ctypes.c_void_p}[type(a)]
    return made(int(a))
