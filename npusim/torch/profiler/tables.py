"""The tables of torch_npu's profiler: of kernels, of operations and of steps.

Columns of kernels: Ascend/pytorch, torch_npu/profiler/analysis/prof_common_func/_csv_headers.py;
those of operations, and the last ones of the steps, follow its documents (assumed). Times are
microseconds of simulated time; the host takes none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from npusim.devices.schema import DeviceSpec
from npusim.exports.profile import DETAILS, details
from npusim.exports.tables import write_csv
from npusim.torch.calls import Call
from npusim.torch.clock import Event
from npusim.torch.profiler import counters
from npusim.torch.profiler.collected import Kernel, Recorded
from npusim.torch.profiler.settings import _ExperimentalConfig

__all__ = [
    "CALL_LINES",
    "COMMUNICATION",
    "NO_MODEL",
    "shapes_of",
    "write_kernels",
    "write_operations",
    "write_statistic",
    "write_steps",
]

Row = list[Any]
DETAILED = (
    *(*DETAILS[:1], "Model ID", "Task ID", "Stream ID", *DETAILS[1:3], "OP State", *DETAILS[3:8]),
    *("Mix Block Num", "HF32 Eligible", *DETAILS[8:], "Context ID"),
)
"""The columns of kernels above level 0."""
STATISTIC = (
    *("Device_id", "OP Type", "Core Type", "Count", "Total Time(us)", "Min Time(us)"),
    *("Avg Time(us)", "Max Time(us)", "Ratio(%)"),
)
OPERATIONS = (
    *("Name", "Input Shapes", "Call Stack", "Host Self Duration(us)", "Host Total Duration(us)"),
    *("Device Self Duration(us)", "Device Total Duration(us)"),
    *("Device Self Duration With AICore(us)", "Device Total Duration With AICore(us)"),
)
STEPS = (
    *("Device_id", "Step", "Computing", "Communication(Not Overlapped)", "Overlapped"),
    *("Communication", "Free", "Stage", "Bubble"),
    *("Communication(Not Overlapped and Exclude Receive)", "Preparing"),
)
WITH_CUBE = ("AI_CORE", "MIX_AIC")
"""Kinds of cores whose time counts as that of AI cores."""
COMMUNICATION = "COMMUNICATION"
"""The kind of cores of an exchange between cards."""
MISSING = "N/A"
NO_MODEL = (1 << 32) - 1
"""The model number of kernels outside of a graph."""
CALL_LINES = ";\r\n"
"""The separator of the frames of a call stack."""


def write_kernels(
    path: Path, recorded: Recorded, spec: DeviceSpec, config: _ExperimentalConfig
) -> None:
    """A row for each kernel; with more than one step, its step comes first.

    Above level 0 also its task and stream, and the utilisation of the pipes of its cores.
    """
    columns = DETAILED if config.is_detailed else DETAILS
    if config.has_counters:
        columns = (*columns, *counters.columns(spec))
    # Repeated launches of a kernel share one trace, so the cells are cached.
    pipes = cache(partial(counters.counters, spec))
    has_steps = len(recorded.steps) > 1
    rows, ended_us = [], None
    for number, one in enumerate(_in_order(recorded)):
        event = one if isinstance(one, Event) else one.event
        waited_us = 0.0 if ended_us is None else max(0.0, event.start_us - ended_us)
        ended_us = event.start_us + event.time_us
        times = event.start_us + recorded.lead_us, event.time_us, waited_us
        if isinstance(one, Event):
            rows.append((recorded.step_of(event), _exchange(event, number, times, columns)))
            continue
        row: Row = details(one.run, one.name, *times)
        if config.is_detailed:
            row = _with_task(row, one, number)
        if config.has_counters:
            row += pipes(one.run.trace, event.time_us)
        rows.append((one.step, row))
    found = [[step, *row] if has_steps else row for step, row in rows]
    write_csv(path, ["Step Id", *columns] if has_steps else columns, found)


def _in_order(recorded: Recorded) -> list[Kernel | Event]:
    """The kernels and exchanges on the card, in order of their start."""
    found: list[Kernel | Event] = [*recorded.kernels, *recorded.exchanges]
    return sorted(found, key=lambda one: (one if isinstance(one, Event) else one.event).start_us)


def _exchange(event: Event, number: int, times: tuple[float, ...], columns: Sequence[str]) -> Row:
    """The row of an exchange between cards, which has neither operands nor cores."""
    start, time, wait = (f"{us:.3f}" for us in times)
    known = {
        "Device_id": 0,
        "Name": event.name,
        "Type": event.name,
        "Accelerator Core": COMMUNICATION,
        "Start Time(us)": start,
        "Duration(us)": time,
        "Wait Time(us)": wait,
        "Block Num": 0,
        "Model ID": NO_MODEL,
        "Task ID": number,
        "Stream ID": event.stream,
    }
    return [known.get(column, MISSING) for column in columns]


def _with_task(row: Row, kernel: Kernel, number: int) -> Row:
    """Insert the cells of the task into *row* of level 0; a block of a mixed kernel has two vector
    cores."""
    vectors = 2 * kernel.run.plan.block_dim if kernel.run.plan and kernel.cores == "MIX_AIC" else 0
    tasks = [NO_MODEL, number, kernel.event.stream]
    first, last = [*tasks, *row[1:3], "dynamic"], [vectors, "NO", *row[8:], MISSING]
    return [*row[:1], *first, *row[3:8], *last]


def write_statistic(path: Path, recorded: Recorded) -> None:
    """A row for each type of kernel and kind of core, the longest first."""
    times: dict[tuple[str, str], list[float]] = {}
    for kernel in recorded.kernels:
        kind = kernel.run.kernel_type or "", kernel.cores
        times.setdefault(kind, []).append(kernel.event.time_us)
    total_us = sum(map(sum, times.values()))
    ordered = sorted(times.items(), key=lambda kind: (-sum(kind[1]), kind[0]))
    rows = []
    for (op, cores), us in ordered:
        measures = [_us(found) for found in (sum(us), min(us), sum(us) / len(us), max(us))]
        share = 100 * sum(us) / total_us if total_us else 0.0
        rows.append([0, op, cores, len(us), *measures, f"{share:.3f}"])
    write_csv(path, STATISTIC, rows)


def write_operations(path: Path, recorded: Recorded) -> None:
    """A row for each operation of torch, in order, with the time of its kernels.

    Operations are not nested, so the own time of each is its total time.
    """
    own = [[0.0, 0.0] for _ in recorded.calls]
    for kernel in recorded.kernels:
        if kernel.call is not None:
            own[kernel.call][0] += kernel.event.time_us
            own[kernel.call][1] += kernel.event.time_us * (kernel.cores in WITH_CUBE)
    rows = []
    for call, (device_us, cube_us) in zip(recorded.calls, own, strict=True):
        times = 0.0, 0.0, device_us, device_us, cube_us, cube_us
        rows.append([call.name, shapes_of(call), CALL_LINES.join(call.stack), *map(_us, times)])
    write_csv(path, OPERATIONS, rows)


def shapes_of(call: Call) -> str:
    """The shapes of the tensors of *call*, in the format of profilers."""
    return ";".join(",".join(map(str, shape)) for shape in call.inputs)


def write_steps(path: Path, recorded: Recorded) -> None:
    """A row for each step: how long the card computed, and how long it was idle."""
    rows = []
    for step in recorded.steps:
        within = [kernel for kernel in recorded.kernels if kernel.step == step.number]
        exchanges = [each for each in recorded.exchanges if recorded.step_of(each) == step.number]
        computing_us = sum(kernel.event.time_us for kernel in within)
        moving_us = sum(event.time_us for event in exchanges)
        hidden_us = sum(_both_us(event, kernel.event) for event in exchanges for kernel in within)
        alone_us = moving_us - hidden_us
        free_us = max(0.0, step.end_us - step.start_us - computing_us - alone_us)
        began_us = [*(kernel.event.start_us for kernel in within), *(e.start_us for e in exchanges)]
        first_us = min(began_us, default=step.end_us)
        # Without pipeline bubbles, the stage is the whole step.
        whole_us = step.end_us - step.start_us
        cells = (computing_us, alone_us, hidden_us, moving_us, free_us, whole_us, 0.0, alone_us)
        rows.append([0, step.number, *map(_us, cells), _us(first_us - step.start_us)])
    write_csv(path, STEPS, rows)


def _both_us(one: Event, other: Event) -> float:
    """The time for which both events overlap."""
    end_us = min(one.start_us + one.time_us, other.start_us + other.time_us)
    return max(0.0, end_us - max(one.start_us, other.start_us))


def _us(time_us: float) -> str:
    return f"{time_us:.3f}"
