"""Facts about the micro-ops of a body that the player needs, computed once per body."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from npusim.isa import (
    ORDERING,
    Axpy,
    Binary,
    BinaryScalar,
    BlockReduce,
    Broadcast,
    Cast,
    CastDequant,
    Compare,
    CompareScalar,
    Copy,
    CrossCoreSetFlag,
    CrossCoreWaitFlag,
    Duplicate,
    Fixpipe,
    Fold,
    Gather,
    GatherBlocks,
    GatherMask,
    GetCmpMask,
    Global,
    Load,
    MicroOp,
    MrgSort,
    MrgSort4,
    MulAddDst,
    ProposalConcat,
    ProposalExtract,
    Reduce,
    Register,
    RpSort16,
    ScalarAlu,
    ScalarLoad,
    ScalarLoadGlobal,
    ScalarLoop,
    ScalarStore,
    ScalarStoreGlobal,
    Scatter,
    Select,
    SetCmpMask,
    Sort32,
    Store,
    TransDataTo5HD,
    Transpose,
    Trap,
    Unary,
    WholeReduce,
    combined_as,
    global_operand,
    reads,
    registers_read,
    registers_set,
    writes,
    writes_global,
)
from npusim.kernel.program import Body
from npusim.values.runs import Run, with_runs

__all__ = ["CrossCoreOp", "Facts", "Piece", "facts_of"]

CrossCoreOp = CrossCoreSetFlag | CrossCoreWaitFlag
Piece = list[MicroOp | Run] | CrossCoreOp
"""Micro-ops and runs of them between two flags between cores, or one such flag.

Micro-ops that only order pipes, or set registers that are never read, are left out.
"""

SIDE_BY_SIDE: frozenset[type[MicroOp]] = frozenset(
    (
        *(Axpy, Binary, BinaryScalar, BlockReduce, Broadcast, Cast, CastDequant, Compare),
        *(CompareScalar, Copy),
        *(Duplicate, Fold, Gather, GatherMask, Load, MrgSort, MulAddDst, Reduce, ScalarAlu),
        *(MrgSort4, ProposalConcat, ProposalExtract, RpSort16),
        *(GatherBlocks, GetCmpMask, Scatter, SetCmpMask, TransDataTo5HD),
        *(
            ScalarLoad,
            ScalarLoadGlobal,
            ScalarLoop,
            ScalarStore,
            ScalarStoreGlobal,
            Select,
            Sort32,
            Store,
            Transpose,
            Trap,
            Unary,
            WholeReduce,
        ),
    )
)
"""Micro-ops that can be computed for several blocks at once."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a body."""

    pieces: tuple[Piece, ...]
    stored: frozenset[str]
    """Names of global memory that it writes."""
    drained: frozenset[str]
    """Names of global memory that the fixpipe writes."""
    is_alone: bool
    """Whether it holds a micro-op that cannot be computed for several blocks at once."""
    width: int
    """Bytes of its widest operand within the core."""
    adds: bool
    """Whether it adds to global memory atomically."""
    traps: bool
    meets: bool
    """Whether it has flags between cores."""


_WITHIN_A_CORE = frozenset(ORDERING) - {CrossCoreSetFlag, CrossCoreWaitFlag}
"""Micro-ops that only order others of their core."""

_known: WeakKeyDictionary[Body, Facts] = WeakKeyDictionary()


def facts_of(body: Body) -> Facts:
    """The facts about *body*, computed once."""
    found = _known.get(body)
    if found is None:
        found = _known[body] = _look(body)
    return found


def _look(body: Body) -> Facts:
    pieces: list[Piece] = []
    quiet: list[MicroOp] = []
    working: list[MicroOp] = []
    for op in _with_effect([op for op in body if type(op) not in _WITHIN_A_CORE]):
        if isinstance(op, CrossCoreOp):
            pieces += [with_runs(quiet), op]
            quiet = []
        else:
            quiet.append(op)
            working.append(op)
    pieces.append(with_runs(quiet))
    adds = any(combined_as(op) is not None for op in working)
    is_alone = adds or any(type(op) not in SIDE_BY_SIDE for op in working)
    return Facts(
        tuple(pieces),
        frozenset(_stored(working)),
        frozenset(_drained(working)),
        is_alone,
        0 if is_alone else max((_width(op) for op in working), default=0),
        adds,
        any(_traps(op) for op in working),
        len(pieces) > 1,
    )


def _with_effect(ops: list[MicroOp]) -> list[MicroOp]:
    """*ops* without those that only set registers which are set again before they are read.

    Kernels read an entry of a list for each row, for example, which takes time and has no effect on
    values.
    """
    kept: list[MicroOp] = []
    overwritten: set[Register] = set()
    for op in reversed(ops):
        if _only_sets_registers(op) and overwritten.issuperset(registers_set(op)):
            continue
        overwritten.update(registers_set(op))
        overwritten.difference_update(registers_read(op))
        kept.append(op)
    return kept[::-1]


def _only_sets_registers(op: MicroOp) -> bool:
    parts = op.body if isinstance(op, ScalarLoop) else (op,)
    return all(isinstance(part, ScalarLoad | ScalarAlu) for part in parts)


def _stored(ops: list[MicroOp]) -> list[str]:
    places = [global_operand(op) for op in ops if writes_global(op)]
    return [place.name for place in places if place is not None]


def _drained(ops: list[MicroOp]) -> list[str]:
    places = [op.dst for op in ops if isinstance(op, Fixpipe)]
    return [place.name for place in places if isinstance(place, Global)]


def _width(op: MicroOp) -> int:
    """Bytes of the widest operand; copies from or to global memory do no arithmetic and count 0."""
    if global_operand(op) is not None:
        return 0
    return max((local.nbytes for local in (*reads(op), *writes(op))), default=0)


def _traps(op: MicroOp) -> bool:
    if isinstance(op, ScalarLoop):
        return any(isinstance(part, Trap) for part in op.body)
    return isinstance(op, Trap)
