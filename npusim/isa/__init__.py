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

from npusim.isa.matrix import (
    BroadcastToL0c,
    CopyL0c,
    CopyToL1,
    Fixpipe,
    LoadData,
    LoadNd2Nz,
    LoadTable,
    Mmad,
    QuantMode,
)
from npusim.isa.mte import Load, Store
from npusim.isa.operands import BLOCK_BYTES, Global, Local, Register
from npusim.isa.scalar import ScalarAlu, ScalarLoad, ScalarLoop, ScalarOp, ScalarStore, Trap
from npusim.isa.sync import (
    Barrier,
    CrossCoreSetFlag,
    CrossCoreWaitFlag,
    CrossMode,
    SetFlag,
    WaitFlag,
)
from npusim.isa.vector import (
    Axpy,
    Binary,
    BinaryOp,
    BinaryScalar,
    BlockReduce,
    Broadcast,
    Cast,
    Copy,
    Duplicate,
    MulAddDst,
    Reduce,
    Unary,
)

__all__ = [
    "BLOCK_BYTES",
    "Axpy",
    "Barrier",
    "Binary",
    "BinaryOp",
    "BinaryScalar",
    "BlockReduce",
    "Broadcast",
    "BroadcastToL0c",
    "Cast",
    "Copy",
    "CopyL0c",
    "CopyToL1",
    "CrossCoreSetFlag",
    "CrossCoreWaitFlag",
    "CrossMode",
    "Duplicate",
    "Fixpipe",
    "Global",
    "GmOp",
    "Load",
    "LoadData",
    "LoadNd2Nz",
    "LoadTable",
    "Local",
    "MicroOp",
    "Mmad",
    "MulAddDst",
    "QuantMode",
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
    "Unary",
    "WaitFlag",
    "place_of",
    "reads",
    "writes",
]

MicroOp = (
    Load
    | LoadNd2Nz
    | Store
    | LoadData
    | LoadTable
    | Mmad
    | Fixpipe
    | CopyL0c
    | BroadcastToL0c
    | CopyToL1
    | Cast
    | Unary
    | Binary
    | BinaryScalar
    | Axpy
    | MulAddDst
    | Duplicate
    | Broadcast
    | Reduce
    | BlockReduce
    | Copy
    | ScalarLoad
    | ScalarStore
    | ScalarAlu
    | ScalarLoop
    | Trap
    | SetFlag
    | WaitFlag
    | CrossCoreSetFlag
    | CrossCoreWaitFlag
    | Barrier
)
GmOp = Load | LoadNd2Nz | Store | Fixpipe
"""Micro-ops that may touch global memory; :func:`place_of` tells where."""


def place_of(op: MicroOp) -> Global | None:
    """Where *op* reads or writes global memory; None if it stays inside the core."""
    match op:
        case Load() | LoadNd2Nz():
            return op.src
        case Store():
            return op.dst
        case Fixpipe(dst=Global() as place):
            return place
        case _:
            return None


def reads(op: MicroOp) -> tuple[Local, ...]:
    """What *op* reads in the buffers of its core."""
    match op:
        case Store() | LoadData():
            return (op.footprint,)
        case Cast() | Unary() | Broadcast() | Reduce() | BlockReduce() | Copy():
            return (op.src,)
        case ScalarLoad() | LoadTable() | BroadcastToL0c():
            return (op.src,)
        case Binary():
            return (op.a, op.b)
        case BinaryScalar():
            return (op.a,)
        case Axpy():
            return (op.src, op.dst)
        case MulAddDst():
            return (op.a, op.b, op.dst)
        case ScalarLoop():
            loads = (part for part in op.body if isinstance(part, ScalarLoad))
            return tuple(op.swept(part.src, part.step_bytes) for part in loads)
        case Mmad():
            start = op.dst if op.init == "accumulate" else op.bias
            return (op.a, op.b) if start is None else (op.a, op.b, start)
        case Fixpipe():
            return (op.footprint, op.scale) if isinstance(op.scale, Local) else (op.footprint,)
        case CopyL0c():
            return (op.src, op.scale) if isinstance(op.scale, Local) else (op.src,)
        case CopyToL1():
            return (op.read,)
        case _:
            return ()


def writes(op: MicroOp) -> tuple[Local, ...]:
    """What *op* writes in the buffers of its core."""
    match op:
        case Load() | LoadNd2Nz():
            return (op.footprint,)
        case Cast() | Unary() | Binary() | BinaryScalar() | Axpy() | MulAddDst():
            return (op.dst,)
        case Duplicate() | Broadcast() | Reduce() | BlockReduce() | Copy():
            return (op.dst,)
        case LoadData() | LoadTable() | Mmad() | CopyL0c() | BroadcastToL0c() | ScalarStore():
            return (op.dst,)
        case ScalarLoop():
            stores = (part for part in op.body if isinstance(part, ScalarStore))
            return tuple(op.swept(part.dst, part.step_bytes) for part in stores)
        case Fixpipe():
            return () if op.written is None else (op.written,)
        case CopyToL1():
            return (op.written,)
        case _:
            return ()
