"""A Dask cluster of separate processes: the same rows, also where a worker is killed."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from sweeping import CHIPS, OP, call

import npusim
from npusim.sweeps import SweepError
from npusim.sweeps import cluster as module
from npusim.sweeps.cluster import cluster

pytestmark = [
    pytest.mark.skipif(find_spec("distributed") is None, reason="the extra dask is not installed"),
    # Dask leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("default"),
]
OVER = {"m": range(1, 25)}
PATIENCE_S = 60.0
"""For the first worker of a scheduler: as long as it takes to import npusim on a busy machine."""


@pytest.fixture(scope="module")
def workers() -> Iterator[Any]:
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
    ) as found:
        yield found
    gc.collect()


def test_a_cluster_gives_the_same_bytes_though_a_worker_is_killed(workers: Any) -> None:
    expected = npusim.sweep(OP, call, OVER, device=CHIPS, jobs=1).to_csv()
    killed: list[int] = []

    def progress(done: int, of: int) -> None:
        if done > of / 5 and not killed:
            killed.append(next(iter(workers.workers.values())).pid)
            os.kill(killed[0], signal.SIGKILL)

    with cluster(workers.scheduler_address) as executor:
        found = npusim.sweep(OP, call, OVER, device=CHIPS, executor=executor, progress=progress)
    assert found.to_csv() == expected
    assert len(killed) == 1


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of Dask, killed at the end."""
    command = [sys.executable, "-m", *words, "--no-dashboard"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.nightly
def test_a_lost_scheduler_is_reported_and_finished_cells_stay(tmp_path: Path) -> None:
    expected = npusim.sweep(OP, call, OVER, device=CHIPS, jobs=1).to_csv()
    kept, told = tmp_path / "kept", tmp_path / "scheduler.json"
    listen = "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(told)
    with ExitStack() as stack:
        scheduler = stack.enter_context(started("distributed.cli.dask_scheduler", *listen))
        while not told.exists() or not told.read_text():
            assert scheduler.poll() is None
            sleep(0.1)
        address = json.loads(told.read_text())["address"]
        join = address, "--nthreads", "1", "--no-nanny"
        for _ in range(2):
            stack.enter_context(started("distributed.cli.dask_worker", *join))

        def progress(done: int, of: int) -> None:
            if done > of / 5:
                scheduler.kill()

        with pytest.raises(SweepError) as caught, cluster(address, PATIENCE_S) as executor:
            npusim.sweep(
                *(OP, call, OVER), device=CHIPS, executor=executor, resume=kept, progress=progress
            )
    assert str(caught.value) == (
        f"sweep: the scheduler at {address} must live until all calls are done, but was lost; "
        f"start it and its workers anew, or leave --dask out"
    )
    done = len(kept.read_text().splitlines()) - 1
    heard: list[tuple[int, int]] = []
    found = npusim.sweep(
        *(OP, call, OVER), device=CHIPS, jobs=1, resume=kept,
        progress=lambda *news: heard.append(news),
    )  # fmt: skip
    assert found.to_csv() == expected
    assert 0 < done < len(found.rows)
    assert heard[0] == (done, len(found.rows))


def test_other_workers_are_refused(workers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    address = workers.scheduler_address
    monkeypatch.setattr(module, "own_digest", lambda **_: str(os.getpid()).encode())
    with pytest.raises(SweepError) as caught, cluster(address):
        pass
    assert str(caught.value) == (
        f"sweep: the workers of {address} must run this very npusim, but one runs another; install "
        f"the same there"
    )


def test_a_scheduler_without_workers_is_refused() -> None:
    from distributed import LocalCluster

    with LocalCluster(n_workers=0, processes=True, dashboard_address=":0") as found:
        address = found.scheduler_address
        with pytest.raises(SweepError) as caught, cluster(address, 0.5):
            pass
    assert str(caught.value) == (
        f"sweep: the scheduler at {address} must have a worker, but has none; start one with dask "
        f"worker {address}"
    )


def test_a_scheduler_that_does_not_answer_is_reported() -> None:
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
