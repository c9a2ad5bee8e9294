"""Which blocks of a launch are computed side by side, as the lanes of one array.

Blocks that run the same bodies in the same order differ only in where their names of global memory
begin. They do not meet before they have ended, or only where a flag between cores makes all of them
wait, and the checks have shown that no block touches what another writes without such a flag. So
micro-op after micro-op may be computed for all of them at once: each has buffers and registers of
its own, and finds in global memory what it would find alone.

Three things are left alone. Atomic additions round, so their order counts: whoever has one runs by
itself. A matrix of the cube is one call of numpy already, and is held in a way of its own
(``matrices``). And where a core may trap, the first one in the order of the blocks must be the one
that is named: only neighbours in that order run side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from npusim.isa import (
    ORDERING,
    Axpy,
    Binary,
    BinaryScalar,
    BlockReduce,
    Broadcast,
    Cast,
    Copy,
    Duplicate,
    Fold,
    Load,
    MicroOp,
    MulAddDst,
    Reduce,
    ScalarAlu,
    ScalarLoad,
    ScalarLoop,
    ScalarStore,
    Store,
    Trap,
    Unary,
    WholeReduce,
    added_dtype,
    global_operand,
    reads,
    writes,
)
from npusim.kernel.program import Block, Body, Call, Program

__all__ = ["Batch", "batches"]

Batch = tuple[Block, ...]
"""Blocks that run side by side, in the order of the launch; one alone is a batch too."""

SIDE_BY_SIDE: frozenset[type[MicroOp]] = frozenset(
    (
        *(Axpy, Binary, BinaryScalar, BlockReduce, Broadcast, Cast, Copy, Duplicate, Fold),
        *(Load, MulAddDst, Reduce, ScalarAlu, ScalarLoad, ScalarLoop, ScalarStore, Store, Trap),
        *(Unary, WholeReduce, *ORDERING),
    )
)
"""Micro-ops that are computed for several blocks at once."""

OPERAND_BYTES = 1 << 19
"""How large an operand may become by lying side by side: two of them, read and written, stay in the
second cache of a processor of today, which is faster than calling numpy more seldom (measured)."""


def batches(blocks: Sequence[Block], calls: Mapping[Program, tuple[Call, ...]]) -> list[Batch]:
    """*blocks* in batches, in the order of the first of each.

    *calls* are those of each program, in an order in which they may be computed.
    """
    known = {program: tuple(call.body for call in calls[program]) for program in calls}
    bodies = {body for found in known.values() for body in found}
    widths = {body: _width(body) for body in bodies}
    keys = [_key(block, known[block.program], widths) for block in blocks]
    if any(_traps(body) for body in bodies):
        groups = [list(run) for _, run in groupby(range(len(blocks)), keys.__getitem__)]
    else:
        found: dict[object, list[int]] = {}
        for index, key in enumerate(keys):
            found.setdefault(key, []).append(index)
        groups = list(found.values())
    cut = []
    for group in groups:
        widest = max((widths[body] or 1 for body in known[blocks[group[0]].program]), default=1)
        lanes = max(1, OPERAND_BYTES // widest)
        cut += [group[first : first + lanes] for first in range(0, len(group), lanes)]
    return [tuple(blocks[index] for index in group) for group in sorted(cut)]


def _key(
    block: Block, bodies: tuple[Body, ...], widths: Mapping[Body, int | None]
) -> tuple[object, ...]:
    """What blocks that run side by side have in common; nobody else has that of one alone."""
    if any(widths[body] is None for body in bodies):
        return (block,)
    return block.kind, bodies, tuple((name, bound.tensor) for name, bound in block.bindings.items())


def _width(body: Body) -> int | None:
    """Bytes of the widest operand of *body*; None where it holds what runs by itself."""
    widest = 1
    for op in body:
        if type(op) not in SIDE_BY_SIDE or added_dtype(op) is not None:
            return None
        if global_operand(op) is None:
            widest = max(widest, *(local.nbytes for local in (*reads(op), *writes(op))), 1)
    return widest


def _traps(body: Body) -> bool:
    return any(
        isinstance(op, Trap)
        or (isinstance(op, ScalarLoop) and any(isinstance(part, Trap) for part in op.body))
        for op in body
    )
