"""Kernels of which times are published: their rows, and how long their pipes are busy."""

from __future__ import annotations

import pytest

from npusim import devices
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.kernel.matmul import BaseTile
from npusim.micro import time
from npusim.micro.product import Plan, product
from npusim.micro.published import PIPES_US, TABLES, find, mean_pipes_us
from npusim.micro.published.products import NORM
from npusim.validation.rows import read


@pytest.fixture(scope="module")
def a2() -> DeviceSpec:
    return devices.load("ascend910b1")


def test_rows_and_pipes_are_those_of_measured_kernels() -> None:
    measured = {row.id: row.latency_us for row in read()}
    published = [row for table in TABLES for row in table.rows if row.id]
    assert len(published) > 40
    for row in published:
        assert row.measured_us == measured[row.id]
    for id_ in PIPES_US:
        assert find(id_)


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("pipe", "id_", "tolerance"),
    [
        *(("vector", id_, 0.03) for id_ in ("m0663", "m0669", "m0685", "m0828", "m0833")),
        # Long rows, odd rows, and the same rows for all cores, in step and staggered.
        *(("mte2", id_, 0.05) for id_ in ("m0815", "m0816", "m0822", "m0823")),
        *(("mte2", id_, 0.05) for id_ in ("m0819", "m0820", "m0826", "m0827")),
    ],
)
def test_pipes_are_busy_as_measured(pipe: Pipe, id_: str, tolerance: float, a2: DeviceSpec) -> None:
    found = find(id_)
    assert found is not None
    table, row = found
    busy_us = mean_pipes_us(time(row.write(a2), a2, table.l2), a2)[pipe]
    assert busy_us == pytest.approx(PIPES_US[id_][pipe], rel=tolerance)


@pytest.mark.parametrize("pipe", ["mte1", "cube"])
def test_a_step_of_a_product_takes_as_long_as_the_profiler_says(pipe: Pipe, a2: DeviceSpec) -> None:
    """64 steps of the tile of m0699, on one core too, which does 8192 x 8192 x 8192."""
    kernel = product(a2, (256, 512, 1024), Plan(tile=NORM))
    busy_us = mean_pipes_us(time(kernel, a2), a2)[pipe]
    steps = 8192 * 8192 * 8192 / (256 * 512 * 1024)
    assert busy_us * steps == pytest.approx(PIPES_US["m0699"][pipe], rel=0.01)


def test_pipes_are_those_of_the_mean_core(a2: DeviceSpec) -> None:
    """64 x 64 x 64 and 32 x 64 x 64: as many fractals, and 62 cycles for an Mmad alone."""
    kernel = product(a2, (96, 64, 64), Plan(tile=BaseTile(64, 64, 64), grid=(2, 1)))
    busy_us = mean_pipes_us(time(kernel, a2), a2)["cube"]
    assert busy_us == pytest.approx((64 + 62 + 32 + 62) / 2 / 1850)
