"""What each micro-op computes, bit for bit: the reference definition.

One function per micro-op, applied to the :class:`State` of one core. Nothing here depends on time.
Every arithmetic step is one IEEE operation in the element type: fp32 directly; fp16 and bf16 in
fp32 and then rounded, which gives the same bits (the significand of fp32 has at least two bits more
than twice theirs). Source of the rules: asc-devkit, the API pages of each instruction. What the
cube computes is in ``data/product``, and the conversion by the fixpipe in ``quantise``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from npusim.isa import (
    MICRO_OPS,
    Axpy,
    Barrier,
    Binary,
    BinaryScalar,
    BlockReduce,
    Broadcast,
    BroadcastToL0c,
    Cast,
    CastDequant,
    Compare,
    CompareScalar,
    Copy,
    CopyL0c,
    CopyToL1,
    CrossCoreSetFlag,
    CrossCoreWaitFlag,
    Duplicate,
    Fixpipe,
    Fold,
    Gather,
    GatherBlocks,
    GatherMask,
    GetCmpMask,
    Load,
    LoadData,
    LoadFractals,
    LoadImage,
    LoadNd2Nz,
    LoadTable,
    MicroOp,
    Mmad,
    MrgSort,
    MrgSort4,
    MulAddDst,
    ProposalConcat,
    ProposalExtract,
    Reduce,
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
    SetFlag,
    Sort32,
    Store,
    Table,
    TransDataTo5HD,
    Transpose,
    Trap,
    Unary,
    WaitFlag,
    WholeReduce,
)
from npusim.values.runs import Accumulated, Halved, Run, Swept
from npusim.values.semantics import (
    copies,
    fractals,
    matrix,
    rearranging,
    reductions,
    scalar,
    selection,
    sorting,
    vector,
)
from npusim.values.semantics.state import Memory, State

__all__ = ["EXECUTE", "Memory", "State", "run"]


def run(ops: Iterable[MicroOp | Run], state: State) -> None:
    """Execute *ops* in the order given; raises TrapError when one of them traps."""
    with np.errstate(all="ignore"):
        for op in ops:
            if isinstance(op, MicroOp):
                EXECUTE[type(op)](op, state)
            else:
                _RUNS[type(op)](op, state)


_RUNS: dict[type, Callable[[Any, State], None]] = {
    Accumulated: vector.accumulate,
    Halved: reductions.halve,
    Swept: vector.sweep,
}


def _nothing(_: MicroOp, __: State) -> None:
    """Micro-ops that only order pipes compute nothing."""


EXECUTE: Table[Callable[[Any, State], None]] = Table(
    "semantics.EXECUTE",
    "a function that computes it",
    MICRO_OPS,
    {
        Load: copies.load,
        Store: copies.store,
        CopyToL1: copies.copy_to_l1,
        LoadNd2Nz: matrix.load_nd2nz,
        LoadData: matrix.load_data,
        LoadFractals: fractals.load_fractals,
        LoadImage: fractals.load_image,
        LoadTable: matrix.load_table,
        Mmad: matrix.mmad,
        Fixpipe: matrix.fixpipe,
        CopyL0c: matrix.copy_l0c,
        BroadcastToL0c: matrix.broadcast_to_l0c,
        Cast: vector.convert,
        CastDequant: vector.dequantise,
        Unary: vector.unary,
        Binary: vector.binary,
        BinaryScalar: vector.binary_scalar,
        Axpy: vector.axpy,
        MulAddDst: vector.mul_add_dst,
        Duplicate: rearranging.duplicate,
        Broadcast: rearranging.broadcast,
        Reduce: reductions.reduce,
        BlockReduce: reductions.block_reduce,
        WholeReduce: reductions.whole_reduce,
        Fold: reductions.fold,
        Copy: rearranging.copy,
        Compare: selection.compare,
        CompareScalar: selection.compare_scalar,
        Select: selection.select,
        Gather: rearranging.gather,
        GatherBlocks: rearranging.gather_blocks,
        Scatter: rearranging.scatter,
        TransDataTo5HD: rearranging.trans_data,
        GetCmpMask: selection.get_cmp_mask,
        SetCmpMask: selection.set_cmp_mask,
        Transpose: rearranging.transpose,
        Sort32: sorting.sort,
        MrgSort: sorting.merge,
        GatherMask: sorting.gather_mask,
        ProposalConcat: sorting.concat,
        ProposalExtract: sorting.extract,
        RpSort16: sorting.sort_proposals,
        MrgSort4: sorting.merge_proposals,
        ScalarLoad: scalar.scalar_load,
        ScalarLoadGlobal: scalar.scalar_load_global,
        ScalarStore: scalar.scalar_store,
        ScalarStoreGlobal: scalar.scalar_store_global,
        ScalarAlu: scalar.scalar_alu,
        ScalarLoop: scalar.scalar_loop,
        Trap: scalar.trap,
        SetFlag: _nothing,
        WaitFlag: _nothing,
        Barrier: _nothing,
        CrossCoreSetFlag: _nothing,
        CrossCoreWaitFlag: _nothing,
    },
)
