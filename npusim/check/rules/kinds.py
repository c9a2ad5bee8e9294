"""Which micro-ops of the vector pipe have what in common."""

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
    GatherMask,
    MrgSort,
    MrgSort4,
    MulAddDst,
    ProposalConcat,
    ProposalExtract,
    Reduce,
    RpSort16,
    Select,
    Sort32,
    Transpose,
    Unary,
    WholeReduce,
)

__all__ = [
    "ARITHMETIC",
    "COMPARING",
    "ELEMENTWISE",
    "FLOATING",
    "MASKED_ALIKE",
    "MOVING",
    "RAGGED",
    "ROWED",
    "SOLID",
    "STRIDING",
    "VECTOR",
    "WITH_SCALAR",
]

ARITHMETIC = (Binary, BinaryScalar)
FLOATING = (Axpy, MulAddDst, BlockReduce, WholeReduce, Fold)
MASKED_ALIKE = (Cast, *ARITHMETIC, Unary, Axpy, MulAddDst, Copy)
"""Their operands have one mask."""
ELEMENTWISE = (*MASKED_ALIKE, CastDequant)
MOVING = (Duplicate, Broadcast, Reduce, Copy)
COMPARING = (Compare, CompareScalar)
PROPOSING = (ProposalConcat, ProposalExtract, RpSort16, MrgSort4)
SOLID = (*COMPARING, Select, Gather, Transpose, Sort32, MrgSort, GatherMask, *PROPOSING)
"""Their operands lie without gaps."""
VECTOR = (Cast, CastDequant, *ARITHMETIC, Unary, *FLOATING, *MOVING, *SOLID)
"""What works on the unified buffer alone."""
RAGGED = (*ELEMENTWISE, Duplicate, WholeReduce, BlockReduce)
"""Their operands may be masked, or end within a repeat."""
ROWED = (Copy,)
"""A repeat of theirs has any number of blocks: a row of DataCopy, or of Copy where it counts."""
# Copy is a DataCopy within the buffer, whose gaps have 16 bits; WholeReduceMax steps over rows of
# up to 1020 blocks (ops-nn, dynamic_quant_multi_row.h). How often an instruction repeats is not
# held against its 8 bits: a micro-op of more repeats stands for several instructions.
STRIDING = tuple(kind for kind in VECTOR if kind not in (Copy, WholeReduce))
WITH_SCALAR = (BinaryScalar, Axpy, Duplicate, CompareScalar)
