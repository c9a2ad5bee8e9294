"""What one micro-op does that profilers count: bytes by memory, products, operations."""

from __future__ import annotations

from collections import Counter

from npusim.data.integers import ceil_div
from npusim.isa import (
    Axpy,
    Binary,
    BinaryScalar,
    BlockReduce,
    CopyL0c,
    CopyToL1,
    Fixpipe,
    Load,
    LoadData,
    LoadNd2Nz,
    Local,
    MicroOp,
    Mmad,
    MulAddDst,
    Reduce,
    ScalarLoop,
    Store,
    Unary,
    reads,
    writes,
)

__all__ = ["Traffic", "cube_kind", "cube_ops", "traffic", "vector_kind", "vector_ops"]

Traffic = Counter[str]
"""`read l1`, `write ub`, `l1 to gm`, ... -> bytes."""

FRACTAL_ROWS = 16
DEPTH = {"fp16": 16, "int8": 32}
"""Of the products that the cube does in a cycle (16 x 16 x 16, or 32 deep)."""
KINDS = {"float32": "fp32", "float16": "fp16", "int32": "int32", "int16": "int16"}


def traffic(op: MicroOp) -> Traffic:
    """Bytes that *op* reads and writes in each memory, and those it copies between two."""
    copied = _copied(op)
    if copied is not None:
        src, dst, nbytes = copied
        return Counter({f"read {src}": nbytes, f"write {dst}": nbytes, f"{src} to {dst}": nbytes})
    found: Traffic = Counter()
    if not isinstance(op, ScalarLoop):
        for word, operands in (("read", reads(op)), ("write", writes(op))):
            for operand in operands:
                found[f"{word} {operand.buffer}"] += operand.nbytes
    return found


def _copied(op: MicroOp) -> tuple[str, str, int] | None:
    """From which memory to which one, and how many bytes arrive there."""
    match op:
        case Load(dst=dst, src=src) | LoadNd2Nz(dst=dst, src=src):
            return "gm", dst.buffer, src.nbytes
        case Store(dst=place, src=inside):
            return inside.buffer, "gm", place.nbytes
        case Fixpipe(dst=there, src=inside):
            to = there.buffer if isinstance(there, Local) else "gm"
            return inside.buffer, to, op.dtype.nbytes(op.m * op.n)
        case LoadData(dst=dst, src=inside):
            return inside.buffer, dst.buffer, dst.nbytes
        case CopyL0c(dst=dst, src=inside):
            return inside.buffer, dst.buffer, dst.nbytes
        case CopyToL1(dst=dst, src=inside):
            return inside.buffer, dst.buffer, op.bursts * op.burst_bytes
        case _:
            return None


def cube_kind(op: Mmad) -> str:
    """`int8` for products of int8 and int4, `fp16` for those of floats."""
    return "int8" if op.dst.dtype.name == "int32" else "fp16"


def cube_ops(op: Mmad) -> int:
    """Multiplications and additions, of whole fractals: 8192 each for fp16, 16384 for int8.

    Ascend/msopprof, pmu_calculate.cpp: aic_cube_fops.
    """
    depth = DEPTH[cube_kind(op)]
    tiles = ceil_div(op.m, FRACTAL_ROWS) * ceil_div(op.n, FRACTAL_ROWS) * ceil_div(op.k, depth)
    return tiles * 2 * FRACTAL_ROWS * FRACTAL_ROWS * depth


def vector_kind(op: MicroOp) -> str:
    """The type that *op* calculates with, or `misc` for what moves, converts or fills."""
    if isinstance(op, Unary | Binary | BinaryScalar | Axpy | MulAddDst | Reduce | BlockReduce):
        return KINDS.get(op.dst.dtype.name, "misc")
    return "misc"


def vector_ops(op: MicroOp) -> int:
    """Operations on elements; those that multiply and add count twice."""
    match op:
        case Axpy(dst=dst) | MulAddDst(dst=dst):
            return 2 * dst.count
        case Unary(dst=dst) | Binary(dst=dst) | BinaryScalar(dst=dst):
            return dst.count
        case Reduce(src=src) | BlockReduce(src=src):
            return src.count
        case _:
            return 0
