"""The rows of speed.py that multiply: products on the cube against the fastest plain numpy.

(d) values and time of an int8 product against exact float32 BLAS over blocks of 1024 of k;
(e) the same in fp16 against float64 BLAS over the cube's blocks of 16, rounded after each;
(f) time alone of products on 24 cores, by both engines, against BLAS of the same product: processor
    seconds on one thread, of 4096 cubed in float32 and as many times more for larger ones;
(g) processor time of a first call for the time of three products, against an open cost model's;
(h) values and time of a batch on a chip whose core has cube and vector unit in one.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import npusim
from npusim.chip import Engine
from npusim.run.memory_cache import forget
from npusim.timing.compiled import is_built

DEVICE = "ascend910b2"
EXACT_K = 1024
"""So many products of int8 add up exactly in float32, whose significand has 24 bits."""
BLOCK_K = 16
COST_MODEL_S = {(512, 512, 512): 2.3, (8192, 320, 256): 2.9, (16, 4096, 12288): 11.3}
"""(m, k, n) -> processor seconds of a process that has pypto 0.2.0's cost model run an fp16 product
in tiles of 128 x 64 x 128, on two cores of a Zen 4 EPYC that takes 1.33 s for float32 BLAS of 4096
cubed. The call alone, with the processes that it starts, takes 0.9, 1.5 and 9.7 of them."""

Fastest = Callable[..., list[float]]
Matrix = np.ndarray[Any, Any]


def int8_pair(size: int) -> tuple[Matrix, Matrix]:
    """Two square matrices of all int8 numbers."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-128, 128, (size, size), np.int8) for _ in range(2))
    return a, b


def exact_product(a: Matrix, b: Matrix) -> Matrix:
    """int8 @ int8 as int32."""
    total = np.zeros((a.shape[0], b.shape[1]), np.int32)
    for k in range(0, a.shape[1], EXACT_K):
        left, right = (x.astype(np.float32) for x in (a[:, k : k + EXACT_K], b[k : k + EXACT_K]))
        total += (left @ right).astype(np.int32)
    return total


def block_product(a: Matrix, b: Matrix) -> Matrix:
    """fp16 @ fp16, the sum rounded to float32 after each block."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    left, right = a.astype(np.float64), b.astype(np.float64)
    for k in range(0, a.shape[1], BLOCK_K):
        total = (total + left[:, k : k + BLOCK_K] @ right[k : k + BLOCK_K]).astype(np.float32)
    return total.astype(np.float16)


def quantised(*args: Any, engine: Engine | None = None) -> npusim.Run:
    """An int8 product whose int32 sums come out as they are."""
    scale = np.ones(1, np.float32)
    return npusim.run(
        "npu_quant_matmul", *args, scale, output_dtype="int32", device=DEVICE, engine=engine
    )


def products(fastest: Fastest) -> None:
    """(d) to (h)."""
    a, b = int8_pair(4096)
    ours, numpy = fastest(lambda: quantised(a, b), lambda: exact_product(a, b))
    print(
        f"(d) npu_quant_matmul int8 4096 cubed   {ours / numpy:5.2f} x float32 BLAS over k of 1024"
        f"  ({ours:.2f} s : {numpy:.2f} s)"
    )
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((2048, 2048), np.float32).astype(np.float16) for _ in range(2))
    ours, blocks = fastest(
        lambda: npusim.run("matmul", x, y, device=DEVICE), lambda: block_product(x, y)
    )
    print(
        f"(e) matmul fp16 2048 cubed             {ours / blocks:5.2f} x float64 BLAS over k of 16"
        f"  ({ours:.2f} s : {blocks:.2f} s)"
    )
    times_alone()
    against_cost_model()
    coupled_batch()


def times_alone() -> None:
    """(f), of int8 products and of one of a prefill, whose weight is in FRACTAL_NZ."""
    blas = _blas_seconds()
    engines = ("simpy", "compiled") if is_built() else ("simpy",)
    for m, k, n in ((4096,) * 3, (8192,) * 3, (16384,) * 3, (41040, 5120, 3200)):
        for engine in engines:
            if engine == "simpy" and m > 8192:
                continue  # half a minute and more
            call = partial(_product, m, k, n, engine)
            ours = min(_seconds(call) for _ in range(1 if m > 8192 else 3))
            whole = blas * m * k * n / 4096**3
            print(
                f"(f) timing only, {f'{m} x {k} x {n}, {engine}':32} {ours / whole:5.2f} x float32 "
                f"BLAS of the same  ({ours:.2f} s : {whole:.2f} s)"
            )


def _blas_seconds() -> float:
    """Processor seconds of a product of 4096 cubed in float32."""
    a = np.ones((4096, 4096), np.float32)
    found = []
    with threadpool_limits(1):
        for _ in range(3):
            start = time.process_time()
            a @ a
            found.append(time.process_time() - start)
    return min(found)


def _product(m: int, k: int, n: int, engine: Engine) -> None:
    """The time of a product of :func:`times_alone`."""
    if m == n:
        shapes = npusim.TensorSpec((m, k), "int8"), npusim.TensorSpec((k, n), "int8")
        quantised(*shapes, engine=engine)
    else:
        weight = npusim.TensorSpec((k, n), "bfloat16", "FRACTAL_NZ")
        x = npusim.TensorSpec((m, k), "bfloat16")
        npusim.run("matmul", x, weight, device=DEVICE, engine=engine)


def _seconds(call: Callable[[], object]) -> float:
    """Processor seconds of *call*, all found anew."""
    forget()
    start = time.process_time()
    call()
    return time.process_time() - start


def against_cost_model() -> None:
    """(g), by the quickest engine."""
    for (m, k, n), cost_model in COST_MODEL_S.items():
        shapes = npusim.TensorSpec((m, k), "float16"), npusim.TensorSpec((k, n), "float16")
        call = partial(npusim.run, "matmul", *shapes, device=DEVICE)
        ours = min(_seconds(call) for _ in range(3))
        print(
            f"(g) timing only, fp16 {f'{m} x {k} x {n}':17}  1 : {cost_model / ours:.0f} of an "
            f"open cost model's processor time  ({ours:.3f} s : {cost_model} s)"
        )


def coupled_batch() -> None:
    """(h), in a separate process."""
    answer = subprocess.run([sys.executable, __file__], check=True, capture_output=True, text=True)
    seconds, peak, data = (float(word) for word in answer.stdout.split())
    print(
        f"(h) matmul fp16 (4, 32, 1024, 128) on 310P, peak memory {peak / data:5.2f} x inputs and "
        f"outputs  ({peak / 2**20:.0f} MiB : {data / 2**20:.0f} MiB, {seconds:.1f} s)"
    )


def report_batch() -> None:
    """Print the seconds and the peak memory of (h), and the bytes of its tensors."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 32, 1024, 128), np.float32).astype(np.float16)
    y = rng.standard_normal((4, 32, 128, 1024), np.float32).astype(np.float16)
    start = time.perf_counter()
    run = npusim.run("matmul", x, y, device="ascend310p3")
    seconds = time.perf_counter() - start
    # ru_maxrss would start from what the parent held when it forked; VmHWM starts at exec.
    status = Path("/proc/self/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    print(seconds, int(peak.split()[1]) * 1024, x.nbytes + y.nbytes + run.output.nbytes)


if __name__ == "__main__":
    report_batch()
