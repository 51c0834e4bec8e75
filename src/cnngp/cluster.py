"""Connecting to a Dask cluster, whose workers can compute matrices, solves and searches: see `connect`."""

from __future__ import annotations

import logging
import threading
from asyncio import CancelledError
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from cnngp.common.optional import need


class DaskUnavailable(ImportError):
    """Error raised if dask.distributed is not installed."""


class ClusterError(RuntimeError):
    """Error for a cluster that cannot be reached, or whose workers cannot do the work."""


def connect(address: str, timeout: float = 10.0) -> Any:
    """Return a `dask.distributed.Client` of the scheduler at `address`, such as tcp://host:8786.

    Raises `ClusterError` if no Dask scheduler answers there within `timeout` seconds.

    >>> client = connect("tcp://head:8786")  # doctest: +SKIP
    >>> K = gram(kernel, X, store="/shared/K.zarr", client=client)  # doctest: +SKIP
    """
    distributed = need("distributed", "a cluster", DaskUnavailable)
    # A lost scheduler is reported here in one line, and so is Ctrl-C, which can interrupt a callback of the event loop;
    # the client and its event loop would add tracebacks.
    for name in ("distributed.client", "tornado.application"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        # A client of an address that Dask cannot parse is never closed, and may block the process when it is collected.
        if not address.startswith("inproc://"):
            distributed.comm.get_address_host_port(address)
        # A server that is no scheduler may accept the connection and never answer, which would block the client.
        return within(timeout + 1.0, lambda: distributed.Client(address, timeout=timeout))
    except Exception as error:
        raise ClusterError(
            f"{address}: no Dask scheduler answers within {timeout:g} s; expected an address such as tcp://host:8786. "
            f"Start one with `dask scheduler`, workers with `dask worker {address}`"
        ) from error


def within(seconds: float, call: Callable[[], Any]) -> Any:
    """Return the result of `call`, or raise `TimeoutError`: Dask calls never return if the other end has frozen."""
    answer: Future[Any] = Future()

    def ask() -> None:
        try:
            answer.set_result(call())
        except (Exception, CancelledError) as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name="cnngp-ask", daemon=True).start()
    return answer.result(seconds)
