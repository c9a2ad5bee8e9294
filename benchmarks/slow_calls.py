"""The row of speed.py for calls with many small pieces, for which only the time is asked.

(m) processor seconds, and peak memory, of calls whose rows, groups, batches or products are many,
    each in a separate process that has loaded npusim before, against float32 BLAS of 4096 cubed
    on one thread.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from threadpoolctl import threadpool_limits

import npusim
import npusim.run.call
from npusim import Run, TensorSpec
from npusim.chip import Engine
from npusim.timing.compiled import is_built

SIZE = 4096
REPEATS = 3


def quantize(rows: int, columns: int, axis: int = -1, device: str = "ascend910b2") -> Run:
    """npu_quantize of fp16, a scale for each row or column; by rows, it divides."""
    divides = axis == 0
    scales = TensorSpec(((rows, columns)[axis],), "float32" if divides else "float16")
    x = TensorSpec((rows, columns), "float16")
    return run("npu_quantize", x, scales, None, "qint8", axis, divides, device=device)


def group_quant(rows: int, columns: int, groups: int) -> Run:
    """npu_group_quant of fp16."""
    scale, index = TensorSpec((groups, columns), "float32"), TensorSpec((groups,), "int32")
    return run("npu_group_quant", TensorSpec((rows, columns), "float16"), scale, index)


def dynamic_quant(rows: int, columns: int) -> Run:
    """npu_dynamic_quant of fp16."""
    return run("npu_dynamic_quant", TensorSpec((rows, columns), "float16"))


def in_groups_of_64(m: int, size: int) -> Run:
    """npu_weight_quant_batchmatmul of fp16 by int4 in groups of 64, k = n = *size*."""
    weight, scale = ((size, size // 8), "int32"), ((size // 64, size), "float16")
    return run(
        "npu_weight_quant_batchmatmul",
        *(TensorSpec((m, size), "float16"), TensorSpec(*weight), TensorSpec(*scale)),
        antiquant_group_size=64,
    )


def single_weight(m: int) -> Run:
    """npu_weight_quant_batchmatmul of fp16 by one int8."""
    x, weight = TensorSpec((m, 1), "float16"), TensorSpec((1, 1), "int8")
    return run("npu_weight_quant_batchmatmul", x, weight, TensorSpec((1,), "float16"))


def batch(count: int, size: int) -> Run:
    """npu_quant_matmul of *count* int8 products of *size* cubed to bfloat16."""
    x = TensorSpec((count, size, size), "int8")
    return run("npu_quant_matmul", x, x, TensorSpec((1,), "float32"), output_dtype="bfloat16")


def swiglu(rows: int, columns: int) -> Run:
    """npu_swiglu of fp16."""
    return run("npu_swiglu", TensorSpec((rows, columns), "float16"))


def experts(count: int, tokens: int) -> Run:
    """npu_grouped_matmul of bf16: *tokens* rows in ragged groups, one for each expert."""
    ends = np.sort(np.random.default_rng(0).integers(0, tokens, count - 1))
    return run(
        "npu_grouped_matmul",
        *([TensorSpec((tokens, 2048), "bfloat16")], [TensorSpec((count, 2048, 1024), "bfloat16")]),
        group_list=np.array([*ends, tokens], np.int64),
        group_type=0,
        split_item=3,
    )


def routing(tokens: int, experts_a_token: int = 8, count: int = 128) -> Run:
    """npu_moe_init_routing_v2 of bf16 tokens of 2048."""
    return run(
        "npu_moe_init_routing_v2",
        *(TensorSpec((tokens, 2048), "bfloat16"), TensorSpec((tokens, experts_a_token), "int32")),
        active_num=tokens * experts_a_token,
        expert_num=count,
        expert_tokens_num_type=1,
        expert_tokens_num_flag=True,
        active_expert_range=[0, count],
        quant_mode=-1,
    )


def prefill(heads: int, tokens: int) -> Run:
    """npu_fused_infer_attention_score of fp16, heads of 128, without a mask."""
    x = TensorSpec((1, heads, tokens, 128), "float16")
    given = {"num_heads": heads, "scale": 128**-0.5, "input_layout": "BNSD"}
    return run("npu_fused_infer_attention_score", x, x, x, **given)


def plan_a_model() -> None:
    """The example of that name: two models, three chips, weights of two kinds."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
    import plan_a_model

    with TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        plan_a_model.main(["-o", folder])


CALLS = {
    "examples/plan_a_model.py": plan_a_model,
    "npu_swiglu 65536 x 8192": lambda: swiglu(65536, 8192),
    "grouped product of 128 experts": lambda: experts(128, 4096),
    "routing of 4096 tokens": lambda: routing(4096),
    "attention, prefill 32 x 4096 x 128": lambda: prefill(32, 4096),
    "npu_quantize 65536 x 8192": lambda: quantize(65536, 8192),
    "npu_quantize 20000 x 12, 310P": lambda: quantize(20000, 12, device="ascend310p3"),
    "npu_quantize 16000 x 33 by row": lambda: quantize(16000, 33, axis=0),
    "npu_quantize 1000000 x 7": lambda: quantize(1_000_000, 7),
    "npu_group_quant 8192 x 1024, 64": lambda: group_quant(8192, 1024, 64),
    "npu_group_quant 65536 x 1001, 512": lambda: group_quant(65536, 1001, 512),
    "npu_dynamic_quant 8192 squared": lambda: dynamic_quant(8192, 8192),
    "weight int4 2 x 65472 x 65472": lambda: in_groups_of_64(2, 65472),
    "weight int8 10000000 x 1 x 1": lambda: single_weight(10_000_000),
    "2048 x int8 128 cubed": lambda: batch(2048, 128),
}


def run(*args: object, device: str = "ascend910b2", **kwargs: object) -> Run:
    """:func:`npusim.run` by the compiled engine, where there is one."""
    engine: Engine = "compiled" if is_built() else "simpy"
    return npusim.run(*args, device=device, engine=engine, **kwargs)  # type: ignore[arg-type]


def slow_calls() -> None:
    """(m)."""
    blas = blas_seconds()
    for name in CALLS:
        answer = subprocess.run(
            [sys.executable, __file__, name], check=True, capture_output=True, text=True
        )
        seconds, peak = answer.stdout.split()
        print(
            f"(m) timing only, {name:34}  {float(seconds) / blas:5.2f} x float32 BLAS of {SIZE} "
            f"cubed  ({float(seconds):.2f} s : {blas:.2f} s, {int(peak) >> 20} MiB)"
        )


def blas_seconds() -> float:
    """Processor seconds of the fastest of a few float32 products of 4096 cubed."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((SIZE, SIZE), np.float32) for _ in range(2))
    best = float("inf")
    with threadpool_limits(1):
        for _ in range(REPEATS):
            start = time.process_time()
            a @ b
            best = min(best, time.process_time() - start)
    return best


def report(name: str) -> None:
    """Print the processor seconds of the call *name*, and the peak memory of this process."""
    start = time.process_time()
    CALLS[name]()
    seconds = time.process_time() - start
    # ru_maxrss would start from what the parent held when it forked; VmHWM starts at exec.
    status = Path("/proc/self/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    print(seconds, int(peak.split()[1]) * 1024)


if __name__ == "__main__":
    words = argparse.ArgumentParser(description="Time calls with many small pieces.")
    words.add_argument("name", choices=list(CALLS), help="one of them, in this process")
    report(words.parse_args().name)
