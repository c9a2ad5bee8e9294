"""What profilers count for one micro-op: bytes by memory, products, operations."""

from __future__ import annotations

from collections import Counter

from npusim.data.integers import ceil_div
from npusim.isa import (
    Arithmetic,
    MicroOp,
    Product,
    ScalarWork,
    Transfer,
    ends,
    reads,
    writes,
)

__all__ = ["Traffic", "cube_kind", "cube_ops", "traffic", "vector_kind", "vector_ops"]

Traffic = Counter[str]
"""`read l1`, `write ub`, `l1 to gm`, ... -> bytes."""

FRACTAL_ROWS = 16
DEPTH = {"fp16": 16, "int8": 32}
"""The k of the product that the cube computes in a cycle (16 x 16 x 16, or with k = 32)."""
KINDS = {"float32": "fp32", "float16": "fp16", "int32": "int32", "int16": "int16"}


def traffic(op: MicroOp) -> Traffic:
    """Bytes that *op* reads and writes in each memory, and bytes that it copies between two."""
    work = op.work
    if isinstance(work, Transfer) and work.nbytes is not None:
        src, dst = ends(op)
        ways = f"read {src}", f"write {dst}", f"{src} to {dst}"
        return Counter(dict.fromkeys(ways, work.nbytes))
    found: Traffic = Counter()
    if not isinstance(work, ScalarWork) or work.counts_bytes:
        for word, operands in (("read", reads(op)), ("write", writes(op))):
            for operand in operands:
                found[f"{word} {operand.buffer}"] += operand.nbytes
    return found


def cube_kind(work: Product) -> str:
    """`int8` for products of int8 and int4, `fp16` for those of floats."""
    return "fp16" if work.dtype.is_float else "int8"


def cube_ops(work: Product) -> int:
    """Multiplications and additions, of whole fractals: 8192 each for fp16, 16384 for int8.

    Ascend/msopprof, pmu_calculate.cpp: aic_cube_fops.
    """
    depth = DEPTH[cube_kind(work)]
    rows, columns = ceil_div(work.m, FRACTAL_ROWS), ceil_div(work.n, FRACTAL_ROWS)
    tiles = rows * columns * ceil_div(work.k, depth)
    return tiles * 2 * FRACTAL_ROWS * FRACTAL_ROWS * depth


def vector_kind(op: MicroOp) -> str:
    """The type in which *op* calculates, or `misc` if it moves, converts or fills."""
    work = op.work
    return KINDS.get(work.dtype.name, "misc") if isinstance(work, Arithmetic) else "misc"


def vector_ops(op: MicroOp) -> int:
    """Operations on elements; a multiply-add counts twice."""
    work = op.work
    return work.operations if isinstance(work, Arithmetic) else 0
