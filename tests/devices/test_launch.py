"""What a launch is made of: each part costs those kernels that have it, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from npusim import DeviceSpec, TensorSpec, devices, run
from npusim.devices.schema import CodeRun, FoundCode

X = TensorSpec((40, 64), "int8")
WEIGHT = TensorSpec((64, 96), "int8")
SCALE = TensorSpec((96,), "float32")
PERTOKEN = {"pertoken_scale": TensorSpec((40,), "float32"), "output_dtype": "bfloat16"}
HALF = TensorSpec((48, 64), "float16")
ADDED_US = 3.0


def slower(device: str, part: str) -> DeviceSpec:
    """*device* with ADDED_US more in that part of its launch."""
    data = devices.load(device).model_dump(exclude={"sources"})
    data["launch"][part] += ADDED_US
    return DeviceSpec.model_validate(data)


def launch_us(spec: DeviceSpec, op: str) -> float:
    """Of a call of *op*: one on vector cores, one on cube cores, one on both."""
    calls: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "npu_quantize": ((HALF, TensorSpec((1,), "float32"), None, "qint8"), {}),
        "matmul": ((HALF, TensorSpec((64, 32), "float16")), {}),
        "npu_quant_matmul": ((X, WEIGHT, SCALE), PERTOKEN),
    }
    arguments, keywords = calls[op]
    return run(op, *arguments, device=spec, **keywords).launch_us


@pytest.mark.parametrize("op", ["npu_quantize", "matmul", "npu_quant_matmul"])
@pytest.mark.parametrize("device", ["ascend910b2", "ascend910_9391"])
def test_each_part_costs_the_kernels_that_have_it(device: str, op: str) -> None:
    before_us = launch_us(devices.load(device), op)
    assert before_us > 0
    added_us = {
        part: launch_us(slower(device, part), op) - before_us
        for part in ("base_us", "mix_us", "tiling_us", "completion_us")
    }
    assert added_us == {
        "base_us": pytest.approx(ADDED_US),
        "mix_us": pytest.approx(ADDED_US if op == "npu_quant_matmul" else 0.0),
        "tiling_us": pytest.approx(ADDED_US),
        "completion_us": pytest.approx(ADDED_US),
    }


A2 = devices.load("ascend910b2")
VECTOR = A2.cores["aiv"].code


def launched_us(micro_ops: int, icache: Any, block_dim: int = 48) -> float:
    """Of a kernel without tiling data on vector cores."""
    return A2.launch_us((block_dim, False, False), {"aiv": CodeRun(block_dim, micro_ops)}, icache)


def test_code_that_an_instruction_cache_holds_is_not_fetched() -> None:
    fitting = (VECTOR.cache_bytes - VECTOR.kernel_bytes) // VECTOR.micro_op_bytes
    assert launched_us(fitting, "warm") == A2.launch.time_us(48)
    # Of one that does not fit nothing is left; the L2 still has it.
    code_bytes = VECTOR.nbytes(fitting + 1, reads_tiling=False)
    line_ns = VECTOR.line_ns + 48 * VECTOR.turn_ns
    cold_us = code_bytes / VECTOR.line_bytes * line_ns / 1000
    assert launched_us(fitting + 1, "cold") == pytest.approx(A2.launch.time_us(48) + cold_us)
    warm_us = cold_us / VECTOR.l2_speed
    assert launched_us(fitting + 1, "warm") == pytest.approx(A2.launch.time_us(48) + warm_us)


def test_cube_and_vector_cores_fetch_at_once() -> None:
    runs = {"aic": CodeRun(24, 10), "aiv": CodeRun(48, 30)}
    split = 24, True, True
    alone = [A2.launch_us(split, {kind: run}) for kind, run in runs.items()]
    assert A2.launch_us(split, runs) == max(alone)
    held = FoundCode(held=frozenset({"aiv"}))
    assert A2.launch_us(split, runs, held) == alone[0]


def test_each_started_core_costs_the_same() -> None:
    launch = A2.launch
    assert launch.time_us(48) - launch.time_us(47) == pytest.approx(launch.start_us)
    assert launch.time_us(2, is_mix=True) - launch.time_us(1, is_mix=True) == pytest.approx(
        3 * launch.start_us
    )
