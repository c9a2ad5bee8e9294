"""What MindStudio Insight makes of a trace, as its parsers are written.

Source: Ascend/msinsight: JsonFileProcess, EventParser, EventUtil.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

FILES = re.compile(r"(trace_view|trace|msprof(_slice)?(_\d{1,15}){1,4})\.json")
"""Names that an import of a folder takes."""
METADATA = {f"{what}_{how}" for what in ("process", "thread") for how in ("name", "sort_index")}
FLAGS = {"SET_FLAG", "WAIT_FLAG", "set_event", "wait_event"}
HEAD_BYTES = 1_000_000


def problems(path: Path) -> list[str]:
    """Everything in *path* that Insight would drop, hide or misplace."""
    text = path.read_text(encoding="utf-8")
    head, found = text[: text.index("[")], []
    if FILES.fullmatch(path.name) is None:
        found.append(f"{path.name} is not taken by an import of a folder")
    if '"profilingType":"op"' not in head:
        found.append("not opened as a simulation: no profilingType before the first bracket")
    if '"traceEvents":[{' not in text[:HEAD_BYTES]:
        found.append("no traceEvents in the first megabyte")
    events = json.loads(text)["traceEvents"]
    for number, event in enumerate(events):
        found += [f"{number}: {problem}" for problem in _of_event(event)]
    return found + _of_flags(events) + _of_lanes(events)


def _of_event(event: dict[str, Any]) -> list[str]:
    match event.get("ph"):
        case "M":
            return [] if event["name"] in METADATA else [f"{event['name']} is no known metadata"]
        case "X":
            found = []
            if "" in (str(event.get("pid", "")), str(event.get("tid", ""))):
                found.append("no process or lane")
            if not all(isinstance(value, str) for value in event.get("args", {}).values()):
                found.append("an argument that is no text")
            return found
        case "B" | "E":
            known = event["name"] in FLAGS and event.get("id")
            return [] if known else [f"{event['name']} has a begin and an end, but is no flag"]
        case "s" | "t":
            return [] if isinstance(event["id"], int) else [f"arrow {event['id']!r} has no number"]
        case "C":
            return [] if event["ts"] > 0 else ["a counter at 0"]
        case other:
            return [f"ph {other!r} is ignored"]


def _of_flags(events: list[dict[str, Any]]) -> list[str]:
    """Flags are paired by their id."""
    feet = [(event.get("id"), event["ph"]) for event in events if event.get("ph") in ("B", "E")]
    times = Counter(feet)
    wrong = {flag for flag, _ in feet if not times[flag, "B"] == times[flag, "E"] == 1}
    return [f"flag {flag} must begin once and end once" for flag in sorted(map(str, wrong))]


def _of_lanes(events: list[dict[str, Any]]) -> list[str]:
    """Lanes hide others of which they overlap; and some are hidden if only others have a place."""
    found, ends = [], dict[tuple[str, str], int]()
    placed = {
        (str(event["pid"]), str(event["tid"]))
        for event in events
        if event.get("name") == "thread_sort_index"
    }
    for number, event in enumerate(events):
        if event.get("ph") not in ("X", "B", "E"):
            continue
        lane = str(event.get("pid")), str(event.get("tid"))
        start = round(event["ts"] * 1000)
        if event["ph"] != "E" and start < ends.get(lane, 0):
            found.append(f"{number}: overlaps what comes before it on {'/'.join(lane)}")
        ends[lane] = max(ends.get(lane, 0), start + round(event.get("dur", 0) * 1000))
    hidden = sorted("/".join(lane) for lane in ends.keys() - placed) if placed else []
    return found + [f"{lane} has no place, but others have" for lane in hidden]
