"""Dask workers that die or freeze while they compute a matrix."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

from cnngp import Kernel, gram, zoo

from .campaign import FOUND, SAME, expect
from .victim import np


class Workers:
    name = "a worker of a cluster killed or frozen at any moment of a run"
    promise = "nothing lost"

    def __init__(self) -> None:
        from cnngp.matrix.cluster import cluster

        cluster.SILENT_SECONDS = 4.0  # shorter than the default, to save time
        self._open()
        self.kernel = Kernel(zoo.small_cnn(), device="cpu", threads=1)
        self.X = np.random.default_rng(0).random((150, 1, 8, 8), dtype=np.float32)
        self.wanted = self.kernel(self.X)

    def _open(self) -> None:
        import dask
        from distributed import Client, LocalCluster

        dask.config.set({"distributed.worker.profile.enabled": False})  # docs/scale.md: it may stop a worker for good
        options: dict[str, Any] = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
        self.cluster = LocalCluster(**options, silence_logs=logging.CRITICAL)
        self.client = Client(self.cluster)

    def __call__(self, rng: random.Random, folder: Path) -> str:
        try:
            self.client.wait_for_workers(2, timeout=60)
        except TimeoutError:  # a worker killed during its start is not restarted
            self.close()
            self._open()
            self.client.wait_for_workers(2, timeout=300)
        pids = list(self.client.run(os.getpid).values())
        pid, how = rng.choice(pids), rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP))
        wait, done = rng.uniform(0.0, 2.0), threading.Event()

        def harm() -> None:
            if not done.wait(wait):
                os.kill(pid, how)
                harmed.append(pid)

        harmed: list[int] = []
        thread = threading.Thread(target=harm)
        thread.start()
        try:
            K = gram(self.kernel, self.X, store=folder / "store", tile=8, progress=False, client=self.client)
        finally:
            done.set()
            thread.join()
            if how == signal.SIGSTOP and harmed:
                with contextlib.suppress(ProcessLookupError):  # Dask replaces a worker that stays frozen
                    os.kill(pid, signal.SIGCONT)
                time.sleep(0.5)
        expect(bool((K[:] == self.wanted).all()), "a wrong matrix of a cluster")
        return FOUND if harmed else SAME

    def close(self) -> None:
        self.client.close()
        self.cluster.close()
