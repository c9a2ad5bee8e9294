"""What kernels find on a card whose caches pass from launch to launch."""

from __future__ import annotations

import pytest
from simulated_card import torch, torch_npu

import npusim.torch
from npusim.chip import Arrival
from npusim.torch.clock import Event, clock

ROWS, COLUMNS = 64, 8192
BYTES = ROWS * COLUMNS * 2


def found(events: list[Event]) -> list[tuple[str, int]]:
    """Each kernel, and the bytes of its tensors that were in the L2."""
    launches = []
    for event in events:
        assert event.run is not None
        assert isinstance(event.run.l2, Arrival)
        launches.append((event.name, event.run.l2.resident_bytes))
    return launches


@pytest.mark.parametrize("values", [True, False])
def test_a_kernel_finds_what_the_one_before_has_written(values: bool) -> None:
    npusim.torch.install("ascend910b2", values=values, carried=True)
    x = torch.empty(ROWS, COLUMNS, dtype=torch.float16).npu()
    events = clock.record()
    y = torch_npu.npu_swiglu(x)
    torch_npu.npu_dynamic_quant(y)
    torch_npu.npu_swiglu(x[ROWS // 2 :])
    clock.stop(events)
    assert found(events) == [
        ("npu_swiglu", 0),
        ("npu_dynamic_quant", BYTES // 2),
        # Half of x, and the memory of the quantised tensor, which nobody has kept.
        ("npu_swiglu", BYTES // 2 + BYTES // 4),
    ]


def test_memory_that_is_given_back_is_found_by_whoever_takes_it() -> None:
    npusim.torch.install("ascend910b2", values=False, carried=True)
    x = torch.empty(ROWS, COLUMNS, dtype=torch.float16).npu()
    events = clock.record()
    for _ in range(2):
        torch_npu.npu_swiglu(x)  # dropped at once
    clock.stop(events)
    assert found(events) == [("npu_swiglu", 0), ("npu_swiglu", BYTES + BYTES // 2)]
    assert events[1].time_us < events[0].time_us


def test_a_launch_finds_nothing_unless_asked_for() -> None:
    x = torch.empty(ROWS, COLUMNS, dtype=torch.float16).npu()
    events = clock.record()
    for _ in range(2):
        torch_npu.npu_swiglu(x)
    clock.stop(events)
    assert [event.run.l2 for event in events if event.run] == ["cold", "cold"]
    assert events[0].time_us == events[1].time_us
