"""A script whose host takes the time of an engine: events, profiles and records show gaps."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from simulated_card import torch, torch_npu

import npusim.torch
from npusim import engines
from npusim.engines import EngineError
from npusim.torch.clock import clock

LAUNCH_US = engines.load("eager").decode.launch_us


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    npusim.torch.install(device="ascend910b2", engine="eager")
    yield
    npusim.torch.install(device="ascend910b2")


def test_events_hold_the_gaps_between_kernels() -> None:
    x = torch.ones(64, 256, dtype=torch.float16).npu()
    start, end = (torch.npu.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(10):
        torch_npu.npu_swiglu(x)
    end.record()
    torch.npu.synchronize()

    assert start.elapsed_time(end) == pytest.approx(10 * LAUNCH_US / 1e3, rel=0.25)
    npusim.torch.install(device="ascend910b2")
    assert clock.launch_us == 0


@pytest.mark.parametrize("wait", ["synchronize", "item", "cpu"])
def test_what_needs_the_card_waits_for_it(wait: str) -> None:
    x = torch.ones(4096, 8192, dtype=torch.float16).npu()
    y = torch_npu.npu_swiglu(x)
    assert clock.host_us < clock.now_us
    match wait:
        case "synchronize":
            torch.npu.synchronize()
        case "item":
            y[0, 0].item()
        case _:
            y.cpu()
    assert clock.host_us >= clock.now_us - LAUNCH_US


def test_the_profile_folder_shows_gaps(tmp_path: Path) -> None:
    x = torch.ones(64, 256, dtype=torch.float16).npu()
    handler = torch_npu.profiler.tensorboard_trace_handler(str(tmp_path))
    with torch_npu.profiler.profile(on_trace_ready=handler):
        for _ in range(3):
            torch_npu.npu_swiglu(x)
    (path,) = tmp_path.rglob("kernel_details.csv")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    times = [float(row["Start Time(us)"]) for row in rows]
    gaps = [b - a for a, b in pairwise(times)]
    assert gaps == [pytest.approx(LAUNCH_US, abs=0.01)] * 2


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(EngineError, match=r"^engines: no engine 'fast'; known: eager, "):
        npusim.torch.install(engine="fast")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_the_cpu_has_for_no_half_type_is_rounded_once(dtype: Any) -> None:
    x, y = (torch.rand(4, 3).to(dtype) for _ in range(2))
    found = torch.cdist(x.npu(), y.npu())
    assert found.dtype == dtype
    assert torch.equal(found.cpu(), torch.cdist(x.float(), y.float()).to(dtype))


def test_a_convolution_of_half_types_adds_up_in_float32() -> None:
    x, weight = torch.rand(1, 64, 8, 8).half(), torch.rand(4, 64, 3, 3).half()
    found = torch.nn.functional.conv2d(x.npu(), weight.npu())
    wanted = torch.nn.functional.conv2d(x.float(), weight.float()).half()
    assert torch.equal(found.cpu(), wanted)
