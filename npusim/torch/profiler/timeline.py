"""`trace_view.json` of a profile, in the format of the vendor's profiler and tools.

A list of events in the Chrome trace format, times in microseconds: operations of torch in the
process Python, kernels by stream in Ascend Hardware, computing and free time in Overlap Analysis,
and an arrow `async_npu` from each operation to each of its kernels. Names and fields are those that
msprof-analyze 26.2.0 reads (trace_event_bean.py, timeline_op_collector.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from npusim.data.json import Json
from npusim.torch.clock import Event
from npusim.torch.profiler.collected import TICK_US, Kernel, Recorded
from npusim.torch.profiler.tables import CALL_LINES, COMMUNICATION, NO_MODEL, shapes_of

__all__ = ["write_timeline"]

PROCESSES = {1: "Python", 2: "Ascend Hardware", 3: "Overlap Analysis"}
PYTHON, HARDWARE, OVERLAP = PROCESSES
THREAD = 1
"""The thread of the script."""
COMPUTING, FREE = 1, 2
EXCHANGES = 1000
"""The thread of collectives, separate from those of streams."""
NEXT_US = 0.0005
"""Half of the last digit of a time: kernels that are no further apart count as adjacent."""


def timeline(recorded: Recorded) -> list[Json]:
    """The events of *recorded*."""
    streams = sorted({kernel.event.stream for kernel in recorded.kernels} or {0})
    found = [_meta("process_name", pid, 0, name) for pid, name in PROCESSES.items()]
    threads = [(PYTHON, THREAD, "Thread 1"), (OVERLAP, COMPUTING, "Computing")]
    threads += [(OVERLAP, FREE, "Free")]
    threads += [(HARDWARE, stream, f"Stream {stream}") for stream in streams]
    if recorded.exchanges:
        threads.append((HARDWARE, EXCHANGES, "Communication"))
    found += [_meta("thread_name", *thread) for thread in threads]
    found += _operations(recorded)
    for number, kernel in enumerate(recorded.kernels):
        found += _kernel(recorded, kernel, number)
    found += [_exchange(recorded, event) for event in recorded.exchanges]
    found += _overlap(recorded)
    return found


def write_timeline(path: Path, recorded: Recorded) -> None:
    """Write the events of *recorded*, one on each line. Raises OSError."""
    lines = ",\n".join(json.dumps(event) for event in timeline(recorded))
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _meta(what: str, pid: int, tid: int, name: str) -> Json:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _complete(
    name: str, place: tuple[int, int], span_us: tuple[float, float], lead_us: float, **more: object
) -> Json:
    start, end = (round(us + lead_us, 3) for us in span_us)
    times = {"ts": start, "dur": round(end - start, 3)}
    return {"ph": "X", "name": name, "pid": place[0], "tid": place[1], **times, **more}


def _operations(recorded: Recorded) -> Iterator[Json]:
    """Steps and operations; an operation is marked if a card would run a kernel for it that is not
    simulated."""
    steps, calls = recorded.host_us
    missing = {
        call
        for event, call in zip(recorded.events, recorded.calls_of_events, strict=True)
        if not event.is_simulated and event.is_kernel
    }
    place = PYTHON, THREAD
    # A step ends as the next one begins.
    ends = [
        *(at_us - TICK_US for at_us in steps[1:]),
        *(step.end_us for step in recorded.steps[-1:]),
    ]
    for step, span in zip(recorded.steps, zip(steps, ends, strict=True), strict=True):
        name = f"ProfilerStep#{step.number}"
        yield _complete(name, place, span, recorded.lead_us, cat="cpu_op", args={})
    for number, (call, at_us) in enumerate(zip(recorded.calls, calls, strict=True)):
        args: Json = {"Input Dims": shapes_of(call), "Input type": ";".join(call.dtypes)}
        args |= {"Call stack": CALL_LINES.join(call.stack)}
        args = {name: value for name, value in args.items() if value}
        if number in missing:
            args["simulated"] = False
        yield _complete(call.name, place, (at_us, at_us), recorded.lead_us, cat="cpu_op", args=args)


def _kernel(recorded: Recorded, kernel: Kernel, number: int) -> Iterator[Json]:
    event = kernel.event
    args: Json = {
        "Model Id": NO_MODEL,
        "Task Type": kernel.cores,
        "Stream Id": event.stream,
        "Task Id": number,
        "connection_id": number,
        "launch_us": event.launch_us,
        "cycles": kernel.run.cycles,
    }
    if event.graph:
        args["graph"] = event.graph
    place = HARDWARE, event.stream
    span = event.start_us, kernel.end_us
    shown = _complete(kernel.name, place, span, recorded.lead_us, args=args)
    yield shown
    if kernel.call is None:
        return
    start_us = round(recorded.host_us[1][kernel.call] + recorded.lead_us, 3)
    arrow: Json = {"name": "async_npu", "cat": "async_npu", "id": number}
    yield {"ph": "s", "pid": PYTHON, "tid": THREAD, "ts": start_us, **arrow}
    yield {"ph": "f", "bp": "e", "pid": HARDWARE, "tid": event.stream, "ts": shown["ts"], **arrow}


def _exchange(recorded: Recorded, event: Event) -> Json:
    span = event.start_us, event.start_us + event.time_us
    args = {"Task Type": COMMUNICATION, "Stream Id": event.stream, "data": event.communicates}
    return _complete(event.name, (HARDWARE, EXCHANGES), span, recorded.lead_us, args=args)


def _overlap(recorded: Recorded) -> Iterator[Json]:
    """The times at which kernels run, and those in the steps at which none does."""
    busy = _together([(kernel.event.start_us, kernel.end_us) for kernel in recorded.kernels])
    for span in busy:
        yield _complete("Computing", (OVERLAP, COMPUTING), span, recorded.lead_us, args={})
    if not recorded.steps:
        return
    at_us, end_us = recorded.steps[0].start_us, recorded.steps[-1].end_us
    exchanges = [(event.start_us, event.start_us + event.time_us) for event in recorded.exchanges]
    for start_us, stop_us in (*sorted([*busy, *exchanges]), (end_us, end_us)):
        if start_us - at_us >= NEXT_US:
            span = at_us, start_us
            yield _complete("Free", (OVERLAP, FREE), span, recorded.lead_us, args={})
        at_us = max(at_us, stop_us)


def _together(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Merge adjacent spans of *spans*, which are sorted."""
    found: list[tuple[float, float]] = []
    for start_us, end_us in spans:
        if found and start_us - found[-1][1] < NEXT_US:
            found[-1] = found[-1][0], max(found[-1][1], end_us)
        else:
            found.append((start_us, end_us))
    return found
