"""Reaching a Dask cluster: its scheduler, and the errors where it is not there."""

from __future__ import annotations

import logging
import re
import threading
from typing import Any

# How long an answer of a few bytes may take. One that was computed may never come: its worker has died with it.
ANSWER_SECONDS = 5.0


class DaskUnavailable(ImportError):
    """dask.distributed is not installed."""


class ClusterError(RuntimeError):
    """A cluster that is not there, or whose workers cannot do the work."""


def connect(address: str, timeout: float = 10.0) -> Any:
    """A `dask.distributed.Client` of the scheduler at `address`, such as tcp://host:8786.

    `ClusterError` where none answers within `timeout` seconds, also where something else listens there.

    >>> client = connect("tcp://head:8786")  # doctest: +SKIP
    >>> K = gram(kernel, X, store="/shared/K.zarr", client=client)  # doctest: +SKIP
    >>> connect("head")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    cnngp...ClusterError: scheduler 'head': expected the address of a Dask scheduler, such as tcp://host:8786
    """
    distributed = require_dask()
    if not re.fullmatch(r"((tcp|tls|ws|wss|ucx)://)?[^\s/]+:\d+", address):
        raise ClusterError(f"scheduler {address!r}: expected the address of a Dask scheduler, such as tcp://host:8786")
    # A scheduler that goes away is told in one line from here; the client would add a traceback.
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    answer: list[Any] = []

    def open_client() -> None:
        try:
            answer.append(distributed.Client(address, timeout=timeout))
        except Exception as error:
            answer.append(error)

    # In a thread: what is no scheduler may take the connection, say nothing, and never let the client go.
    thread = threading.Thread(target=open_client, name="cnngp-connect", daemon=True)
    thread.start()
    thread.join(timeout + 1.0)
    if answer and isinstance(answer[0], distributed.Client):
        return answer[0]
    silent = not answer or isinstance(answer[0], OSError)
    reason = f"no scheduler answers within {timeout:g} s" if silent else "what answers there is no Dask scheduler"
    raise ClusterError(f"{address}: {reason}; start one with `dask scheduler`, workers with `dask worker {address}`")


def require_dask() -> Any:
    """The module `distributed`; `DaskUnavailable`, with what to do, where it is not installed."""
    try:
        import distributed
    except ImportError:
        raise DaskUnavailable("a cluster needs dask.distributed: pip install 'cnngp[dask]'") from None
    return distributed
