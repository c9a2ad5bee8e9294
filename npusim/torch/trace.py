"""Write the work of the card as a trace for chrome://tracing, Perfetto and MindStudio Insight."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from npusim.data import files
from npusim.data.files import check_place
from npusim.data.json import Json
from npusim.torch.clock import Event

__all__ = ["check", "trace_events", "write"]

FILE = "trace_view.json"
"""The name of the trace file of torch_npu.profiler."""

ROWS = ("kernels", "host operations, not simulated")


def check(folder: Path, force: bool = False) -> None:
    """Check that a trace can be written to *folder*, before a script takes its time.

    An earlier trace is replaced only with *force*. Raises FileError.
    """
    check_place(folder / FILE, force, "npusim.torch")


def write(events: Iterable[Event], folder: Path, device: str, *, force: bool = False) -> Path:
    """Write `trace_view.json` of *events* to *folder*; returns its path. Raises FileError."""
    path = folder / FILE
    content = {"displayTimeUnit": "ns", "traceEvents": trace_events(events, device)}
    text = json.dumps(content, indent=1) + "\n"
    files.write(
        path, lambda new: new.write_text(text, encoding="utf-8"), "npusim.torch", force=force
    )
    return path


def trace_events(events: Iterable[Event], device: str) -> list[dict[str, object]]:
    """Events of the Chrome trace format: a row of kernels, and one of operations not simulated.

    Times are microseconds. Operations that are not simulated have duration 0.
    """
    process = f"npu:0 {device}"
    found: list[Json] = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": process}}]
    for row, name in enumerate(ROWS):
        found.append(
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": row, "args": {"name": name}}
        )
    found.extend(_complete(event) for event in events)
    return found


def _complete(event: Event) -> dict[str, object]:
    args: Json = {"graph": event.graph} if event.graph else {}
    if not event.is_simulated:
        args["simulated"] = False
    elif event.run is not None:
        args |= {"launch_us": event.launch_us, "cycles": event.run.cycles}
    return {
        "ph": "X",
        "name": event.name,
        "pid": 0,
        "tid": 0 if event.is_simulated else 1,
        "ts": event.start_us,
        "dur": event.time_us,
        "args": args,
    }
