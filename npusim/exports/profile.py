"""The tables of `msprof op`: what each core did, in the columns of its product line.

A cube core and its vector cores share a block on A2 and A3; the columns of the other kind, and
whatever has no model here, hold `NA`. The Atlas inference series has one row, which holds the mean
of the cores that took part: that this is the vendor's meaning is assumed.

`kernel_details.csv` has the columns that torch_npu's profiler writes at its lowest level
(Ascend/pytorch, torch_npu/profiler/analysis/prof_common_func/_csv_headers.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npusim.data.tensor import TensorSpec
from npusim.exports.columns import BASIC, COLUMNS
from npusim.exports.listing import Listing
from npusim.exports.measures import Measures, measures
from npusim.exports.names import Place
from npusim.exports.tables import write_csv
from npusim.exports.tally import Tally
from npusim.run.result import Output, Run

__all__ = ["DETAILS", "write_details", "write_profile"]

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
"""Types whose name in profiles is not their own in capitals."""


def write_profile(
    run: Run, tallies: list[Tally], listing: Listing, places: dict[int, Place], folder: Path
) -> list[str]:
    """Write every table into *folder*; returns their names."""
    spec = run.device
    found = [(tally, measures(tally, listing, spec)) for tally in tallies]
    names = []
    for name, columns in COLUMNS[spec.arch].items():
        rows = _means(columns, found) if spec.arch == "2002" else _rows(columns, found, places)
        write_csv(folder / f"{name}.csv", columns, rows)
        names.append(f"{name}.csv")
    write_csv(folder / "OpBasicInfo.csv", BASIC[spec.arch], [_basic(run)])
    return [*names, "OpBasicInfo.csv"]


def _rows(
    columns: Sequence[str], found: list[tuple[Tally, Measures]], places: dict[int, Place]
) -> list[list[str]]:
    """A row for each core, blocks ascending."""
    cores = [(places[core], tally, own) for tally, own in found for core in tally.lane.cores]
    rows = []
    for place, tally, own in sorted(cores, key=lambda core: (core[0].block, core[0].part)):
        known = {f"{tally.lane.kind}_{name}": value for name, value in own.items()} | own
        cells = [_cell(known.get(name)) for name in columns[2:]]
        rows.append([str(place.block), place.part, *cells])
    return rows


def _means(columns: Sequence[str], found: list[tuple[Tally, Measures]]) -> list[list[str]]:
    """One row, of the mean over all cores."""
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


def _kinds(run: Run) -> str:
    """Which kinds of core of A2 and A3 took part: cube, vector or mix; AiCore before them."""
    assert run.trace is not None
    kinds = {lane.kind for lane in run.trace.lanes}
    if run.device.arch == "2002":
        return "AiCore"
    return "mix" if len(kinds) > 1 else "cube" if "aic" in kinds else "vector"


def _basic(run: Run) -> list[str]:
    assert run.plan is not None
    assert run.launches[-1].time_us is not None
    clock = _cell(run.device.clock_hz / 1e6)
    kind = _kinds(run)
    blocks = str(run.plan.block_dim)
    vectors = str(2 * run.plan.block_dim) if kind == "mix" else MISSING
    cells = {
        "Op Name": run.op,
        "Op Type": kind,
        "Task Duration(us)": _cell(run.launches[-1].time_us),
        "Block Dim": blocks,
        "Mix Block Dim": vectors,
        "Device Id": "0",
        "Current Freq": clock,
        "Rated Freq": clock,
    }
    return [cells.get(name, MISSING) for name in BASIC[run.device.arch]]


def write_details(run: Run, path: Path) -> None:
    """Write `kernel_details.csv`: a row a kernel, the first from 0 on, none waits for another."""
    rows, start_us = [], 0.0
    for each in (*run.earlier, run):
        rows.append(_details(each, start_us))
        start_us += each.time_us or 0.0
    write_csv(path, DETAILS, rows)


def _details(run: Run, start_us: float) -> list[Any]:
    """The kernel of *run* itself, which starts at *start_us*."""
    own = run.launches[-1]
    assert own.time_us is not None
    inputs = [spec for value in run.arguments.values() for spec in _specs(value)]
    outputs = [spec for value in run.outputs.values() for spec in _specs(value)]
    cores = {"vector": "AI_VECTOR_CORE", "mix": "MIX_AIC"}
    row: list[Any] = [0, run.op, run.op, cores.get(_kinds(run), "AI_CORE")]
    row += [f"{start_us:.3f}" if start_us else 0, f"{own.time_us:.3f}", 0, own.block_dim]
    for specs in (inputs, outputs):
        row.append(";".join(",".join(map(str, spec.storage_shape)) for spec in specs))
        row.append(";".join(DTYPES.get(spec.dtype, spec.dtype.upper()) for spec in specs))
        row.append(";".join(spec.layout for spec in specs))
    return row


def _specs(value: Output | Any) -> list[TensorSpec]:
    """The tensors in an argument or an output."""
    if isinstance(value, tuple):
        return [spec for part in value for spec in _specs(part)]
    if isinstance(value, TensorSpec):
        return [value]
    if hasattr(value, "spec"):
        return [value.spec]
    return [TensorSpec(value.shape, value.dtype.name)] if hasattr(value, "shape") else []
