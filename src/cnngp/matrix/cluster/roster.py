"""Who takes part in a run on a cluster: the workers with this package and the matrix's engine, whoever comes and goes.

A worker that cannot do the work is refused, with the reason; where none is left the error says why.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from contextlib import suppress
from typing import Any, Literal

from cnngp.common.errors import one_line

from .connection import ANSWER_SECONDS, ClusterError
from .worker import Refused, engine_of

log = logging.getLogger("cnngp")

LOOK_SECONDS = 1.0
# How long to wait for a first worker, or for one after the last has gone.
PATIENCE = 300.0

# An engine's identity, and its device.
EngineName = tuple[str, Literal["cpu", "cuda"]]


class Roster:
    """The workers at a client's scheduler: which of them are `refused`, and why, and which were `used`."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.refused: dict[str, str] = {}
        self.used: set[str] = set()
        self._known: set[str] = set()
        self._alone_since: float | None = None

    @property
    def address(self) -> str:
        return str(self.client.scheduler.address)

    def there(self, paused: bool = False) -> list[str]:
        """The workers. Those that Dask has paused, because their memory is nearly full, begin no task."""
        scheduler = self.client.scheduler
        try:
            return list(self.client.sync(scheduler.ncores if paused else scheduler.ncores_running))
        except OSError:
            raise ClusterError(f"the scheduler {self.address} does not answer any more") from None

    def workers(self) -> list[str]:
        """Those that take part; waits while there are none, and looks at new ones."""
        while True:
            there = self.there()
            self._look_at([w for w in there if w not in self._known])
            fit = [w for w in there if w not in self.refused]
            if fit:
                self._alone_since = None
                return fit
            if there:
                raise self._nobody()
            if self._alone_since is None:
                self._alone_since = time.monotonic()
                log.warning("no workers at %s; waiting for one", self.address)
            if time.monotonic() - self._alone_since > PATIENCE:
                raise ClusterError(
                    f"no workers at {self.address}; start them with `dask worker {self.address}` on any machine, and "
                    "with more memory (--memory-limit) if Dask has paused them"
                )
            time.sleep(LOOK_SECONDS / 2)

    def elect(self, kernel: bytes, image_shape: tuple[int, ...], wanted: str | None) -> tuple[EngineName, int]:
        """The engine of the matrix, with its device, and how many workers have it: `wanted` where a worker has it, else
        the one of most workers, those with a card before the others. Workers with other engines are refused.
        """
        asked = {w: self.client.submit(engine_of, kernel, image_shape, workers=[w], pure=False) for w in self.workers()}
        engines: dict[str, EngineName] = {}
        until = time.monotonic() + PATIENCE
        while asked and time.monotonic() < until:
            there = self.there()
            for worker, future in list(asked.items()):
                if future.status == "finished":
                    with suppress(TimeoutError):
                        answer = future.result(timeout=ANSWER_SECONDS)
                        if isinstance(answer, Refused):
                            self.refuse(worker, answer.reason)
                        else:
                            engines[worker] = answer
                elif future.status == "error":
                    self.refuse(worker, one_line(future.exception()))
                elif worker in there:
                    continue
                del asked[worker]
            time.sleep(0.02)
        for worker in asked:
            self.refuse(worker, f"it did not answer in {PATIENCE:.0f} s; others use it")
        if not engines:
            raise self._nobody()
        counts = Counter(engines.values())
        best = max(counts, key=lambda e: (e[0] == wanted, e[1] == "cuda", counts[e]))
        for worker, other in engines.items():
            if other != best:
                self.refuse(worker, f"its engine is {other[0]}, that of the matrix {best[0]}")
        return best, counts[best]

    def _look_at(self, workers: list[str]) -> None:
        """Refuse those without this package, or with another version of it."""
        if not workers:
            return
        from cnngp import __version__

        # `eval`, which every Python has, where a function of this package could not be found
        found = self.client.run(eval, "__import__('cnngp').__version__", workers=workers, on_error="return")
        for worker in workers:
            version = found.get(worker)
            if version is None or isinstance(version, OSError):
                continue  # it has just gone
            self._known.add(worker)
            if isinstance(version, Exception):
                self.refuse(worker, f"it cannot import cnngp ({one_line(version)})")
            elif version != __version__:
                self.refuse(worker, f"it has cnngp {version}, the client {__version__}")

    def refuse(self, worker: str, reason: str) -> None:
        if reason not in self.refused.values():
            log.warning("worker %s takes no part: %s", worker, reason)
        self.refused[worker] = reason

    def _nobody(self) -> ClusterError:
        reasons = Counter(self.refused.values())
        said = "; ".join(f"{reason} ({n} of them)" if n > 1 else reason for reason, n in reasons.most_common(3))
        return ClusterError(f"no worker at {self.address} can do the work: {said}")
