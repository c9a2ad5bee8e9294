"""What both templates have in common: the dequantised weight, and the products by it."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT4, DType
from npusim.data.integers import align_down, ceil_div
from npusim.data.tensor import Operand
from npusim.devices.schema import DeviceSpec
from npusim.isa import Fixpipe
from npusim.kernel.builder import Builder
from npusim.kernel.cube import BaseTile, CubeWriter, GmFeed, GmMatrix, GmTile, Tables
from npusim.kernel.rows import pieces
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView
from npusim.ops._dequantised_weight import (
    Dequantiser,
    Precision,
    QuantisedWeight,
)
from npusim.ops.npu_grouped_matmul.antiquant import group_k
from npusim.ops.npu_grouped_matmul.operands import Matrices, Operands
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.templates.blocks import sums_of
from npusim.ops.npu_grouped_matmul.templates.plan import Part, Plan, base_tile, rows_of, table_bytes

__all__ = [
    "FILLED",
    "READ",
    "WORKSPACE",
    "AntiquantPlan",
    "Products",
    "WeightMaker",
    "cube_tile",
    "is_performance",
    "longest_k",
    "ub_rows",
]

FILLED, READ = 0, 1
"""Flags between a cube core and its vector cores: columns are in the workspace; they were read."""
WORKSPACE = "dequantised"
BYTES_EACH: dict[tuple[DType, bool], int] = {
    (FLOAT16, False): 6,
    (BFLOAT16, False): 8,
    (FLOAT16, True): 5,
    (BFLOAT16, True): 7,
}
"""Type of x, whether the weight is int4 -> bytes of the unified buffer that the vendor counts for a
number."""
CHUNK = 4096
"""Numbers of a chunk are a multiple of it."""
UB_COLUMNS, UB_COLUMNS_OF_K = 512, 256
"""Of a chunk, and where k lies inside."""
LEAST_K_OF_CORES = 5 * 2**20
"""k times 256 columns of all cores, from which all vector cores work together."""
LEAST_USE = 0.4
"""The share of cores that have a block, from which they do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AntiquantPlan(Plan):
    """Base tiles, and what a vector core dequantises at a time."""

    ub_rows: int
    """Rows of a chunk of the weight as it lies."""
    ub_columns: int
    round_n: int
    """Columns that are in the workspace together."""


def is_performance(spec: DeviceSpec, p: Problem) -> bool:
    """Whether there are so many blocks and so much k that all vector cores work together."""
    if p.asked is not None:
        return p.asked == "antiquant_performance"
    cores = spec.cores["aic"].count
    k, n = (min(p.weight_shape(place)[axis] for place in range(len(p.weight))) for axis in (0, 1))
    base = cube_tile(spec, p)
    each = ceil_div(p.rows, p.experts)
    blocks = ceil_div(each, base.m) * ceil_div(n, base.n) * (2 if p.types.x is BFLOAT16 else 1)
    is_much = k * base.n * cores >= LEAST_K_OF_CORES
    return blocks >= int(LEAST_USE * cores) and is_much and not p.trans_weight


def cube_tile(spec: DeviceSpec, p: Problem) -> BaseTile:
    """The base tile; the end of L1, where messages of vector cores come, is not for operands."""
    core = spec.cores["aic"]
    messages_bytes = (core.l1_bytes or 0) - core.usable_bytes("l1")
    return base_tile(spec, p.types.x, rows_of(p), table_bytes=table_bytes(p) + messages_bytes)


def longest_k(p: Problem) -> int:
    return max(group.k for group in p.groups)


def ub_rows(spec: DeviceSpec, p: Problem, columns: int) -> int:
    """Rows of a chunk of so many columns."""
    each_bytes = BYTES_EACH[p.types.x, p.types.weight is INT4]
    numbers = align_down((spec.cores["aiv"].ub_bytes or 0) // each_bytes, CHUNK)
    return max(8, align_down(numbers // columns, 8))


class WeightMaker:
    """Dequantises parts of the weights of groups, on a vector core."""

    def __init__(self, builder: VectorCore, p: Problem, plan: AntiquantPlan) -> None:
        self.p, self.plan, self.operands = p, plan, Operands(p)
        group = max(p.groups, key=lambda g: g.k)
        part = Part(group, 0, 0, group.m, group.n)
        _, matrix = self.operands.matrices(part, once=False)
        numbers = self._numbers(p.antiquant_offset, part), self._numbers(p.antiquant_scale, part)
        size = group_k(p, group.weight)
        weight = QuantisedWeight(matrix, group.k, group.n, size, *numbers)
        is_half = p.types.x is FLOAT16
        kind = FLOAT16 if is_half else FLOAT32
        precision = Precision(kind, kind, p.types.x)
        sizes = plan.ub_rows, plan.ub_columns
        self.dequantiser = Dequantiser(builder, weight, precision, *sizes, depth=1)

    def _numbers(self, parts: tuple[Operand, ...], part: Part) -> GmView:
        """The offsets or scales of the columns of *part*: `(groups, columns)`, or turned."""
        p, found = self.p, self.operands.columns(parts, part)
        assert found is not None
        if p.trans_weight:
            # (columns, 1): one number each
            return GmView(found.name, found.dtype, part.columns, 1, 1, found.offset_bytes)
        groups = part.group.k // group_k(p, part.group.weight)
        n = part.group.n
        return GmView(found.name, found.dtype, groups, part.columns, n, found.offset_bytes)

    def write(self, part: Part, ks: range, output: GmView) -> None:
        """The weight of *ks* for the columns of *part* to *output*, of the same orientation."""
        p, plan, size = self.p, self.plan, group_k(self.p, part.group.weight)
        matrices = self.operands.matrices(part, once=False)
        base = self.operands.tiles(part, matrices)[1].offset_bytes
        matrix = matrices[1]
        whole = (slice(0, part.group.k), slice(0, part.columns))
        weight = matrix.view[whole[::-1] if p.trans_weight else whole]
        weight = weight.shifted_to(base)
        numbers = tuple(
            self._numbers(parts, part) for parts in (p.antiquant_offset, p.antiquant_scale)
        )
        k_step, n_step = plan.ub_rows, plan.ub_columns
        if p.trans_weight:
            k_step, n_step = n_step, k_step
        for k, count in _within(ks, k_step):
            # Where groups of k end within this piece, the last one with it.
            inner = range((k // size + 1) * size, k + count, size)
            ends = (*(end - k for end in inner), count)
            of_k, of_groups = slice(k, k + count), slice(k // size, k // size + len(ends))
            to_k = slice(k - ks.start, k - ks.start + count)
            for column, columns in pieces(part.columns, n_step):
                of_n = slice(column, column + columns)
                if p.trans_weight:
                    here, there = (of_n, of_k), (of_n, to_k)
                    own = [number[of_n, :] for number in numbers]
                else:
                    here, there = (of_k, of_n), (to_k, of_n)
                    own = [number[of_groups, of_n] for number in numbers]
                self.dequantiser.write_views(weight[here], output[there], ends, *own)


def _within(ks: range, step: int) -> list[tuple[int, int]]:
    """Pieces of *ks*, which begin at multiples of *step* but for the first."""
    found, k = [], ks.start
    while k < ks.stop:
        end = min(k // step * step + step, ks.stop)
        found.append((k, end - k))
        k = end
    return found


class Products:
    """The products of a cube core: rows of x by dequantised columns."""

    def __init__(self, builder: Builder, p: Problem, plan: AntiquantPlan) -> None:
        self.builder, self.p, self.plan, self.operands = builder, p, plan, Operands(p)
        group = max(p.groups, key=lambda g: g.k)
        x, _ = self.operands.matrices(Part(group, 0, 0, group.m, group.n))
        self._feeds = GmFeed(builder, x), GmFeed(builder, self.dequantised(group.k))
        self.writer = CubeWriter(builder, plan.tile, *self._feeds, group.k, unit_flag=True)
        bias = p.bias[0].element if p.bias else None
        self.tables = Tables(builder, plan.tile.n, bias)

    def dequantised(self, k: int) -> GmMatrix:
        """The columns in the workspace, of a weight of *k*."""
        p, width = self.p, self.plan.round_n
        sizes = (width, k) if p.trans_weight else (k, width)
        return GmMatrix(WORKSPACE, p.types.x, *sizes, not p.trans_weight)

    def arguments(
        self, part: Part, column: int, start_bytes: int
    ) -> tuple[GmTile, GmTile, Matrices, GmView, GmView | None]:
        """What `block` gets: the columns of *part* begin at *column* of the workspace's part.

        That begins *start_bytes* into it.
        """
        x, _ = matrices = self.operands.matrices(part)
        a, _ = self.operands.tiles(part, matrices)
        weight = self.dequantised(part.group.k)
        b = weight.tile(column, part.columns)
        b = b.shifted_to(b.offset_bytes + start_bytes)
        bias = self.operands.columns(self.p.bias, part)
        return a, b, (x, weight), self.operands.output(part), bias

    def block(
        self, x: GmTile, weight: GmTile, matrices: Matrices, output: GmView, bias: GmView | None
    ) -> None:
        """`output (rows, columns) = x (rows, k) @ weight (k, columns) + bias (columns,)`."""
        for feed, matrix in zip(self._feeds, matrices, strict=True):
            feed.gm_matrix = matrix
        start = None if bias is None else self.tables.take_bias(bias)
        slot = self.writer.product(x.extent, weight.extent, x.k, bias=start)
        self.tables.drop_bias()
        # L0C (columns / 16, rows_padded, 16) fp32 -> (rows, columns) of the output's type
        rows_padded, sums = sums_of(slot, FLOAT32, output)
        size = output.rows, output.columns, rows_padded
        self.writer.drain(slot, Fixpipe(output.operand, sums, *size, output.dtype, "cast"))
