"""A Dask cluster as an executor of concurrent.futures."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

from npusim.data.errors import shown
from npusim.run.disk_cache import own_digest
from npusim.sweeps.errors import SweepError

__all__ = ["cluster"]

ADDRESS = r"(?:(?:tcp|tls|ws|wss|ucx)://)?[^\s:/]+:[0-9]{1,5}"
TALKERS = ("distributed", "tornado", "asyncio")
PATIENCE_S = 10.0
"""Time for the scheduler to answer, and for the first worker to appear."""


@contextmanager
def cluster(address: str, patience_s: float = PATIENCE_S) -> Iterator[Executor]:
    """The workers of the Dask scheduler at *address*, such as tcp://10.0.0.5:8786.

    Raises SweepError unless it answers within *patience_s* seconds, with workers that run the same
    npusim, and if the connection is lost while they work.
    """
    try:
        from distributed import Client
    except ImportError:
        raise SweepError(
            "sweep: --dask must have Dask's distributed installed; "
            "install it with pip install 'npusim[dask]'"
        ) from None
    with _silent(), _connected(Client, address, patience_s) as client:
        _check_workers(client, address, patience_s)
        try:
            yield client.get_executor()
        except SweepError:
            if client.status == "running":
                raise
            raise SweepError(
                f"sweep: the scheduler at {address} must live until all calls are done, but was "
                f"lost; start it and its workers anew, or leave --dask out"
            ) from None


@contextmanager
def _connected(make: Any, address: str, patience_s: float) -> Iterator[Any]:
    if not re.fullmatch(ADDRESS, address):
        raise SweepError(
            f"sweep: --dask must be the address of a scheduler, not {shown(address)}; write for "
            f"example --dask tcp://127.0.0.1:8786"
        )
    try:
        client = make(address, timeout=patience_s, set_as_default=False)
    except Exception as error:  # any error that the transport of the address raises
        raise SweepError(
            f"sweep: --dask must be the address of a scheduler that answers, not {address}: "
            f"{_first_line(error)}; start one with dask scheduler, or leave --dask out"
        ) from None
    try:
        yield client
    finally:
        client.close(timeout=patience_s)


def _check_workers(client: Any, address: str, patience_s: float) -> None:
    try:
        client.wait_for_workers(1, timeout=patience_s)
    except TimeoutError:
        raise SweepError(
            f"sweep: the scheduler at {address} must have a worker, but has none; start one with "
            f"dask worker {address}"
        ) from None
    try:
        digests = client.run(own_digest, with_built=False).values()
    except Exception as error:  # any error of a worker without npusim
        raise SweepError(
            f"sweep: the workers of {address} must run this very npusim, but: "
            f"{_first_line(error)}; install the same there"
        ) from None
    if any(digest != own_digest(with_built=False) for digest in digests):
        raise SweepError(
            f"sweep: the workers of {address} must run this very npusim, but one runs another; "
            f"install the same there"
        )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


@contextmanager
def _silent() -> Iterator[None]:
    """Suppress the log lines of Dask: important ones become messages of npusim."""
    # Dask sets the level of each of its loggers.
    names = [name for name in logging.root.manager.loggerDict if name.startswith(TALKERS)]
    before = {logger: logger.level for logger in map(logging.getLogger, names)}
    for logger in before:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in before.items():
            logger.setLevel(level)
