"""The effect of one more slot in the queues of a kernel in which a pipe waits for room.

The caller of an operator cannot change that, but the author of a kernel can. The same kernel is
written again with a deeper queue, and is checked for races like any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from npusim.devices.schema import Pipe
from npusim.isa import WaitFlag
from npusim.kernel.program import Declared, Program, QueueName
from npusim.reports import bounds, style
from npusim.run.advice.what_if import MOST, WhatIf
from npusim.run.result import Result
from npusim.trace import ORDERING, Trace

__all__ = ["is_same_work", "slots"]


def slots(run: Result) -> Iterator[WhatIf]:
    """One more slot in queues for whose room a pipe waits, those with the longest waits first."""
    assert run.trace is not None
    lanes = {lane.kind: lane for lane in run.trace.slowest_of_kinds}
    waits = [
        row for row in bounds.rows(run) if row.cause == "flag" and row.share >= bounds.MIN_SHARE
    ]
    tried: list[tuple[QueueName, ...]] = []
    for row in sorted(waits, key=lambda row: -row.share):
        src, _, carried = row.reason.partition(": ")
        word, _, buffer = carried.partition(" in ")
        found = _refilled(lanes[row.kind].program, buffer, row.pipe, src) if word == "room" else []
        names = tuple(dict.fromkeys(each.name for each in found))
        # Cores of two kinds may run the same kernel.
        if names and names not in tried and len(tried) < MOST:
            tried.append(names)
            yield WhatIf(
                text=f"{row.pipe} of {row.kind} waits for room in {buffer} "
                f"{style.percent(row.share)} of the cores' time, which {src} has to give",
                change=f"with {_one_more(found)}{_declared_in(run, found)}",
                queues=names,
            )


def _refilled(program: Program, buffer: str, pipe: Pipe, drained_by: str) -> list[Declared]:
    """The queues of *buffer* that *pipe* fills more often than they have slots."""
    ops, numbers = program.distinct()
    counts = np.bincount(numbers, minlength=len(ops)).tolist()
    waits: Counter[int] = Counter()
    for op, count in zip(ops, counts, strict=True):
        if isinstance(op, WaitFlag) and (op.src, op.dst) == (drained_by, pipe):
            waits[op.event] += count
    # The end of a kernel waits once for each slot, and so does each further time it is filled.
    return [
        queue
        for queue in program.queues
        if (queue.name.buffer, queue.name.src, queue.name.dst) == (buffer, pipe, drained_by)
        and any(waits[event] > 1 for event in queue.events)
    ]


def _one_more(queues: list[Declared]) -> str:
    """Which queues would have how many slots."""
    name, depths = queues[0].name, {len(queue.events) for queue in queues}
    between = f"from {name.src} to {name.dst}"
    where = f"the queue {between}"
    if len(queues) > 1:
        where = f"each of the {len(queues)} queues {between}"
    if len(depths) > 1:
        return f"a slot more in {where}"
    (depth,) = depths
    return f"{depth + 1} slots in place of {depth} in {where}"


def _declared_in(run: Result, queues: list[Declared]) -> str:
    """Where the kernel declares *queues*, if it is a custom one."""
    if not run.is_own_kernel:
        return ""
    lines = sorted({queue.name.line for queue in queues})
    return f" ({', '.join(f'{file}:{number}' for file, number in lines)})"


def is_same_work(one: Trace, other: Trace) -> bool:
    """Whether both traces have the same micro-ops, at any buffer offsets.

    A kernel that fills the remaining room cuts other tiles if a queue takes more of it.
    """
    return _work(one) == _work(other)


def _work(trace: Trace) -> Counter[tuple[str, str]]:
    """Number of micro-ops of each type on each kind of core, without flags and barriers."""
    found: Counter[tuple[str, str]] = Counter()
    for lane in trace.lanes:
        ops, numbers = lane.program.distinct()
        counts = np.bincount(numbers, minlength=len(ops)).tolist()
        for op, count in zip(ops, counts, strict=True):
            if not isinstance(op, ORDERING):
                found[lane.kind, type(op).__name__] += count * len(lane.cores)
    return found
