"""A first look at measured kernels, so that the README can say how far times are off."""

from __future__ import annotations

import pytest

import npusim
from npusim import TensorSpec, validation
from npusim.validation import Row

MEASURED = [row for row in validation.read() if row.family == "quant_a3"]
"""Of AscendQuantV2 in the trace of a model, least and median Task Duration."""


def simulated_us(row: Row) -> float:
    """As in the trace of a model: other kernels have run in between."""
    assert row.m is not None
    assert row.n is not None
    channel = TensorSpec((row.n,), "bfloat16")
    args = TensorSpec((row.m, row.n), "bfloat16"), channel, channel, "qint8", -1, False
    run = npusim.run("npu_quantize", *args, device="Atlas A3", l2="repeat", icache="cold")
    assert run.time_us is not None
    return run.time_us


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: row.id)
def test_static_quantisation_is_within_a_seventh_of_measured(row: Row) -> None:
    time_us = simulated_us(row)
    assert abs(time_us / row.nearest_us(time_us) - 1) < 1 / 7


def test_longer_kernels_come_out_longer() -> None:
    rows = sorted(MEASURED, key=lambda row: (row.m or 0) * (row.n or 0))
    times = [simulated_us(row) for row in rows]
    assert times == sorted(times)
