"""The micro-ops: what a core is told to do, one frozen record each, grouped by pipe.

A micro-op says *what*; whether a chip accepts it stands in ``rules``, what it computes in
``semantics``, how long it holds its pipe in ``cost``. Names follow Ascend C (DataCopy, Cast, Add,
Muls, Duplicate, Brcb, SetFlag, PipeBarrier, ...); the pipes are those of the
Ascend C guide (asc-devkit, docs/zh/guide). Where each source lies: docs/sources.md.

Operands are ranges: :class:`Local` in a buffer of the core, :class:`Global` in global memory.
Global memory is named, not addressed: each block binds a program's names to tensors and offsets, so
one program serves every core that does the same work.
"""

from __future__ import annotations

from npusim.isa.mte import Load, Store
from npusim.isa.operands import BLOCK_BYTES, Global, Local, Register
from npusim.isa.scalar import ScalarAlu, ScalarLoad, ScalarLoop, ScalarOp, ScalarStore, Trap
from npusim.isa.sync import Barrier, SetFlag, WaitFlag
from npusim.isa.vector import (
    Binary,
    BinaryOp,
    BinaryScalar,
    Broadcast,
    Cast,
    Duplicate,
    Reduce,
)

__all__ = [
    "BLOCK_BYTES",
    "Barrier",
    "Binary",
    "BinaryOp",
    "BinaryScalar",
    "Broadcast",
    "Cast",
    "Duplicate",
    "Global",
    "Load",
    "Local",
    "MicroOp",
    "Reduce",
    "Register",
    "ScalarAlu",
    "ScalarLoad",
    "ScalarLoop",
    "ScalarOp",
    "ScalarStore",
    "SetFlag",
    "Store",
    "Trap",
    "WaitFlag",
    "reads",
    "writes",
]

MicroOp = (
    Load
    | Store
    | Cast
    | Binary
    | BinaryScalar
    | Duplicate
    | Broadcast
    | Reduce
    | ScalarLoad
    | ScalarStore
    | ScalarAlu
    | ScalarLoop
    | Trap
    | SetFlag
    | WaitFlag
    | Barrier
)


def reads(op: MicroOp) -> tuple[Local, ...]:
    """What *op* reads in the buffers of its core."""
    match op:
        case Store():
            return (op.footprint,)
        case Cast() | Broadcast() | Reduce() | ScalarLoad():
            return (op.src,)
        case Binary():
            return (op.a, op.b)
        case BinaryScalar():
            return (op.a,)
        case ScalarLoop():
            loads = (part for part in op.body if isinstance(part, ScalarLoad))
            return tuple(op.swept(part.src, part.step_bytes) for part in loads)
        case _:
            return ()


def writes(op: MicroOp) -> tuple[Local, ...]:
    """What *op* writes in the buffers of its core."""
    match op:
        case Load():
            return (op.footprint,)
        case Cast() | Binary() | BinaryScalar() | Duplicate() | Broadcast() | Reduce():
            return (op.dst,)
        case ScalarStore():
            return (op.dst,)
        case ScalarLoop():
            stores = (part for part in op.body if isinstance(part, ScalarStore))
            return tuple(op.swept(part.dst, part.step_bytes) for part in stores)
        case _:
            return ()
