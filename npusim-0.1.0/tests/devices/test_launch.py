"""What a launch is made of: each part costs those kernels that have it, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from npusim import DeviceSpec, TensorSpec, devices, run

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


def test_warm_instruction_caches_start_cores_faster() -> None:
    launch = devices.load("ascend910b2").launch
    cold, warm = (launch.time_us(4, reads_tiling=True, icache=each) for each in ("cold", "warm"))
    assert cold - warm == pytest.approx(4 * (launch.per_core_us - launch.warm_per_core_us))


@pytest.mark.parametrize(("is_mix", "readers"), [(False, 100), (True, 300)])
def test_all_cores_read_their_tiling_in_turn(is_mix: bool, readers: int) -> None:
    launch = devices.load("ascend910b2").launch
    without, reading = (
        launch.time_us(100, is_mix=is_mix, reads_tiling=each) for each in (False, True)
    )
    in_turn_us = readers * launch.tiling_per_core_us
    assert reading - without == pytest.approx(launch.tiling_us + in_turn_us)


def test_each_started_core_costs_up_to_a_limit() -> None:
    launch = devices.load("ascend910b2").launch
    limit = launch.saturation_cores
    one_us = launch.time_us(2) - launch.time_us(1)
    assert one_us == pytest.approx(launch.per_core_us)
    assert launch.time_us(limit) - launch.time_us(1) == pytest.approx((limit - 1) * one_us)
    assert launch.time_us(limit + 1) == launch.time_us(limit)
