"""Flags between cores, as kernels set and await them."""

from __future__ import annotations

from npusim.devices.schema import DeviceSpec
from npusim.kernel.builder import Builder
from npusim.kernel.cross_core import sync_all


def test_vector_cores_meet_before_their_cube_core_starts(tiny: DeviceSpec) -> None:
    builder = Builder("kernel", tiny.cores["aiv"], tiny.sync)
    sync_all(builder, set_pipe="mte3", wait_pipe="mte2", event=3, group_event=0)
    sync_all(builder, set_pipe="vector", wait_pipe="vector", event=4)

    assert str(builder.build()).splitlines() == [
        "mte3     cross_core_set_flag all 3",
        "mte2     cross_core_wait_flag all 3",
        "mte2     cross_core_set_flag group 0",
        "vector   cross_core_set_flag all 4",
        "vector   cross_core_wait_flag all 4",
    ]
