"""Runs: micro-ops that differ only in the addresses of their operands, computed as one.

Kernels process the rows of a tile one after the other, each by a separate instruction, which costs
one call of numpy for a few hundred elements. If operands advance by a constant number of bytes from
one instruction to the next, the rows are an axis of one array, and one call computes all of them.
There are two kinds:

* micro-ops that accumulate row after row by sum, maximum or minimum: numpy reduces along the axis,
  in the same order;
* micro-ops that write results where no other one of the run reads or writes.

A row that is halved repeatedly by the maximum or minimum of its two halves is evaluated only when
its result is read (:class:`Halved`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import ceil_div
from npusim.isa import BLOCK_BYTES, Binary, Copy, Local, MicroOp

__all__ = ["FIELDS", "Accumulated", "Halved", "Run", "Swept", "with_runs"]

LEAST = 4
"""Fewest micro-ops for which an array with one more axis pays."""
ACCUMULATING = ("add", "min", "max")
FIELDS: dict[type[MicroOp], tuple[str, ...]] = {Binary: ("a", "b", "dst"), Copy: ("src", "dst")}
"""Kinds of micro-ops that can be swept -> their operands, the written one last."""


@dataclass(frozen=True, slots=True)
class Accumulated:
    """`total = total op row` for each of *count* rows in order, of which *row* is the first."""

    first: Binary
    count: int
    step_bytes: int
    """Bytes from row to row."""


@dataclass(frozen=True, slots=True)
class Swept:
    """*count* micro-ops from *first* on, each with its operands advanced."""

    first: Binary | Copy
    count: int
    steps: tuple[int, ...]
    """Bytes from one to the next, for each of the FIELDS of its kind."""


@dataclass(frozen=True, slots=True)
class Halved:
    """The minimum or maximum of both halves of a row, then of the halves of that, and so on."""

    ops: tuple[Binary, ...]

    @property
    def row(self) -> Local:
        """The row that is halved."""
        half = self.ops[0].dst
        return Local(half.buffer, half.offset_bytes, half.dtype, 2 * half.count)


Run = Accumulated | Swept | Halved


def with_runs(ops: Sequence[MicroOp]) -> list[MicroOp | Run]:
    """*ops*, which are computed in order, with each run joined into one."""
    found: list[MicroOp | Run] = []
    for first, end in _alike(ops):
        run = _run(ops[first], ops[first + 1], end - first) if end - first >= LEAST else None
        found += ops[first:end] if run is None else [run]
    return _with_halved(found)


def _with_halved(ops: list[MicroOp | Run]) -> list[MicroOp | Run]:
    """*ops* with those that halve a row joined into one."""
    found: list[MicroOp | Run] = []
    halving: list[Binary] = []
    for op in [*ops, None]:
        if isinstance(op, Binary) and _halves(op, halving):
            halving.append(op)
            continue
        found += halving if len(halving) < LEAST else [Halved(tuple(halving))]
        halving = [op] if isinstance(op, Binary) and _halves(op, []) else []
        if op is not None and not halving:
            found.append(op)
    return found


def _halves(op: Binary, before: list[Binary]) -> bool:
    """Whether *op* halves the result of the last one of *before*, or a row if there is none."""
    dst, other = op.dst, op.b
    if op.op not in ("min", "max") or dst.dtype is not FLOAT32 or dst != op.a:
        return False
    if dst.is_strided or other != replace(dst, offset_bytes=dst.end_bytes):
        return False
    last = before[-1] if before else None
    return last is None or (last.op == op.op and last.dst == replace(dst, count=2 * dst.count))


def _alike(ops: Sequence[MicroOp]) -> Iterator[tuple[int, int]]:
    """Slices of *ops*: single micro-ops, or several whose operands advance by constant steps."""
    first = 0
    while first < len(ops):
        end, steps = first + 1, None
        while end < len(ops):
            going = _steps(ops[end - 1], ops[end])
            if going is None or (steps is not None and going != steps):
                break
            steps, end = going, end + 1
        yield first, end
        first = end


def _steps(one: MicroOp, other: MicroOp) -> tuple[int, ...] | None:
    """Bytes by which operands advance from *one* to *other*; None if they differ in more."""
    fields = FIELDS.get(type(one))
    if fields is None or type(one) is not type(other):
        return None
    if isinstance(one, Binary) and isinstance(other, Binary) and one.op != other.op:
        return None
    steps = []
    for name in fields:
        before, after = getattr(one, name), getattr(other, name)
        if _shape(before) != _shape(after) or before.is_ragged:
            return None
        steps.append(after.offset_bytes - before.offset_bytes)
    return tuple(steps)


def _shape(local: Local) -> tuple[object, ...]:
    """All fields of *local* except its offset."""
    strides = local.block_stride, local.repeat_stride, local.repeat_blocks
    return local.buffer, local.dtype, local.count, strides, local.mask


def _run(first: MicroOp, second: MicroOp, count: int) -> Accumulated | Swept | None:
    """*count* micro-ops, of which *first* and *second* are the first, as one, if equivalent."""
    steps = _steps(first, second)
    assert isinstance(first, Binary | Copy)
    assert steps is not None
    operands = [getattr(first, name) for name in FIELDS[type(first)]]
    # A mask may make an operand begin within a block.
    if any(number % BLOCK_BYTES for number in (*steps, *(x.offset_bytes for x in operands))):
        return None
    places = [_blocks(x, count, step) for x, step in zip(operands, steps, strict=True)]
    if isinstance(first, Binary) and first.dst == first.a and steps[0] == steps[2] == 0:
        return _accumulated(first, count, steps[1], places)
    shapes = {(x.count, x.repeat_blocks) for x in operands if x.is_strided}
    is_like = all(x.dtype is first.dst.dtype for x in operands) and len(shapes) <= 1
    return Swept(first, count, steps) if is_like and _are_apart(places) else None


def _accumulated(
    first: Binary, count: int, step_bytes: int, places: list[NDArray[np.int64]]
) -> Accumulated | None:
    is_plain = first.dst.dtype is FLOAT32 and not (first.dst.is_strided or first.b.is_strided)
    # numpy would add up a single column in another order.
    if first.op not in ACCUMULATING or not is_plain or first.dst.count == 1 or step_bytes <= 0:
        return None
    _, rows, total = places
    is_apart = not np.isin(rows, total).any() and len(np.unique(rows)) == rows.size
    return Accumulated(first, count, step_bytes) if is_apart else None


def _blocks(local: Local, count: int, step_bytes: int) -> NDArray[np.int64]:
    """`(count, blocks)`: the blocks of the buffer that each of *count* operands touches."""
    repeats, within = np.divmod(np.arange(ceil_div(local.nbytes, BLOCK_BYTES)), local.repeat_blocks)
    places = repeats * local.repeat_stride + within * local.block_stride
    starts = local.offset_bytes + step_bytes * np.arange(count)
    return np.asarray(starts[:, None] // BLOCK_BYTES + places)


def _are_apart(places: list[NDArray[np.int64]]) -> bool:
    """Whether no micro-op of a run accesses what another one writes; results come last."""
    written = places[-1]
    if len(np.unique(written)) < written.size:
        return False
    writers = np.full(max(int(each.max()) for each in places) + 1, -1)
    numbers = np.arange(len(written))[:, None]
    writers[written] = numbers
    return all(
        bool(((writers[read] == -1) | (writers[read] == numbers)).all()) for read in places[:-1]
    )
