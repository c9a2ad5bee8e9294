"""The tables that torch_npu's profiler leaves, of kernels and of steps.

Columns are those of the lowest level of torch_npu's profiler as its users show them; the last ones
of the steps are assumed. Times are microseconds of simulated time.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from npusim.data.tensor import Tensor, TensorSpec
from npusim.run.result import Run
from npusim.torch.clock import Event
from npusim.torch.profiler.session import Step

__all__ = ["write_kernels", "write_statistic", "write_steps"]

Row = Sequence[Any]
KERNELS = (
    *("Device_id", "Name", "Type", "Accelerator Core", "Start Time(us)", "Duration(us)"),
    *("Wait Time(us)", "Block Num", "Input Shapes", "Input Data Types", "Input Formats"),
    *("Output Shapes", "Output Data Types", "Output Formats"),
)
STATISTIC = (
    *("Device_id", "OP Type", "Core Type", "Count", "Total Time(us)", "Min Time(us)"),
    *("Avg Time(us)", "Max Time(us)", "Ratio(%)"),
)
STEPS = (
    *("Device_id", "Step", "Computing", "Communication(Not Overlapped)", "Overlapped"),
    *("Communication", "Free", "Stage", "Bubble"),
    *("Communication(Not Overlapped and Exclude Receive)", "Preparing"),
)
DTYPES = {"float32": "FLOAT", "bfloat16": "DT_BF16"}
"""Types whose name in profiles is not their own in capitals."""


def write_kernels(path: Path, events: Iterable[Event], steps: Sequence[Step]) -> None:
    """A row for each kernel; with more than one step, its step comes first."""
    rows = []
    ended_us: float | None = None
    for event, run in _kernels(events):
        waited_us = 0.0 if ended_us is None else event.start_us - ended_us
        ended_us = event.start_us + event.time_us
        step = _step_of(event, steps)
        assert run.plan is not None
        row = [0, event.name, run.op, _cores(run)]
        row += [_us(event.start_us), _us(event.time_us), _us(waited_us), run.plan.block_dim]
        for values in (run.arguments, run.outputs):
            row += _described(values.values())
        rows.append([step, *row] if len(steps) > 1 else row)
    _write(path, ("Step Id", *KERNELS) if len(steps) > 1 else KERNELS, rows)


def write_statistic(path: Path, events: Iterable[Event]) -> None:
    """A row for each operator and kind of core, the longest first."""
    times: dict[tuple[str, str], list[float]] = {}
    for event, run in _kernels(events):
        times.setdefault((run.op, _cores(run)), []).append(event.time_us)
    total_us = sum(map(sum, times.values()))
    ordered = sorted(times.items(), key=lambda kind: (-sum(kind[1]), kind[0]))
    _write(
        path,
        STATISTIC,
        [
            [
                *(0, op, cores, len(us), _us(sum(us)), _us(min(us)), _us(sum(us) / len(us))),
                *(_us(max(us)), f"{100 * sum(us) / total_us:.3f}" if total_us else "0.000"),
            ]
            for (op, cores), us in ordered
        ],
    )


def write_steps(path: Path, events: Iterable[Event], steps: Sequence[Step]) -> None:
    """A row for each step: how long the card computed, and how long it had nothing to do."""
    busy_us = dict.fromkeys((step.number for step in steps), 0.0)
    for event, _ in _kernels(events):
        busy_us[_step_of(event, steps)] += event.time_us
    rows = []
    for step in steps:
        computing_us = busy_us[step.number]
        free_us = step.end_us - step.start_us - computing_us
        cells = (computing_us, 0.0, 0.0, 0.0, max(0.0, free_us), computing_us, 0.0, 0.0, 0.0)
        rows.append([0, step.number, *map(_us, cells)])
    _write(path, STEPS, rows)


def _kernels(events: Iterable[Event]) -> Iterable[tuple[Event, Run]]:
    """What ran on the card; operators without a kernel did not."""
    for event in events:
        if event.run is not None and event.run.plan is not None:
            yield event, event.run


def _step_of(event: Event, steps: Sequence[Step]) -> int:
    """The step in which *event* began; a kernel takes time, so it is the last that had begun."""
    return max((step.number for step in steps if step.start_us <= event.start_us), default=0)


def _cores(run: Run) -> str:
    """The profiler's word for the cores that took part."""
    kinds = {lane.kind for lane in run.trace.lanes} if run.trace else set()
    if run.device.arch == "2002" or kinds == {"aic"}:
        return "AI_CORE"
    return "MIX_AIC" if "aic" in kinds else "AI_VECTOR_CORE"


def _described(values: Iterable[Any]) -> list[str]:
    """Shapes, types and formats of the tensors among *values*, one cell each."""
    specs = [spec for spec in map(_spec, values) if spec is not None]
    return [
        ";".join(",".join(map(str, spec.storage_shape)) for spec in specs),
        ";".join(DTYPES.get(spec.dtype, spec.dtype.upper()) for spec in specs),
        ";".join(spec.layout for spec in specs),
    ]


def _spec(value: Any) -> TensorSpec | None:
    if isinstance(value, TensorSpec):
        return value
    if isinstance(value, Tensor):
        return value.spec
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return None if shape is None or dtype is None else TensorSpec(shape, dtype.name)


def _us(time_us: float) -> str:
    return f"{time_us:.3f}"


def _write(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
