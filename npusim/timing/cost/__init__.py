"""How long each micro-op occupies its pipe without contention, in cycles of its core.

Vector: `head + max(repeats x rate, bank cycles) + tail`, with repeats of 256 bytes of the widest
operand. The head is paid if the pipe was drained, the tail before the result can be read. Cube: one
cycle per tile plus the overhead of an Mmad. Between the buffers of a core: the start-up of the path
plus the bytes at its rate. Copies to and from global memory: bytes as the memory moves them (whole
sectors, and whole lines if a burst is not sector-aligned), which the links of ``timing/memory``
convert to time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from npusim.data.integers import ceil_div
from npusim.devices.schema import Core, DeviceSpec, VectorClassName
from npusim.isa import (
    MICRO_OPS,
    PROPOSAL_ELEMENTS,
    PROPOSALS_AT_ONCE,
    REPEAT_BLOCKS,
    SORTED_AT_ONCE,
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
    Local,
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
from npusim.timing.cost import matrix
from npusim.timing.cost.copies import Charge, charge
from npusim.timing.cost.cycles import Cost
from npusim.timing.cost.vector import BINARY, BINARY_SCALAR, UNARY, vector

__all__ = ["COST", "Charge", "Cost", "charge", "cost"]


def cost(op: MicroOp, spec: DeviceSpec, core: Core) -> Cost:
    """Cycles of *op* on a *core* of *spec*.

    Raises TypeError for copies to and from global memory, whose time depends on other cores: see
    `charge`. Raises ValueError if the device has no figure for it.
    """
    return COST[type(op)](op, spec, core)


CostOf = Callable[[Any, DeviceSpec, Core], Cost]


def _constant(cycles: Callable[[DeviceSpec], int]) -> CostOf:
    """A constant cost for all micro-ops of a kind."""
    return lambda _, spec, __: Cost(cycles(spec))


def _between(nbytes: Callable[[Any], int]) -> CostOf:
    """The cost of moving bytes between buffers of a core."""
    return lambda op, _, core: matrix.between_buffers(op, nbytes(op), core)


def _vector(
    name: VectorClassName | Mapping[Any, VectorClassName],
    *,
    reduces: bool = False,
    expands: bool = False,
) -> CostOf:
    """A vector micro-op of the class *name*, or of the class that a table gives for its `op`."""

    def cycles(op: Any, spec: DeviceSpec, _: Core) -> Cost:
        kind = spec.vector.classes[name if isinstance(name, str) else name[op.op]]
        return vector(op, spec, kind, reduces=reduces, expands=expands)

    return cycles


def _fold(op: Fold, spec: DeviceSpec, core: Core) -> Cost:
    """The cost of its Max or Min, with result and first source at fixed addresses."""
    here = replace(op.dst, count=op.src.count, repeat_stride=0)
    return cost(Binary(op.op, here, here, op.src), spec, core)


def _whole_reduce(op: WholeReduce, spec: DeviceSpec, _: Core) -> Cost:
    """One repeat per result, however few of its lanes are active."""
    lanes = spec.vector.repeat_bytes * 8 // op.src.dtype.bits
    whole = Local(op.src.buffer, op.src.offset_bytes, op.src.dtype, op.src.repeats * lanes)
    return vector(replace(op, src=whole), spec, spec.vector.classes["reduce"], reduces=True)


def _select(op: Select, spec: DeviceSpec, _: Core) -> Cost:
    """The cost of an operation on its sources; mask bits of a repeat are a quarter of a block."""
    chosen: MicroOp = BinaryScalar("max", op.dst, op.a, 0)
    if isinstance(op.b, Local):
        chosen = Binary("max", op.dst, op.a, op.b)
    return vector(chosen, spec, spec.vector.classes["select"])


def _copy(op: Copy, spec: DeviceSpec, core: Core) -> Cost:
    """Rows with more blocks than a repeat take several; bank conflicts are not counted."""
    wide = max(op.src, op.dst, key=lambda local: local.repeat_blocks)
    if wide.repeat_blocks <= REPEAT_BLOCKS:
        return _vector("copy")(op, spec, core)
    kind = spec.vector.classes["copy"]
    is_narrow = wide.dtype.bits <= 16
    rate = kind.cycles_per_repeat_16bit if is_narrow else kind.cycles_per_repeat_32bit
    repeats = wide.repeats * ceil_div(wide.repeat_blocks, REPEAT_BLOCKS)
    return Cost(ceil(repeats * rate), kind.head_cycles, kind.tail_cycles)


def _compare(op: Compare, spec: DeviceSpec, core: Core) -> Cost:
    """A comparison into the register, of one repeat, costs the same as into the buffer."""
    if not isinstance(op.dst, Local):
        op = replace(op, dst=replace(op.a, mask=None))
    return _vector("compare", reduces=True)(op, spec, core)


def _one_repeat(name: VectorClassName) -> CostOf:
    """One repeat of class *name*: assumed."""

    def cost_of(_: MicroOp, spec: DeviceSpec, __: Core) -> Cost:
        kind = spec.vector.classes[name]
        return Cost(ceil(kind.cycles_per_repeat_16bit), kind.head_cycles, kind.tail_cycles)

    return cost_of


def _trans_data(op: TransDataTo5HD, spec: DeviceSpec, _: Core) -> Cost:
    """The cost of as many contiguous squares: assumed. Bank conflicts are not counted."""
    first = op.dst[0]
    whole = Local(first.buffer, first.offset_bytes, first.dtype, len(op.dst) * first.count)
    kind = spec.vector.classes["transpose"]
    return vector(Transpose(whole, whole), spec, kind, reduces=True)


def _gather_blocks(op: GatherBlocks, spec: DeviceSpec, _: Core) -> Cost:
    """The cost of copying the blocks that it gathers: assumed. Bank conflicts are not counted."""
    moved = Copy(op.dst, replace(op.src, count=op.dst.count))
    return vector(moved, spec, spec.vector.classes["copy"], expands=True)


def _scatter(op: Scatter, spec: DeviceSpec, core: Core) -> Cost:
    """By the number of elements, as for Gather: assumed."""
    return _gather(Gather(op.src, op.dst, op.offsets), spec, core)


def _gather(op: Gather, spec: DeviceSpec, _: Core) -> Cost:
    """By the number of elements gathered; bank conflicts of these are not counted."""
    looked_up = replace(op, src=replace(op.src, count=op.dst.count))
    return vector(looked_up, spec, spec.vector.classes["gather"], reduces=True)


def _merge(op: MrgSort, spec: DeviceSpec, _: Core) -> Cost:
    """By the number of pairs merged, 32 to a repeat; bank conflicts are not counted."""
    taken = replace(op, src=replace(op.src, count=op.dst.count))
    return vector(taken, spec, spec.vector.classes["merge"], reduces=True)


def _proposals(name: VectorClassName, at_once: int) -> CostOf:
    """As class *name*, with *at_once* proposals in a repeat; bank conflicts are not counted.

    The cost of proposals on arch 2002 is not public: sorts and merges are taken to process two a
    cycle, as arch 2201 does pairs (assumed).
    """

    def cost_of(
        op: ProposalConcat | ProposalExtract | RpSort16 | MrgSort4, spec: DeviceSpec, _: Core
    ) -> Cost:
        kind = spec.vector.classes[name]
        count = max(op.src.count, op.dst.count) // PROPOSAL_ELEMENTS
        body = ceil(ceil_div(count, at_once) * kind.cycles_per_repeat_32bit)
        return Cost(body, kind.head_cycles, kind.tail_cycles)

    return cost_of


def _load_global(op: ScalarLoadGlobal, spec: DeviceSpec, _: Core) -> Cost:
    scalar = spec.scalar
    return Cost(scalar.load_cycles if op.is_cached else scalar.global_load_cycles)


def _loop(op: ScalarLoop, spec: DeviceSpec, core: Core) -> Cost:
    return Cost(op.count * sum(cost(part, spec, core).body for part in op.body))


def _charged(op: Load | LoadNd2Nz | Store | Fixpipe, _: DeviceSpec, __: Core) -> Cost:
    raise TypeError(f"cost: {op} must be charged with the offset of its tensor; use charge")


def _fixpipe(op: Fixpipe, spec: DeviceSpec, core: Core) -> Cost:
    if not isinstance(op.dst, Local):
        return _charged(op, spec, core)
    return matrix.between_buffers(op, matrix.fixpipe_bytes(op), core)


COST: Table[CostOf] = Table(
    "cost.COST",
    "a function that gives its cycles",
    MICRO_OPS,
    {
        Load: _charged,
        LoadNd2Nz: _charged,
        Store: _charged,
        Fixpipe: _fixpipe,
        LoadData: _between(matrix.filled_bytes),
        LoadFractals: _between(matrix.fractal_bytes),
        # Like the same number of bytes of a matrix: assumed.
        LoadImage: _between(matrix.filled_bytes),
        LoadTable: _between(matrix.filled_bytes),
        BroadcastToL0c: _between(matrix.filled_bytes),
        CopyL0c: _between(lambda op: op.src.nbytes),
        CopyToL1: _between(matrix.burst_bytes),
        Mmad: lambda op, spec, _: matrix.mmad(op, spec.cube),
        Cast: _vector("cast"),
        # Like a cast: assumed.
        CastDequant: _vector("cast"),
        Binary: _vector(BINARY),
        BinaryScalar: _vector(BINARY_SCALAR),
        Unary: _vector(UNARY),
        # Axpy has not been measured. It runs at the lanes of muls and add (asc-devkit, vector
        # throughput table), and its second operand may conflict with the banks of the first.
        Axpy: _vector("muls"),
        # FusedMulAdd and MulAddRelu read as many operands as MulAddDst: assumed.
        MulAddDst: _vector("muladd"),
        Duplicate: _vector("duplicate"),
        Broadcast: _vector("broadcast", expands=True),
        Reduce: _vector("reduce", reduces=True),
        WholeReduce: _whole_reduce,
        Fold: _fold,
        # Pairs like blocks: assumed.
        BlockReduce: _vector("block_reduce", reduces=True),
        Copy: _copy,
        Compare: _compare,
        GetCmpMask: _one_repeat("logic"),
        SetCmpMask: _one_repeat("logic"),
        CompareScalar: _vector("compare", reduces=True),
        Select: _select,
        Gather: _gather,
        GatherBlocks: _gather_blocks,
        Scatter: _scatter,
        TransDataTo5HD: _trans_data,
        Transpose: _vector("transpose"),
        Sort32: _vector("sort", reduces=True),
        MrgSort: _merge,
        GatherMask: _vector("gather_mask", reduces=True),
        ProposalConcat: _proposals("gather_mask", PROPOSALS_AT_ONCE),
        ProposalExtract: _proposals("gather_mask", PROPOSALS_AT_ONCE),
        RpSort16: _proposals("sort", SORTED_AT_ONCE),
        MrgSort4: _proposals("merge", SORTED_AT_ONCE),
        ScalarLoad: _constant(lambda spec: spec.scalar.load_cycles),
        ScalarLoadGlobal: _load_global,
        ScalarStore: _constant(lambda spec: spec.scalar.store_cycles),
        ScalarStoreGlobal: _constant(lambda spec: spec.scalar.store_cycles),
        ScalarAlu: _constant(lambda spec: spec.scalar.alu_cycles),
        Trap: _constant(lambda spec: spec.scalar.alu_cycles),
        ScalarLoop: _loop,
        SetFlag: _constant(lambda spec: spec.sync.set_flag_cycles),
        CrossCoreSetFlag: _constant(lambda spec: spec.sync.set_flag_cycles),
        WaitFlag: _constant(lambda spec: spec.sync.wait_flag_cycles),
        CrossCoreWaitFlag: _constant(lambda spec: spec.sync.wait_flag_cycles),
        Barrier: _constant(lambda spec: spec.sync.barrier_cycles),
    },
)
