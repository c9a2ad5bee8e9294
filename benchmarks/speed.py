"""How fast npusim is, as ratios of two things measured in one run: of processor time, so that what
else a machine does matters little.

(a) values and time of a large npu_quantize against its own plain-numpy reference;
(b) micro-ops timed a second against bare SimPy timeouts a second;
(c) peak memory of a process that does (a) against the size of its inputs and outputs;
(d) to (h) products on the cube: see products.py;
(i) values: see values.py;
(k) a process that imports npusim, or prints the help, against one of numpy;
(l) a second call of the same shapes, time only, against the first one;
(m) time and memory of calls with many small pieces, time only: see slow_calls.py.

All rows but (l) have every call computed anew.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
import timeit
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import simpy
from products import products
from slow_calls import slow_calls
from values import values

import npusim
from npusim.run.memory_cache import forget
from npusim.timing.compiled import is_built

SHAPE = (8192, 8192)
DEVICE = "ascend910b2"
REPEATS = 3
TIMEOUTS = 300_000
STARTS = 7
"""Processes of each kind, of which the quickest counts."""
SECOND_CALLS = 50


def fastest(*works: Callable[[], Any]) -> list[float]:
    """Processor seconds of the fastest of a few runs of each work, taken in turn and done anew."""
    best = [float("inf")] * len(works)
    for _ in range(REPEATS):
        for index, work in enumerate(works):
            forget()
            start = time.process_time()
            work()
            best[index] = min(best[index], time.process_time() - start)
    return best


def inputs(div_mode: bool) -> tuple[Any, ...]:
    """Positional arguments of npu_quantize: fp16 values, a scale for each column."""
    rng = np.random.default_rng(0)
    x = np.empty(SHAPE, np.float16)
    for row in x:
        row[:] = rng.standard_normal(SHAPE[1], np.float32)
    scales = np.full(SHAPE[1], 3, np.float32 if div_mode else np.float16)
    return x, scales, None, "qint8", -1, div_mode


def values_and_time() -> None:
    """(a), in both modes."""
    for div_mode in (False, True):
        args = inputs(div_mode)
        reference = npusim.ops.load("npu_quantize").reference
        ours, numpy = fastest(
            lambda args=args: npusim.run("npu_quantize", *args, device=DEVICE),
            lambda args=args, reference=reference: reference(*args),
        )
        print(
            f"(a) npu_quantize fp16 8192 x 8192, div_mode={div_mode!s:5}  "
            f"{ours / numpy:5.2f} x its numpy reference  ({ours:.2f} s : {numpy:.2f} s)"
        )


def micro_ops() -> None:
    """(b), with cores that do the same timed once, and with each core timed on its own."""
    x, scales = npusim.TensorSpec(SHAPE, "float16"), npusim.TensorSpec(SHAPE[1:], "float16")
    args = (x, scales, None, "qint8", -1, False)
    count = npusim.run("npu_quantize", *args, device=DEVICE).trace.micro_ops
    engines = ("simpy", "compiled") if is_built() else ("simpy",)
    once, *each, bare = fastest(
        lambda: npusim.run("npu_quantize", *args, device=DEVICE, engine="simpy"),
        *(
            partial(npusim.run, "npu_quantize", *args, device=DEVICE, every_core=True, engine=name)
            for name in engines
        ),
        timeouts,
    )
    labels = ["equivalent cores once", *(f"every core alone, {name}" for name in engines)]
    for label, seconds in zip(labels, (once, *each), strict=True):
        ratio = (count / seconds) / (TIMEOUTS / bare)
        print(
            f"(b) timing only, {label:26}  {ratio:5.2f} x bare SimPy timeouts  "
            f"({count / seconds / 1e3:.0f} k : {TIMEOUTS / bare / 1e3:.0f} k a second)"
        )


def timeouts() -> None:
    """One process that does nothing but wait."""
    env = simpy.Environment()

    def wait() -> Any:
        for _ in range(TIMEOUTS):
            yield env.timeout(1)

    env.process(wait())
    env.run()


def peak_memory() -> None:
    """(c), in a separate process: everything it ever held, the interpreter included."""
    answer = subprocess.run(
        [sys.executable, __file__, "--peak"], check=True, capture_output=True, text=True
    )
    peak, data = (int(word) for word in answer.stdout.split())
    print(
        f"(c) peak memory of a whole process doing (a)  {peak / data:5.2f} x inputs and outputs  "
        f"({peak / 2**20:.0f} MiB : {data / 2**20:.0f} MiB)"
    )


def report_peak() -> None:
    """Print the peak memory of this process, and the bytes of inputs and outputs."""
    args = inputs(False)
    run = npusim.run("npu_quantize", *args, device=DEVICE)
    data = args[0].nbytes + args[1].nbytes + run.output.nbytes
    # ru_maxrss would start from what the parent held when it forked; VmHWM starts at exec.
    status = Path("/proc/self/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    print(int(peak.split()[1]) * 1024, data)


def start_up() -> None:
    """(k), the best of several processes each, in turn, from their first to their last second."""
    works = {
        "import numpy": ("-c", "import numpy"),
        "import npusim": ("-c", "import npusim"),
        "all that a run loads": ("-c", "import npusim.run.call"),
        "npusim --help": ("-m", "npusim", "--help"),
    }
    best = dict.fromkeys(works, float("inf"))
    with TemporaryDirectory() as compiled:
        for _ in range(STARTS):
            for name, words in works.items():
                best[name] = min(best[name], processor_seconds(words, compiled))
    numpy = best.pop("import numpy")
    for name, seconds in best.items():
        print(
            f"(k) {name:20}  {seconds / numpy:5.2f} x import numpy  "
            f"({seconds:.3f} s : {numpy:.3f} s)"
        )


def processor_seconds(words: tuple[str, ...], compiled: str) -> float:
    """Seconds that a process of Python with the arguments *words* computes, all its threads.

    What it compiles it leaves in the folder *compiled*, as an installed package has it.
    """
    env = os.environ | {"PYTHONPYCACHEPREFIX": compiled}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], check=True, capture_output=True, env=env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def second_calls() -> None:
    """(l), of a product of one row and of a large one; of second calls the best of several."""
    scale = npusim.TensorSpec((1,), "float32")
    for m, k, n in ((1, 4096, 4096), (4096, 4096, 4096)):
        x1, x2 = npusim.TensorSpec((m, k), "int8"), npusim.TensorSpec((k, n), "int8")
        call = partial(
            npusim.run,
            *("npu_quant_matmul", x1, x2, scale),
            output_dtype="bfloat16",
            device=DEVICE,
        )
        (first,) = fastest(call)
        second = min(timeit.repeat(call, timer=time.process_time, number=1, repeat=SECOND_CALLS))
        print(
            f"(l) again, int8 {f'{m} x {k} x {n}':20}  {second / first:.4f} x the first call  "
            f"({second * 1e3:.2f} ms : {first * 1e3:.0f} ms)"
        )


if __name__ == "__main__":
    if "--peak" in sys.argv:
        report_peak()
    else:
        values_and_time()
        micro_ops()
        peak_memory()
        products(fastest)
        values()
        start_up()
        second_calls()
        slow_calls()
