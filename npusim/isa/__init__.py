"""The micro-ops: the instructions of a core, one frozen record each, grouped by pipe.

A micro-op says *what*, which of its operands it reads and writes, and what work is counted of it
(``micro_op``); whether a chip accepts it stands in ``check/rules``, what it computes in
``values/semantics``, how long it holds its pipe in ``timing/cost``. Each of these has a table with
an entry for every micro-op, checked when it is imported. Names follow Ascend C (DataCopy, Cast,
Add, Muls, Duplicate, Brcb, SetFlag, PipeBarrier, ...); the pipes are those of the Ascend C guide
(asc-devkit, docs/zh/guide). docs/sources.md lists the sources.

Operands are ranges: :class:`Local` in a buffer of the core, :class:`Global` in global memory.
Global memory is named, not addressed: each block binds a program's names to tensors and offsets, so
one program serves every core that does the same work.
"""

from __future__ import annotations

from npusim.isa.fields import misfit
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
from npusim.isa.micro_op import (
    MicroOp,
    Role,
    Table,
    combined_as,
    copied_place,
    declared,
    ends,
    global_operand,
    moved,
    reads,
    registers_read,
    registers_set,
    writes,
    writes_global,
)
from npusim.isa.mte import AtomicOp, Load, Padding, Store
from npusim.isa.operands import (
    BLOCK_BYTES,
    FLOATS_PER_BLOCK,
    FLOATS_PER_REPEAT,
    MAX_BURSTS,
    MAX_REPEATS,
    REPEAT_BLOCKS,
    REPEAT_BYTES,
    Global,
    Local,
    Register,
    lanes,
    places,
)
from npusim.isa.rearranging import Broadcast, Copy, Duplicate, Gather, Transpose
from npusim.isa.reductions import (
    BlockReduce,
    ExtremeOp,
    Fold,
    FoldOp,
    Reduce,
    ReduceOp,
    ReduceOrder,
    WholeReduce,
)
from npusim.isa.scalar import (
    ScalarAlu,
    ScalarLoad,
    ScalarLoadGlobal,
    ScalarLoop,
    ScalarOp,
    ScalarStore,
    Trap,
)
from npusim.isa.selection import Compare, CompareOp, CompareScalar, Select
from npusim.isa.sorting import (
    LONGEST_LIST,
    PROPOSAL_ELEMENTS,
    PROPOSALS_AT_ONCE,
    SCORE,
    SORTED_AT_ONCE,
    GatherMask,
    MrgSort,
    MrgSort4,
    ProposalConcat,
    ProposalExtract,
    RpSort16,
    Sort32,
)
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
    BitwiseOp,
    Cast,
    CastDequant,
    MulAddDst,
    MulAddForm,
    ReluOp,
    ScalarFormOp,
    Unary,
    UnaryOp,
)
from npusim.isa.work import (
    Arithmetic,
    Ordering,
    Product,
    Rearrangement,
    ScalarWork,
    Transfer,
    Work,
)

__all__ = [
    "BLOCK_BYTES",
    "FLOATS_PER_BLOCK",
    "FLOATS_PER_REPEAT",
    "LONGEST_LIST",
    "MAX_BURSTS",
    "MAX_REPEATS",
    "MICRO_OPS",
    "ORDERING",
    "PROPOSALS_AT_ONCE",
    "PROPOSAL_ELEMENTS",
    "REPEAT_BLOCKS",
    "REPEAT_BYTES",
    "SCORE",
    "SORTED_AT_ONCE",
    "Arithmetic",
    "AtomicOp",
    "Axpy",
    "Barrier",
    "Binary",
    "BinaryOp",
    "BinaryScalar",
    "BitwiseOp",
    "BlockReduce",
    "Broadcast",
    "BroadcastToL0c",
    "Cast",
    "CastDequant",
    "Compare",
    "CompareOp",
    "CompareScalar",
    "Copy",
    "CopyL0c",
    "CopyToL1",
    "CrossCoreSetFlag",
    "CrossCoreWaitFlag",
    "CrossMode",
    "Duplicate",
    "ExtremeOp",
    "Fixpipe",
    "Fold",
    "FoldOp",
    "Gather",
    "GatherMask",
    "Global",
    "Load",
    "LoadData",
    "LoadNd2Nz",
    "LoadTable",
    "Local",
    "MicroOp",
    "Mmad",
    "MrgSort",
    "MrgSort4",
    "MulAddDst",
    "MulAddForm",
    "Ordering",
    "Padding",
    "Product",
    "ProposalConcat",
    "ProposalExtract",
    "QuantMode",
    "Rearrangement",
    "Reduce",
    "ReduceOp",
    "ReduceOrder",
    "Register",
    "ReluOp",
    "Role",
    "RpSort16",
    "ScalarAlu",
    "ScalarFormOp",
    "ScalarLoad",
    "ScalarLoadGlobal",
    "ScalarLoop",
    "ScalarOp",
    "ScalarStore",
    "ScalarWork",
    "Select",
    "SetFlag",
    "Sort32",
    "Store",
    "Table",
    "Transfer",
    "Transpose",
    "Trap",
    "Unary",
    "UnaryOp",
    "WaitFlag",
    "WholeReduce",
    "Work",
    "combined_as",
    "copied_place",
    "ends",
    "global_operand",
    "lanes",
    "misfit",
    "moved",
    "places",
    "reads",
    "registers_read",
    "registers_set",
    "writes",
    "writes_global",
]

MICRO_OPS: tuple[type[MicroOp], ...] = declared()
"""Every micro-op that there is."""
ORDERING: tuple[type[MicroOp], ...] = tuple(
    kind for kind in MICRO_OPS if isinstance(vars(kind)["work"], Ordering)
)
"""Micro-ops that only order others."""
