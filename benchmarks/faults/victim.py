"""A process that starts jobs and kills them: `python -m benchmarks.faults.victim`, one order and one answer per line.

Everything is imported once, and every job runs in a fork of this process, so that an attempt takes milliseconds. The
process itself uses one thread, because threads do not survive a fork.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np

TILE, DRAWS = 16, 4


def images(n: int) -> Any:
    return np.random.default_rng(0).random((n, 5))


def search(study: Any) -> Any:
    from cnngp import datasets
    from cnngp.search import random_search

    small: dict[str, Any] = {"train": 40, "validation": 40, "device": "cpu", "threads": 1, "progress": False}
    return random_search(datasets.digits(), "paper-cnn", DRAWS, **small, study=study)


def run(order: dict[str, Any]) -> None:
    from cnngp import Dense, Kernel, gram
    from cnngp.gp import solve
    from cnngp.gp.solving import conjugate

    kernel = Kernel(Dense(), device="cpu", threads=1)
    if order["what"] == "search":
        search(order["store"])
    elif order["what"] == "gram":
        gram(kernel, images(order["images"]), store=order["store"], tile=TILE, progress=False)
    else:
        conjugate.SECONDS = 0.0
        solve(order["store"], images(order["images"]), 1e-5, "cg", rank=4, device="cpu", progress=False)


def serve() -> None:
    import tqdm.auto
    import zarr  # noqa: F401

    import cnngp.gp.solving.matrices
    import cnngp.matrix.gram
    import cnngp.matrix.store.verified  # noqa: F401
    from cnngp import Dense, Kernel

    # Progress bars share a lock with all forks, which would wait forever for one that was killed while it held the
    # lock; and they start a thread.
    tqdm.std.tqdm.set_lock(threading.RLock())
    tqdm.std.tqdm.monitor_interval = 0
    Kernel(Dense(), device="cpu", threads=1)(images(4))
    search(None)
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        children = []
        for _ in range(order["processes"]):
            child = os.fork()
            if not child:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                try:
                    run(order)
                    os._exit(0)
                except BaseException:
                    os._exit(1)
            children.append(child)
        time.sleep(order["seconds"])
        os.kill(children[0], signal.SIGKILL)
        ends = [os.waitpid(child, 0)[1] for child in children]
        print(json.dumps([os.waitstatus_to_exitcode(end) for end in ends]), flush=True)


class Victim:
    """Client of the process, used by the campaign."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "benchmarks.faults.victim"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._answer() == "ready\n"

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def kill_one(self, what: str, store: str, images: int, seconds: float, processes: int = 1) -> list[int]:
        """Start `processes` for a job and kill the first after `seconds`; return their exit codes, −9 if killed."""
        order = {"what": what, "store": store, "images": images, "seconds": seconds, "processes": processes}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        codes: list[int] = json.loads(self._answer())
        return codes

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


if __name__ == "__main__":
    serve()
