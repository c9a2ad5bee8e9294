"""Small profiles written by hand: a table or a database as versions of CANN leave them."""

from __future__ import annotations

import csv
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

NAMES = {
    "name": "Name",
    "type": "Type",
    "cores": "Accelerator Core",
    "start": "Start Time(us)",
    "time": "Duration(us)",
    "wait": "Wait Time(us)",
    "blocks": "Block Num",
    "shapes": "Input Shapes",
    "types": "Input Data Types",
    "formats": "Input Formats",
    "out shapes": "Output Shapes",
    "out types": "Output Data Types",
    "out formats": "Output Formats",
}
"""What torch_npu's profiler calls columns."""
OLDER = NAMES | {"blocks": "Block Dim"}
SUMMARY = NAMES | {
    "name": "Op Name",
    "type": "OP Type",
    "cores": "Task Type",
    "start": "Task Start Time(us)",
    "time": "Task Duration(us)",
    "wait": "Task Wait Time(us)",
    "busy": "aiv_time(us)",
}
OLDER_SUMMARY = SUMMARY | {"blocks": "Block Dim"}
Cells = Mapping[str, object]


def swiglu(start_us: object, time_us: object, **changes: object) -> dict[str, object]:
    """A launch of SwiGlu, which takes 7.804 us on Ascend 910B2 where its input is cold."""
    kernel = {"name": "aclnnSwiGlu_SwiGlu_SwiGlu", "type": "SwiGlu", "cores": "AI_VECTOR_CORE"}
    kernel |= {"shapes": "64,2048", "types": "FLOAT16", "formats": "ND", "out shapes": "64,1024"}
    kernel |= {"out types": "FLOAT16", "out formats": "ND"}
    return kernel | {"start": start_us, "time": time_us, "wait": 0, "blocks": 12} | changes


def kernel(kind: str, start_us: object, time_us: object, **changes: object) -> dict[str, object]:
    """A launch of a kernel without operands."""
    empty = dict.fromkeys(("shapes", "types", "formats"), "N/A")
    outputs = {f"out {name}": cell for name, cell in empty.items()}
    more = {"type": kind, "name": kind, "blocks": "N/A"}
    return swiglu(start_us, time_us, **more, **empty, **outputs) | changes


def write(path: Path, rows: Iterable[Cells], names: Mapping[str, str] = NAMES) -> Path:
    """Write *rows* as a table whose columns have *names*."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["Device_id", *names.values()])
        table.writerows([0, *(row.get(name, "N/A") for name in names)] for row in rows)
    return path


def write_database(path: Path, rows: Iterable[Cells], blocks: str = "blockNum") -> Path:
    """Write *rows*, whose times are whole microseconds, and a collective from 20 us on."""
    columns = {
        "name": "name",
        "type": "opType",
        "cores": "taskType",
        "shapes": "inputShapes",
        "types": "inputDataTypes",
        "formats": "inputFormats",
        "out shapes": "outputShapes",
        "out types": "outputDataTypes",
        "out formats": "outputFormats",
    }
    words: dict[str, int] = {}

    def number(word: object) -> int:
        return words.setdefault(str(word), len(words))

    with closing(sqlite3.connect(path)) as base:
        base.execute("CREATE TABLE STRING_IDS (id, value)")
        base.execute("CREATE TABLE TASK (startNs, endNs, globalTaskId)")
        names = ", ".join(columns.values())
        base.execute(f"CREATE TABLE COMPUTE_TASK_INFO (globalTaskId, {blocks}, {names})")
        base.execute("CREATE TABLE COMMUNICATION_OP (opName, opType, startNs, endNs)")
        for task, row in enumerate(rows):
            start_ns, lasts_ns = (int(str(row[name])) * 1000 for name in ("start", "time"))
            base.execute("INSERT INTO TASK VALUES (?, ?, ?)", (start_ns, start_ns + lasts_ns, task))
            cells = [task, row["blocks"], *(number(row[name]) for name in columns)]
            marks = ", ".join("?" * len(cells))
            base.execute(f"INSERT INTO COMPUTE_TASK_INFO VALUES ({marks})", cells)
        collective = number("hcom_allReduce__1"), number("hcom_allReduce_"), 20000, 25000
        base.execute("INSERT INTO COMMUNICATION_OP VALUES (?, ?, ?, ?)", collective)
        base.executemany("INSERT INTO STRING_IDS VALUES (?, ?)", [(v, k) for k, v in words.items()])
        base.commit()
    return path
