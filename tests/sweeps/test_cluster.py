"""A Dask cluster of separate processes: the same rows, also where a worker is killed."""

from __future__ import annotations

import gc
import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from sweeping import CHIPS, OP, call

import npusim
from npusim.sweeps import SweepError
from npusim.sweeps import cluster as module
from npusim.sweeps.cluster import cluster

distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")

# Dask leaves sockets to the garbage collector.
pytestmark = pytest.mark.filterwarnings("default")
OVER = {"m": range(1, 25)}


@pytest.fixture(scope="module")
def workers() -> Iterator[Any]:
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
    ) as found:
        yield found
    gc.collect()


def test_a_cluster_gives_the_same_bytes_though_a_worker_is_killed(workers: Any) -> None:
    expected = npusim.sweep(OP, call, OVER, device=CHIPS, jobs=1).to_csv()
    killed: list[int] = []

    def progress(_: str, share: float) -> None:
        if share > 0.2 and not killed:
            killed.append(next(iter(workers.workers.values())).pid)
            os.kill(killed[0], signal.SIGKILL)

    with cluster(workers.scheduler_address) as executor:
        found = npusim.sweep(OP, call, OVER, device=CHIPS, executor=executor, progress=progress)
    assert found.to_csv() == expected
    assert len(killed) == 1


def test_workers_with_another_npusim_are_refused(
    workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = workers.scheduler_address
    monkeypatch.setattr(module, "own_digest", lambda **_: str(os.getpid()).encode())
    with pytest.raises(SweepError) as caught, cluster(address):
        pass
    assert str(caught.value) == (
        f"sweep: the workers of {address} must run this very npusim, but one runs another; install "
        f"the same there"
    )


def test_a_scheduler_without_workers_is_refused() -> None:
    with distributed.LocalCluster(n_workers=0, processes=True, dashboard_address=":0") as found:
        address = found.scheduler_address
        with pytest.raises(SweepError) as caught, cluster(address, 0.5):
            pass
    assert str(caught.value) == (
        f"sweep: the scheduler at {address} must have a worker, but has none; start one with dask "
        f"worker {address}"
    )


def test_a_scheduler_that_does_not_answer_is_told_in_a_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SweepError) as caught, cluster(address, 0.5):
            pass
    assert str(caught.value) == (
        f"sweep: --dask must be the address of a scheduler that answers, not {address}: Timed out "
        f"trying to connect to {address} after 0.5 s; start one with dask scheduler, or leave "
        f"--dask out"
    )


@pytest.mark.parametrize("address", ["", "foo", "http://x:1", "tcp://x:port", "a b:1"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(SweepError) as caught, cluster(address):
        pass
    assert str(caught.value) == (
        f"sweep: --dask must be the address of a scheduler, not {address!r}; write for example "
        f"--dask tcp://127.0.0.1:8786"
    )
