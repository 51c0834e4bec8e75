"""Who takes part in a run on a cluster: the workers with this package and the matrix's engine, whoever comes and goes.

A worker that cannot do the work is refused, with the reason; where none is left the error says why.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any

from cnngp.common.devices import ActualDevice
from cnngp.common.errors import one_line

from .connection import ANSWER_SECONDS, ClusterError, within
from .worker import Refused, engine_of

log = logging.getLogger("cnngp")

LOOK_SECONDS = 1.0
# Workers say that they are alive about every second. One that has not for so long is frozen, or cut off from the
# scheduler, which itself waits for minutes before it gives it up.
SILENT_SECONDS = 10.0
_SCHEDULER_SECONDS = 30.0
# How long to wait for a first worker, or for one after the last has gone.
PATIENCE = 300.0

# An engine's identity, and its device.
EngineName = tuple[str, ActualDevice]


class Roster:
    """The workers at a client's scheduler: which of them are `refused`, and why, and which were `used`."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.refused: dict[str, str] = {}
        self.used: set[str] = set()
        self._known: set[str] = set()
        self._asked: dict[str, Any] = {}
        self._info: dict[str, dict[str, Any]] = {}
        self._heard: dict[str, tuple[float, float]] = {}
        self._alone_since: float | None = None
        self._told = False

    @property
    def address(self) -> str:
        return str(self.client.scheduler.address)

    def there(self) -> list[str]:
        """The workers that are at work: not those that Dask has paused, because their memory is nearly full, and that
        begin no task, nor those that have not been heard of for some seconds.
        """
        self._info = self._ask_scheduler()
        now = time.monotonic()
        for worker, about in self._info.items():
            beat = float(about["last_seen"])  # by the scheduler's clock, so only whether it moves is of use
            if self._heard.get(worker, (None, now))[0] != beat:
                self._heard[worker] = beat, now
        return [worker for worker in self._info if self.state(worker) == ""]

    def _ask_scheduler(self) -> dict[str, dict[str, Any]]:
        try:
            found = within(_SCHEDULER_SECONDS, lambda: self.client.sync(self.client.scheduler.identity))
        except OSError:
            raise ClusterError(f"the scheduler {self.address} does not answer any more") from None
        return dict(found["workers"])

    def state(self, worker: str) -> str | None:
        """What keeps a worker from its work, "" for nothing; None where it is gone."""
        if worker not in self._info:
            return None
        silent = time.monotonic() - self._heard[worker][1]
        if silent > SILENT_SECONDS:
            return f"has not been heard of for {silent:.0f} s (frozen, or cut off)"
        if self._info[worker]["status"] != "running":
            return "begins no more tasks (Dask pauses one whose memory is nearly full)"
        return ""

    def threads(self, worker: str) -> int:
        return int(self._info.get(worker, {}).get("nthreads", 0))

    def workers(self) -> list[str]:
        """Those that take part; waits while there are none, and looks at new ones. The first time it waits a little for
        the answers of all.
        """
        until = -math.inf if self._known else time.monotonic() + ANSWER_SECONDS
        while True:
            there = self.there()
            self._look_at(there)
            fit = [w for w in there if w in self._known and w not in self.refused]
            if fit and (not self._asked or time.monotonic() > until):
                self._alone_since, self._told = None, False
                return fit
            if there and not fit and all(w in self.refused for w in there):
                raise self._nobody()
            if self._alone_since is None:
                self._alone_since = time.monotonic()
            alone = time.monotonic() - self._alone_since
            if alone > PATIENCE and not fit:
                raise self._alone()
            if (not there or alone > SILENT_SECONDS) and not self._told:
                self._told = True
                found = "no worker at %s answers" if self._info else "no workers at %s"
                log.warning(f"{found}; waiting for one", self.address)
            time.sleep(LOOK_SECONDS / 20)

    def _alone(self) -> ClusterError:
        if self._info:
            return ClusterError(
                f"no worker at {self.address} answers: {len(self._info)} of them are frozen, paused because their "
                "memory is nearly full (start them with a larger --memory-limit), or busy with the work of others"
            )
        return ClusterError(
            f"no workers at {self.address}; start them with `dask worker {self.address}` on any machine"
        )

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
                    with suppress(TimeoutError, CancelledError):
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
            self.refuse(worker, f"it did not answer in {PATIENCE:.0f} s, perhaps because others use it")
        if not engines:
            raise self._nobody()
        counts = Counter(engines.values())
        best = max(counts, key=lambda e: (e[0] == wanted, e[1] == "cuda", counts[e]))
        for worker, other in engines.items():
            if other != best:
                self.refuse(worker, f"its engine is {other[0]}, that of the matrix {best[0]}")
        return best, counts[best]

    def _look_at(self, workers: list[str]) -> None:
        """Refuse those without this package, or with another version of it. Each is asked for itself, without waiting:
        one that does not answer holds up no other.
        """
        from cnngp import __version__

        for worker in self._asked.keys() - set(workers):
            self._asked.pop(worker).cancel()
        for worker in workers:
            if worker not in self._known and worker not in self._asked:
                # `eval`, which every Python has, where a function of this package could not be found
                version = "__import__('cnngp').__version__"
                self._asked[worker] = self.client.submit(eval, version, workers=[worker], pure=False, priority=100)
        for worker, future in list(self._asked.items()):
            if future.status == "pending":
                continue
            del self._asked[worker]
            if future.status == "error":
                self._known.add(worker)
                self.refuse(worker, f"it cannot import cnngp ({one_line(future.exception())})")
            elif future.status == "finished":
                with suppress(TimeoutError, CancelledError):  # it has just gone, with its answer
                    found = future.result(timeout=ANSWER_SECONDS)
                    self._known.add(worker)
                    if found != __version__:
                        self.refuse(worker, f"it has cnngp {found}, the client {__version__}")

    def refuse(self, worker: str, reason: str) -> None:
        if reason not in self.refused.values():
            log.warning("worker %s takes no part: %s", worker, reason)
        self.refused[worker] = reason

    def _nobody(self) -> ClusterError:
        reasons = Counter(self.refused.values())
        said = "; ".join(f"{reason} ({n} of them)" if n > 1 else reason for reason, n in reasons.most_common(3))
        return ClusterError(f"no worker at {self.address} can do the work: {said}")
