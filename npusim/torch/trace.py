"""What the card did, as a trace that chrome://tracing, Perfetto and MindStudio Insight open."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from npusim.torch.clock import Event

__all__ = ["TraceError", "check", "trace_events", "write"]

FILE = "trace_view.json"
"""The name under which torch_npu.profiler leaves its trace."""

ROWS = ("kernels", "host operations, not simulated")


class TraceError(ValueError):
    """A trace cannot be written where it should be."""


def check(folder: Path) -> None:
    """Make *folder*, before a script takes its time. Raises TraceError where that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE).touch()
    except OSError as error:
        raise TraceError(
            f"npusim.torch: the folder {folder} must be one that can be written, but: "
            f"{error.strerror}; name another"
        ) from None


def write(events: Iterable[Event], folder: Path, device: str) -> Path:
    """Write `trace_view.json` of *events* into *folder*, which exists; returns its path."""
    path = folder / FILE
    content = {"displayTimeUnit": "ns", "traceEvents": trace_events(events, device)}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


def trace_events(events: Iterable[Event], device: str) -> list[dict[str, Any]]:
    """Events of the Chrome trace format: a row of kernels, and one of what is not simulated.

    Times are microseconds. What is not simulated lasts 0.
    """
    process = f"npu:0 {device}"
    found: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": process}}
    ]
    for row, name in enumerate(ROWS):
        found.append(
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": row, "args": {"name": name}}
        )
    found.extend(_complete(event) for event in events)
    return found


def _complete(event: Event) -> dict[str, Any]:
    args: dict[str, Any] = {"graph": event.graph} if event.graph else {}
    if event.run is None:
        args["simulated"] = False
    else:
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
