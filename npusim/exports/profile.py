"""The tables of `msprof op`: what each core did, in the columns of its product line.

A cube core and its vector cores share a block on A2 and A3; the columns of the other kind of core,
and columns that npusim does not model, hold `NA`. The Atlas inference series has one row with the
mean of the active cores: that the vendor defines it so is assumed.

`kernel_details.csv` has the columns that torch_npu's profiler writes at its lowest level
(Ascend/pytorch, torch_npu/profiler/analysis/prof_common_func/_csv_headers.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from npusim.data.tensor import Tensor, TensorSpec
from npusim.exports.columns import BASIC, COLUMNS
from npusim.exports.kernel_names import kernel_name
from npusim.exports.measures import Measures
from npusim.exports.names import Place
from npusim.exports.tables import write_csv
from npusim.exports.tally import Tally
from npusim.run.result import Output, Result

__all__ = [
    "DETAILS",
    "basic",
    "cores_of",
    "details",
    "means",
    "profiled_dtype",
    "table",
    "write_details",
    "write_profile",
]

MISSING = "NA"
DETAILS = (
    "Device_id",
    "Name",
    "Type",
    "Accelerator Core",
    "Start Time(us)",
    "Duration(us)",
    "Wait Time(us)",
    "Block Num",
    "Input Shapes",
    "Input Data Types",
    "Input Formats",
    "Output Shapes",
    "Output Data Types",
    "Output Formats",
)
DTYPES = {"float32": "FLOAT", "bfloat16": "DT_BF16"}
"""Types whose name in profiles is not simply their name in capitals."""


def write_profile(
    run: Result, found: Sequence[tuple[Tally, Measures]], places: dict[int, Place], folder: Path
) -> list[str]:
    """Write every table into *folder*; returns their names."""
    spec = run.device
    names = []
    for name, columns in COLUMNS[spec.arch].items():
        rows = means(columns, found) if spec.arch == "2002" else table(columns, found, places)
        write_csv(folder / f"{name}.csv", columns, rows)
        names.append(f"{name}.csv")
    known = basic(run)
    cells = [known.get(name, MISSING) for name in BASIC[spec.arch]]
    write_csv(folder / "OpBasicInfo.csv", BASIC[spec.arch], [cells])
    return [*names, "OpBasicInfo.csv"]


def table(
    columns: Sequence[str], found: Sequence[tuple[Tally, Measures]], places: dict[int, Place]
) -> list[list[str]]:
    """A row for each core, blocks ascending: its block, its part of the block, its *columns*."""
    cores = [(places[core], tally, own) for tally, own in found for core in tally.lane.cores]
    rows = []
    for place, tally, own in sorted(cores, key=lambda core: (core[0].block, core[0].part)):
        known = {f"{tally.lane.kind}_{name}": value for name, value in own.items()} | own
        cells = [_cell(known.get(name)) for name in columns[2:]]
        rows.append([str(place.block), place.part, *cells])
    return rows


def means(columns: Sequence[str], found: Sequence[tuple[Tally, Measures]]) -> list[list[str]]:
    """One row with the mean over all cores."""
    cells = []
    for column in columns:
        name = column.removeprefix("aic_").replace("l2_cache_hit_rate", "total_hit_rate")
        values = [own.get(name) for tally, own in found for _ in tally.lane.cores]
        known = [value for value in values if value is not None]
        cells.append(_cell(sum(known) / len(known) if known else None))
    return [cells]


def _cell(value: float | None) -> str:
    if value is None:
        return MISSING
    return str(int(value)) if value == int(value) else f"{value:.6f}"


def _kinds(run: Result) -> str:
    """The active kinds of core on A2 and A3: cube, vector or mix; AiCore on earlier chips."""
    assert run.trace is not None
    kinds = {lane.kind for lane in run.trace.lanes}
    if run.device.arch == "2002":
        return "AiCore"
    return "mix" if len(kinds) > 1 else "cube" if "aic" in kinds else "vector"


def basic(run: Result) -> dict[str, str]:
    """Column of OpBasicInfo -> its value for *run*, if that is known."""
    assert run.plan is not None
    assert run.launches[-1].time_us is not None
    clock = _cell(run.device.clock_hz / 1e6)
    kind = _kinds(run)
    blocks = str(run.plan.block_dim)
    vectors = str(2 * run.plan.block_dim) if kind == "mix" else MISSING
    return {
        "Op Name": run.op,
        "Op Type": kind,
        "Task Duration(us)": _cell(run.launches[-1].time_us),
        "Block Dim": blocks,
        "Mix Block Dim": vectors,
        "Device Id": "0",
        "Current Freq": clock,
        "Rated Freq": clock,
    }


def write_details(run: Result, path: Path) -> None:
    """Write `kernel_details.csv`: a row per kernel, starting at 0; no kernel waits for another."""
    rows, start_us = [], 0.0
    for each in (*run.earlier, run):
        own_us = each.launches[-1].time_us
        assert own_us is not None
        rows.append(details(each, kernel_name(each), start_us, own_us))
        start_us += each.time_us or 0.0
    write_csv(path, DETAILS, rows)


def details(
    run: Result, name: str, start_us: float, time_us: float, waited_us: float = 0.0
) -> list[object]:
    """The row of the main kernel of *run*, which profilers call *name*."""
    assert run.plan is not None
    inputs = [spec for value in run.arguments.values() for spec in _specs(value)]
    outputs = [spec for value in run.outputs.values() for spec in _specs(value)]
    row: list[Any] = [0, name, run.kernel_type, cores_of(run)]
    row += [f"{us:.3f}" for us in (start_us, time_us, waited_us)]
    row.append(run.plan.block_dim)
    for specs in (inputs, outputs):
        row.append(";".join(",".join(map(str, spec.storage_shape)) for spec in specs))
        row.append(";".join(profiled_dtype(spec.dtype) for spec in specs))
        row.append(";".join(spec.layout for spec in specs))
    return row


def cores_of(run: Result) -> str:
    """The profiler's term for the active cores."""
    return {"vector": "AI_VECTOR_CORE", "mix": "MIX_AIC"}.get(_kinds(run), "AI_CORE")


def profiled_dtype(name: str) -> str:
    """The name of the type *name* in profiles."""
    return DTYPES.get(name, name.upper())


def _specs(value: Output | object) -> list[TensorSpec]:
    """The tensors in an argument or an output, including those in a list."""
    if isinstance(value, tuple | list):
        return [spec for part in value for spec in _specs(part)]
    if isinstance(value, TensorSpec):
        return [value]
    if isinstance(value, Tensor):
        return [value.spec]
    return [TensorSpec(value.shape, value.dtype.name)] if isinstance(value, np.ndarray) else []
