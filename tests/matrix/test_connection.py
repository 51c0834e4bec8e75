"""Schedulers that are not there are said to be so, in one line."""

from __future__ import annotations

import functools
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("distributed")

from cnngp.cli import run
from cnngp.cluster import ClusterError, connect


@pytest.fixture
def silent() -> Iterator[str]:
    """Something that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"


def test_a_scheduler_that_is_not_there(
    silent: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    for address in (nobody, silent):
        began = time.monotonic()
        with pytest.raises(ClusterError, match=rf"{address}: no scheduler answers within 0.5 s; start one with"):
            connect(address, timeout=0.5)
        assert time.monotonic() - began < 30
    for address in ("somewhere", "http://host:80", "tcp://host", "tcp://host:port"):
        with pytest.raises(ClusterError, match="expected the address of a Dask scheduler, such as tcp://host:8786"):
            connect(address)
    monkeypatch.setattr("cnngp.matrix.cluster.connection.connect", functools.partial(connect, timeout=0.5))
    assert run(["gram", "--store", str(tmp_path / "K"), "--scheduler", nobody]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "no scheduler answers" in error
    assert not (tmp_path / "K").exists()


def test_dask_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ImportError, match=r'a cluster needs dask.distributed: pip install "cnngp\[dask\]"'):
        connect("tcp://127.0.0.1:8786")
