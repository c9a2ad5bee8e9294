"""How marks pass through each micro-op: which bytes of its result depend on which it reads.

An element that depends on several takes the largest of their marks. Elements that are not used for
a result leave no mark in it: rows, columns and depths beyond those of a product, and the padding of
fractals. The parts of fractals that a tile in L0A and L0B, or a product in L0C, does not fill count
as never written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npusim.check.hazards import areas
from npusim.check.uninitialized.cube_flow import (
    broadcast_to_l0c,
    copy_l0c,
    fixpipe,
    load_data,
    load_fractals,
    load_image,
    mmad,
)
from npusim.check.uninitialized.marks import NOBODY, WRITTEN, Array, Marks, Sink
from npusim.check.uninitialized.vector_flow import VECTOR_FLOW
from npusim.data.layout import FRACTAL_ROWS
from npusim.isa import (
    MICRO_OPS,
    ORDERING,
    BroadcastToL0c,
    CopyL0c,
    CopyToL1,
    Fixpipe,
    Load,
    LoadData,
    LoadFractals,
    LoadImage,
    LoadNd2Nz,
    Local,
    MicroOp,
    Mmad,
    Reduce,
    ScalarAlu,
    ScalarLoad,
    ScalarLoadGlobal,
    ScalarLoop,
    ScalarOp,
    ScalarStore,
    ScalarStoreGlobal,
    Store,
    Table,
    Trap,
)

__all__ = ["FLOW", "fills"]


def fills(op: MicroOp) -> bool:
    """Whether everything *op* writes depends only on what it reads."""
    match op:
        case LoadImage():
            # Edges of fractals, and padding, depend on no element.
            return False
        case LoadData():
            # Edges of fractals depend on elements beyond the tile.
            return op.dst.count == op.rows * op.columns
        case Load():
            return op.padding is None or not op.padding.is_unknown
        case Mmad():
            return op.m % FRACTAL_ROWS == 0 == op.n % FRACTAL_ROWS
        case Reduce():
            return op.dst.count == op.result_elements
        case _:
            return True


# ---- copies ----


def _store(op: Store, marks: Marks) -> Sink:
    where = op.src.buffer, op.src.offset_bytes
    return marks.rows(*where, op.dst.burst_bytes, op.dst.bursts, op.pitch_bytes)


def _copy_to_l1(op: CopyToL1, marks: Marks) -> Sink:
    size = op.burst_bytes, op.bursts
    src = marks.rows(op.src.buffer, op.src.offset_bytes, *size, op.src_pitch_bytes)
    dst = marks.rows(op.dst.buffer, op.dst.offset_bytes, *size, op.dst_pitch_bytes)
    marks.put_bytes(op.dst.buffer, dst, src)
    return None


def _from_outside(op: Load | LoadNd2Nz, marks: Marks) -> Sink:
    for area in areas.written(op):
        marks.write(area)
    if isinstance(op, Load) and op.padding is not None and op.padding.is_unknown:
        where = op.dst.buffer, op.dst.offset_bytes
        rows = marks.rows(*where, op.row_bytes, op.src.bursts, op.pitch_bytes)
        end = op.left_bytes + op.src.burst_bytes
        for around in (rows[:, : op.left_bytes], rows[:, end:]):
            marks.put_bytes(op.dst.buffer, around, np.array(NOBODY, around.dtype))
    return None


# ---- the scalar pipe ----

Rounds = dict[str, Array]
"""Register -> its mark in each iteration of a loop, `(iterations,)`."""


def _one(op: ScalarLoad | ScalarStore | ScalarAlu | Trap, marks: Marks) -> Sink:
    return _all_rounds((op,), marks, 1)


def _load_global(op: ScalarLoadGlobal, marks: Marks) -> Sink:
    marks.registers.pop(op.dst, None)
    return None


def _store_global(op: ScalarStoreGlobal, marks: Marks) -> Sink:
    return np.array([marks.registers.get(op.src, WRITTEN)])


def _scalar_loop(op: ScalarLoop, marks: Marks) -> Sink:
    return _all_rounds(op.body, marks, op.count)


def _all_rounds(body: tuple[ScalarOp, ...], marks: Marks, count: int) -> Sink:
    # Iterations are independent, so all of them run at once, micro-op by micro-op.
    rounds = {name: np.full(count, mark) for name, mark in marks.registers.items()}
    stopped: list[Array] = []
    for op in body:
        match op:
            case ScalarLoad():
                rounds[op.dst] = _steps(op.src, op.step_bytes, marks, count).max(axis=1)
            case ScalarStore():
                view = _steps(op.dst, op.step_bytes, marks, count)
                mark = _of_rounds((op.src,), rounds, count)
                marks.put_bytes(op.dst.buffer, view, mark[:, None])
            case ScalarAlu():
                rounds[op.dst] = _of_rounds((op.a, op.b, op.c), rounds, count)
            case Trap():
                stopped.append(_of_rounds((op.when,), rounds, count))
    # After the loop a register has the mark of the last iteration.
    marks.registers = {name: int(mark[-1]) for name, mark in rounds.items() if mark[-1]}
    return np.concatenate(stopped) if stopped else None


def _of_rounds(operands: tuple[int | str, ...], rounds: Rounds, count: int) -> Array:
    """The largest mark of *operands* in each iteration."""
    used = [rounds[x] for x in operands if isinstance(x, str) and x in rounds]
    found: Array = np.maximum.reduce([np.zeros(count, int), *used])
    return found


def _steps(local: Local, step_bytes: int, marks: Marks, count: int) -> Array:
    return marks.rows(local.buffer, local.offset_bytes, local.nbytes, count, step_bytes)


def _nothing(_: MicroOp, __: Marks) -> Sink:
    return None


FLOW: Table[Callable[[Any, Marks], Sink]] = Table(
    "uninitialized.FLOW",
    "how marks pass through it",
    MICRO_OPS,
    {
        Load: _from_outside,
        LoadNd2Nz: _from_outside,
        Store: _store,
        CopyToL1: _copy_to_l1,
        LoadData: load_data,
        LoadFractals: load_fractals,
        LoadImage: load_image,
        Mmad: mmad,
        Fixpipe: fixpipe,
        CopyL0c: copy_l0c,
        BroadcastToL0c: broadcast_to_l0c,
        ScalarLoad: _one,
        ScalarLoadGlobal: _load_global,
        ScalarStore: _one,
        ScalarStoreGlobal: _store_global,
        ScalarAlu: _one,
        ScalarLoop: _scalar_loop,
        Trap: _one,
        **VECTOR_FLOW,
        **dict.fromkeys(ORDERING, _nothing),
    },
)
