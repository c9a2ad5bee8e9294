"""What MindStudio Insight shows on its Details page: a run, its loads, memories and rooflines.

Each is a block of JSON in `visualize_data.bin`. Formats: Ascend/msopprof, csrc/common/visualize.h
and csrc/op_profiling, from the reader's side; that Insight's front end shows all is assumed.
"""

from __future__ import annotations

from collections.abc import Sequence

from npusim.data.json import Json
from npusim.exports.columns import COLUMNS
from npusim.exports.measures import Measures
from npusim.exports.names import Place
from npusim.exports.profile import basic, means, table
from npusim.exports.tally import Tally
from npusim.reports import roofline
from npusim.run.result import Result

__all__ = ["details"]

BASIC, LOADS, LOAD_TABLE, MEMORY_TABLE, ROOFLINE = 5, 6, 7, 9, 13
"""Types of blocks."""
MICROSECONDS, COUNT = 0, 1
"""Units of loads."""
TERA = 1e12
LOAD_KINDS = ((MICROSECONDS, "_time(us)"), (COUNT, "_instructions"))
MEMORY_TABLES = ("Memory", "MemoryL0", "MemoryUB")

Found = Sequence[tuple[Tally, Measures]]


def details(run: Result, found: Found, places: dict[int, Place]) -> list[tuple[str, int, Json]]:
    """The blocks of *run*: name, type and content of each."""
    loads = _loads(found, places)
    return [
        ("basic information", BASIC, _basic(run, found, places)),
        ("loads", LOADS, loads),
        ("table of loads", LOAD_TABLE, loads),
        ("memories", MEMORY_TABLE, _memories(run, found, places)),
        ("rooflines", ROOFLINE, _rooflines(run)),
    ]


def _cores(found: Found, places: dict[int, Place]) -> list[tuple[Place, Tally, Measures]]:
    each = [(places[core], tally, own) for tally, own in found for core in tally.lane.cores]
    return sorted(each, key=lambda core: core[0].order)


def _basic(run: Result, found: Found, places: dict[int, Place]) -> Json:
    known = basic(run)
    rows: list[Json] = [
        {"value": [str(place.block), place.part, f"{own['time(us)']:.3f}"]}
        for place, _, own in _cores(found, places)
    ]
    head = ["Block ID", "Core Type", "Duration (μs)"]
    return {
        "name": run.op,
        "soc": run.device.name,
        "op_type": known["Op Type"],
        "block_dim": known["Block Dim"],
        "mix_block_dim": known.get("Mix Block Dim", ""),
        "device_id": known["Device Id"],
        "pid": "0",
        "duration": known["Task Duration(us)"],
        "cur_freq": known["Current Freq"],
        "rated_freq": known["Rated Freq"],
        "advice": [roofline.verdict(run)],
        "block_detail": {"head_name": head, "size": [len(rows) + 1, len(head)], "row": rows},
    }


def _loads(found: Found, places: dict[int, Place]) -> Json:
    rows: list[Json] = []
    for place, _, own in _cores(found, places):
        for unit, ending in LOAD_KINDS:
            for name in (each for each in own if each.endswith(ending) and each != f"time{ending}"):
                value = f"{own[name]:.3f}" if unit == MICROSECONDS else str(int(own[name]))
                rows.append({
                    "block_id": str(place.block),
                    "block_type": place.part,
                    "name": name.removesuffix(ending),
                    "unit": unit,
                    "value": value,
                    "origin_value": value,
                })  # fmt: skip
    return {"subblock_detail": rows, "advice": []}


def _memories(run: Result, found: Found, places: dict[int, Place]) -> Json:
    """The tables of memories that `msprof op` writes, block by block."""
    tables: dict[str, dict[str, tuple[Sequence[str], list[Json]]]] = {}
    for name in MEMORY_TABLES:
        columns: Sequence[str] = COLUMNS[run.device.arch][name]
        if run.device.arch == "2002":
            lines = [["0", "core", *means(columns, found)[0]]]
        else:
            lines, columns = table(columns, found, places), columns[2:]
        for block, part, *cells in lines:
            _, rows = tables.setdefault(block, {}).setdefault(name, (columns, []))
            rows.append({"name": part, "value": cells})
    return {
        "table_per_block": [
            {
                "block_id": block,
                "table_op_type": basic(run)["Op Type"],
                "advice": [],
                "table_detail": [
                    {
                        "table_name": name,
                        "size": [len(rows) + 1, len(columns) + 1],
                        "header_name": list(columns),
                        "row": rows,
                    }
                    for name, (columns, rows) in own.items()
                ],
            }
            for block, own in tables.items()
        ]
    }


def _rooflines(run: Result) -> Json:
    titles: dict[str, list[Json]] = {}
    for row in roofline.rows(run):
        titles.setdefault(row.title, []).append({
            "computility_name": row.elements,
            "computility": row.peak_ops_per_s / TERA,
            "bw_name": row.name,
            "bw": row.bytes_per_s / TERA,
            "point": [row.intensity, row.ops_per_s / TERA],
            "ratio": f"{row.share:.2f}",
        })  # fmt: skip
    found: list[Json] = [{"title": title, "rooflines": each} for title, each in titles.items()]
    return {"advice": roofline.verdict(run), "multiple_rooflines": found}
