"""How the template custom shares a call: rounds of columns, pieces of the weight, the cube's tiles.

In each round the cube cores cover some columns of all of k. The vector cores have dequantised them
into a slot of a ring by then, up to three of which lie in global memory (ops-nn@e5c3fa9 matmul/
weight_quant_batch_matmul_v2/op_host/op_tiling, *_tiling_custom.cpp). The base tile and the grid of
cube cores come from a library that is closed in parts; see :func:`tile`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.devices.schema import Core, DeviceSpec
from npusim.kernel.cube import BaseTile, GmMatrix
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates import plan
from npusim.ops.npu_weight_quant_batchmatmul.templates.dequant import (
    Chain,
    Piece,
    dequant_bytes,
    gm_weight,
    piece_of,
)

__all__ = ["Plan", "base_tile", "chain", "pieces", "ring", "ring_bytes", "tile"]

RING = "dequantised"
MOST_SLOTS = 3
BASE_M, BASE_N = 128, 256
PIECE_BYTES = 32768
"""Half of L0A or L0B."""
LINE_BYTES = 512
TABLE_BYTES = 4 + 8
"""A bias and a 64-bit scale a column, on their way through L1."""
K_LINE = 256
"""Rows of a slot along k are whole multiples of it."""


@dataclass(frozen=True, slots=True)
class Plan(plan.Plan):
    """The tiling of custom; counts of elements unless the name says otherwise."""

    base_m: int
    base_n: int
    base_k: int
    step_ka: int
    step_kb: int
    l0c_depth: int
    cores_m: int
    cores_n: int
    rounds: int
    """Each of `cores_n x base_n` columns."""
    slots: int
    """Rounds of dequantised weight that lie in global memory."""
    piece_rows: int
    """Of the weight as it lies in memory, that a vector core dequantises at a time."""
    piece_columns: int

    @property
    def width(self) -> int:
        """Columns of a round."""
        return self.cores_n * self.base_n


def chain(p: Problem) -> Chain:
    """fp16 all the way for an fp16 x, fp32 rounded once for a bf16 x."""
    if p.x.element is FLOAT16:
        return Chain(FLOAT16, FLOAT16, FLOAT16)
    return Chain(FLOAT32, FLOAT32, BFLOAT16)


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Split so that the busiest cube core loads least, in base tiles of at most 128 x 256.

    The vendor's grid comes from MultiCoreMatmulTiling or a closed table. The rule here is assumed,
    and so is that every vector core takes part that finds a piece in a round.
    """
    core, f = spec.cores["aic"], p.traits
    cores_m, base_m, base_n = min(_grids(core.count, f.m, f.n))[-1]
    blocks = ceil_div(f.n, base_n)
    cores_n = min(core.count // cores_m, blocks)
    rounds = ceil_div(blocks, cores_n)
    base_k, step_a, step_b = _steps(core, p, base_m, base_n)
    rows, across = _piece_sizes(spec.cores["aiv"], p)
    found = Plan(
        template=p.choice.template,
        form=p.choice.form,
        reason=p.choice.reason,
        block_dim=0,
        is_mix=True,
        workspaces={},
        base_m=base_m,
        base_n=base_n,
        base_k=base_k,
        step_ka=step_a,
        step_kb=step_b,
        l0c_depth=2 if 2 * 4 * base_m * base_n <= (core.l0c_bytes or 0) else 1,
        cores_m=cores_m,
        cores_n=cores_n,
        rounds=rounds,
        slots=min(MOST_SLOTS, rounds),
        piece_rows=rows,
        piece_columns=across,
    )
    busy = min(ceil_div(len(pieces(p, found, 0)), 2), core.count)
    return replace(
        found,
        block_dim=max(cores_m * cores_n, busy),
        workspaces={RING: found.slots * ring_bytes(p, found)},
    )


def _grids(cores: int, m: int, n: int) -> list[tuple[int, int, tuple[int, int, int]]]:
    """Rows and columns that a core loads, cores, and the grid: cores along m, base m and n."""
    grids = []
    for along_m in range(1, min(cores, ceil_div(m, FRACTAL_ROWS)) + 1):
        along_n = min(cores // along_m, ceil_div(n, FRACTAL_ROWS))
        rows, columns = ceil_div(m, along_m), ceil_div(n, along_n)
        base_m = min(BASE_M, align_up(rows, FRACTAL_ROWS))
        # Rows of a slot are read in whole lines of 256 bytes where a tile is that wide.
        base_n = min(BASE_N, align_up(columns, FRACTAL_ROWS if columns <= 128 else 128))
        rounds = ceil_div(ceil_div(n, base_n), along_n)
        used_m = ceil_div(ceil_div(m, base_m), ceil_div(rows, base_m))
        # The weight comes again for each row of tiles, x in each round.
        load = rounds * (align_up(rows, base_m) + base_n * ceil_div(rows, base_m))
        grids.append((load, used_m * along_n, (used_m, base_m, base_n)))
    return grids


def _steps(core: Core, p: Problem, base_m: int, base_n: int) -> tuple[int, int, int]:
    """k of a piece in L0, and how many such pieces a load brings to L1, of x and of the weight.

    Half of L1 for each operand, double buffered, less for the smaller one if tables need room;
    loads of whole lines of 512 bytes, the larger one a multiple of the smaller one (asc-devkit,
    impl/adv_api/tiling/matmul).
    """
    size, unit = p.x.element.bits // 8, c0(p.x.element)
    base_k = min(
        align_down(PIECE_BYTES // size // max(base_m, base_n), unit), align_up(p.traits.k, unit)
    )
    room, kept = core.usable_bytes("l1"), TABLE_BYTES * base_n
    a, b = (
        max(2, (core.l1_bytes or 0) // 2 // (base * base_k * size)) for base in (base_m, base_n)
    )
    if (a * base_m + b * base_n) * base_k * size > room - kept:
        a, b = (a // 2, b) if base_m < base_n else (a, b // 2)
    line, most = max(1, LINE_BYTES // (base_k * size)), ceil_div(p.traits.k, base_k)
    step_a, step_b = (min(align_down(x // 2, min(line, x // 2)), most) for x in (a, b))
    if step_a > step_b:
        return base_k, align_down(step_a, step_b), step_b
    return base_k, step_a, align_down(step_b, step_a)


def base_tile(t: Plan) -> BaseTile:
    """What one cube core works on at a time."""
    return BaseTile(t.base_m, t.base_n, t.base_k, t.step_ka, t.step_kb, t.l0c_depth)


# ---- pieces of the weight ----


def _piece_sizes(core: Core, p: Problem) -> tuple[int, int]:
    """Rows and columns of the weight in memory: the vendor's, or fewer if they do not fit."""
    f, is_half = p.traits, p.x.element is FLOAT16
    unit = 8 if f.weight == "int8" and not f.is_nz else FRACTAL_ROWS
    match f.weight, f.is_nz, f.trans_weight:
        case _, True, True:
            rows, columns = 64, 384 if is_half else 256
        case "int8", True, False:
            rows, columns = 864 if is_half else 544, 32
        case _, True, False:
            rows, columns = 256, 64
        case "int8", False, _:
            rows, columns = (40 if f.trans_weight else 48) if is_half else 32, 512
        case _:
            rows, columns = 64, 1024
    room, how = core.usable_bytes("ub"), chain(p)
    fitting = (x for x in range(rows, 0, -unit) if dequant_bytes(p, how, x, columns) <= room)
    return next(fitting), columns


def pieces(p: Problem, t: Plan, number: int) -> tuple[Piece, ...]:
    """What the vector cores dequantise in round *number*, in order of memory."""
    f = p.traits
    start = number * t.width
    spans = (0, f.k), (start, min(start + t.width, f.n))
    (top, bottom), (left, right) = spans[::-1] if f.trans_weight else spans
    return tuple(
        piece_of(p, row, column, min(t.piece_rows, bottom - row), min(width, right - column))
        for width in (t.piece_columns,)
        for row in range(top, bottom, t.piece_rows)
        for column in range(left, right, width)
    )


# ---- the ring ----


def ring(p: Problem, t: Plan) -> GmMatrix:
    """A slot: the columns of a round, in the weight's own orientation and layout."""
    weight, element = gm_weight(p), p.x.element
    layout: Literal["ND", "FRACTAL_NZ"] = weight.layout
    if weight.k_is_first:
        across = align_up(t.width, c0(weight.dtype)) if p.traits.is_nz else t.width
        return GmMatrix(RING, element, p.traits.k, across, True, layout)
    return GmMatrix(RING, element, t.width, align_up(p.traits.k, K_LINE), False, layout)


def ring_bytes(p: Problem, t: Plan) -> int:
    """Bytes of a slot."""
    gm_matrix = ring(p, t)
    rows = align_up(gm_matrix.rows, FRACTAL_ROWS) if p.traits.is_nz else gm_matrix.rows
    return rows * gm_matrix.dtype.nbytes(gm_matrix.columns)
