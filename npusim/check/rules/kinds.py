"""Groups of vector micro-ops that share rules."""

from __future__ import annotations

from npusim.isa import (
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
    Duplicate,
    Fold,
    Gather,
    GatherBlocks,
    GatherMask,
    GetCmpMask,
    MicroOp,
    MrgSort,
    MrgSort4,
    MulAddDst,
    ProposalConcat,
    ProposalExtract,
    Reduce,
    RpSort16,
    Scatter,
    Select,
    SetCmpMask,
    Sort32,
    TransDataTo5HD,
    Transpose,
    Unary,
    WholeReduce,
)

__all__ = [
    "ARITHMETIC",
    "COMPARING",
    "ELEMENTWISE",
    "FLOATING",
    "LANEWISE",
    "LOOKING_UP",
    "MOVING",
    "RAGGED",
    "ROWED",
    "SOLID",
    "SOLID_PARTS",
    "STRIDING",
    "VECTOR",
    "WITH_SCALAR",
]

ARITHMETIC = (Binary, BinaryScalar)
FLOATING = (Axpy, MulAddDst, BlockReduce, WholeReduce, Fold)
ELEMENTWISE = (Cast, CastDequant, *ARITHMETIC, Unary, Axpy, MulAddDst, Copy)
MOVING = (Duplicate, Broadcast, Reduce, Copy)
COMPARING = (Compare, CompareScalar)
PROPOSING = (ProposalConcat, ProposalExtract, RpSort16, MrgSort4)
LOOKING_UP = (Gather, GatherBlocks, Scatter)
SOLID = (Transpose, Sort32, MrgSort, GetCmpMask, SetCmpMask, *PROPOSING)
"""Micro-ops with contiguous operands only."""
SOLID_PARTS: dict[type[MicroOp], tuple[str, ...]] = {
    **dict.fromkeys((*COMPARING, GatherMask, Scatter), ("dst",)),
    Select: ("mask",),
    Gather: ("src",),
    GatherBlocks: ("src", "offsets"),
}
"""Operands that must be contiguous, where others need not."""
VECTOR = (
    *(Cast, CastDequant, *ARITHMETIC, Unary, *FLOATING, *MOVING, *COMPARING, Select, *LOOKING_UP),
    *(GatherMask, TransDataTo5HD, *SOLID),
)
"""Micro-ops that work on the unified buffer only."""
LANEWISE = (*ELEMENTWISE, *COMPARING, Select, Gather, Scatter)
"""Micro-ops in which a lane of one operand combines with the same lane of another."""
RAGGED = (
    *(*LANEWISE, Duplicate, WholeReduce, BlockReduce, GatherMask),
    TransDataTo5HD,
)
"""Micro-ops whose operands may be masked, or end within a repeat."""
ROWED = (Copy,)
"""A repeat may have any number of blocks: a row of DataCopy, or of Copy counting elements."""
# Copy is a DataCopy within the buffer, whose gaps have 16 bits; WholeReduceMax steps over rows of
# up to 1020 blocks (ops-nn, dynamic_quant_multi_row.h). The repeat count of 8 bits is not checked:
# a micro-op with more repeats stands for several instructions.
STRIDING = tuple(kind for kind in VECTOR if kind not in (Copy, WholeReduce))
WITH_SCALAR = (BinaryScalar, Axpy, Duplicate, CompareScalar)
