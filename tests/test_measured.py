"""A first look at measured kernels, so that the README can say how far times are off."""

from __future__ import annotations

import pytest

import npusim
from npusim import TensorSpec

# Median Task Duration of AscendQuantV2, bf16 to int8, a scale and an offset for each column, on an
# Atlas A3: hudingyi688/aiconfigurator-npu@11bc0ae, docs/profiler_alignment/groundtruth/
# by_op_family.csv.
MEASURED_US = {
    (3, 4096): 10.68,
    (9, 4096): 9.8,
    (114, 2048): 11.23,
    (256, 2048): 13.84,
    (256, 6144): 17.18,
    (1824, 1024): 17.09,
    (4096, 1024): 28.15,
}


def simulated_us(shape: tuple[int, int]) -> float:
    """As in the trace of a model: other kernels have run in between."""
    row = TensorSpec(shape[1:], "bfloat16")
    args = TensorSpec(shape, "bfloat16"), row, row, "qint8", -1, False
    run = npusim.run("npu_quantize", *args, device="Atlas A3", l2="repeat", icache="cold")
    assert run.time_us is not None
    return run.time_us


@pytest.mark.parametrize(("shape", "measured_us"), MEASURED_US.items())
def test_static_quantisation_comes_out_within_an_eighth(
    shape: tuple[int, int], measured_us: float
) -> None:
    assert abs(simulated_us(shape) / measured_us - 1) < 1 / 8


def test_longer_kernels_come_out_longer() -> None:
    times = [simulated_us(shape) for shape in MEASURED_US]
    assert times == sorted(times)
