"""How sweeps scale, as ratios of two things measured in one run: cells of npu_quant_matmul over
shapes, templates and chips.

(n) two processes against one; the same sweep again, whose rows a folder has, against the first one;
    and a Dask cluster of four workers of this machine against one of one worker.

Each is done by a process that has not simulated anything. Seconds are those of a clock, so nothing
else should run meanwhile; the processor time of all processes says what it costs to share.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from contextlib import ExitStack
from itertools import islice, product
from tempfile import TemporaryDirectory
from typing import Any

import npusim
from npusim import TensorSpec
from npusim.sweeps.cluster import cluster

CELLS = 10_000
CHIPS = ("Atlas A2", "Atlas 800I A2", "ascend910b3", "Atlas A3")
TEMPLATES = ("basic", "tbe")
KS = NS = (256, 512, 1024, 1536, 2048)
PATIENCE_S = 60.0
"""For workers to start."""


def call(shape: tuple[int, int, int]) -> dict[str, Any]:
    """An int8 product of this m, k and n, scaled by channel."""
    m, k, n = shape
    return {
        "x1": TensorSpec((m, k), "int8"),
        "x2": TensorSpec((k, n), "int8"),
        "scale": TensorSpec((n,), "uint64"),
        "output_dtype": "float16",
    }


def swept(cells: int, jobs: int, workers: int, cache: str | None) -> dict[str, float]:
    """Seconds of a sweep here, and of processors, by *jobs* processes or by *workers* of Dask."""
    each = len(CHIPS) * len(TEMPLATES)
    shapes = product(range(1, cells), KS, NS)
    with ExitStack() as stack:
        executor = None
        if workers:
            from distributed import LocalCluster

            options = {"threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
            own = stack.enter_context(LocalCluster(n_workers=workers, **options))
            own.wait_for_workers(workers, timeout=PATIENCE_S)
            executor = stack.enter_context(cluster(own.scheduler_address, PATIENCE_S))
        begin_s, begin_processor_s = time.perf_counter(), time.process_time()
        found = npusim.sweep(
            *("npu_quant_matmul", call, {"shape": list(islice(shapes, cells // each))}),
            device=CHIPS,
            template=TEMPLATES,
            executor=executor,
            jobs=jobs,
            cache=cache,
        )
        seconds = time.perf_counter() - begin_s
        own_s = time.process_time() - begin_processor_s
    assert not found.bad
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "cells": len(found.rows),
        "seconds": seconds,
        "processor": own_s + children.ru_utime + children.ru_stime,
    }


def anew(cells: int, *, jobs: int = 1, workers: int = 0, cache: str | None = None) -> Any:
    """What :func:`swept` finds in a new process."""
    words = [cells, jobs, workers, cache]
    answer = subprocess.run(
        [sys.executable, __file__, "--swept", json.dumps(words)],
        check=True,
        capture_output=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )
    return json.loads(answer.stdout)


def show(name: str, ratio: str) -> None:
    print(f"(n) {name:36}  {ratio}", flush=True)


def compare(name: str, one: Any, other: Any) -> None:
    """Print how many times as fast as *one* the *other* is."""
    show(
        name,
        f"{one['seconds'] / other['seconds']:.2f} x as fast as one, "
        f"{other['processor'] / one['processor']:.2f} x the processor time  "
        f"({other['seconds']:.1f} s : {one['seconds']:.1f} s)",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="How sweeps scale.")
    parser.add_argument("--cells", type=int, default=CELLS, help="how many")
    parser.add_argument("--swept", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.swept:
        print(json.dumps(swept(*json.loads(given.swept))))
        return
    one = anew(given.cells)
    a_second = one["cells"] / one["seconds"]
    show(f"{one['cells']} cells, one process", f"{a_second:.1f} cells a second")
    compare("two processes", one, anew(given.cells, jobs=2))
    with TemporaryDirectory() as folder:
        first, again = (anew(given.cells, cache=folder) for _ in range(2))
    show(
        "again, with rows in a folder",
        f"{again['seconds'] / first['seconds']:.4f} x the first  "
        f"({again['seconds']:.2f} s : {first['seconds']:.1f} s)",
    )
    worker, workers = (anew(given.cells, workers=count) for count in (1, 4))
    compare("Dask, four workers", worker, workers)


if __name__ == "__main__":
    main()
