"""The tables that `msprof op simulator` writes for each core: by instruction and by line of code.

Columns from Ascend/msopprof, docs/en/user_guide/msopprof_simulator_performance_data.md; a running
time is the time in which at least one call was in progress.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from shutil import copyfile

from npusim.exports.listing import Listing
from npusim.exports.names import Place, lane_of
from npusim.exports.tally import Tally

__all__ = ["CODE", "INSTRUCTIONS", "write_csv", "write_tables"]

INSTRUCTIONS = ("instr", "addr", "pipe", "call_count", "cycles", "running_time(us)", "detail")
CODE = ("code", "call_count", "cycles", "running_time(us)")


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write *rows* below *header*; cells that contain commas are quoted."""
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(header)
        table.writerows(rows)


def write_tables(
    tally: Tally, listing: Listing, places: dict[int, Place], folder: Path, clock_hz: int
) -> None:
    """Write both tables of every core of *tally* into the folders of their names."""
    instructions, code = [], []
    for line in listing.lines:
        index = line.number - 1
        calls, cycles = int(tally.calls[index]), int(tally.lasted[index])
        if calls:
            running = f"{int(tally.covered[index]) / clock_hz * 1e6:.2f}"
            name, lane = line.name.upper(), lane_of(line)
            instructions.append((name, line.address, lane, calls, cycles, running, line.text))
            code.append((listing.code(line), calls, cycles, running))
    first: tuple[Path, Path] | None = None
    for core in tally.lane.cores:
        name = places[core].name
        paths = folder / name / f"{name}_instr_exe.csv", folder / name / f"{name}_code_exe.csv"
        if first is None:
            write_csv(paths[0], INSTRUCTIONS, instructions)
            write_csv(paths[1], CODE, code)
            first = paths
        for source, path in zip(first, paths, strict=True):
            if source != path:
                copyfile(source, path)
