"""The msd template with a scale for each column, form split_k: blocks of k scaled separately.

.. code-block:: text

    vector cores  rows of a block of x: largest magnitudes, sums, two or three digits
    cube cores    meanwhile load part of the weight, so that it is in the L2
                  then, by rounds of columns: digits of each block @ weight, int32 sums
    vector cores  all digits and blocks combined, scaled, y, during the next round

The sums pass through a ring of slots in global memory. All cube cores wait for each other after a
round; the ring has two halves of `half_rounds` slots, and after each half all vector cores wait for
each other before it is written again. Nothing is loaded ahead on a vector core: each load waits for
everything issued to its vector pipe (ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2,
op_kernel/*_msd_split_k.h, op_host/op_tiling/*_msd_tiling.cpp). Assumed: as many cores start as
share the tasks of a round evenly, and its strips; a task's columns are multiples of 32, and tasks
process all blocks of some columns first; the base tile is that of multicore, where digits stay in
L1 only if they serve several tiles of columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from npusim.data.dtypes import FLOAT32, INT32
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.kernel.cross_core import sync_all
from npusim.kernel.cube_core import CubeCore
from npusim.kernel.launch import CoreSteps, launch_mixed, share
from npusim.kernel.matmul import BaseTile
from npusim.kernel.plane import REPEAT, Plane, RowFactors, by_row, multiply_add
from npusim.kernel.program import Block
from npusim.kernel.rows import balanced, pieces
from npusim.kernel.steps import StageCall
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView
from npusim.ops._digits import DigitSplitter
from npusim.ops.npu_weight_quant_batchmatmul.choice import (
    MAX_BLOCK_K,
    CallTraits,
    block_k,
    scheme_of,
)
from npusim.ops.npu_weight_quant_batchmatmul.problem import OP, Plan, Problem, workspace_bytes
from npusim.ops.npu_weight_quant_batchmatmul.templates import RingSlot, msd, ring_slot

ALL_SPLIT, DIGITS_READY, ALL_MULTIPLIED, PRODUCTS_READY, ALL_READ, PRODUCTS_READ = range(6)
"""Flags between cores: pairs of one by which all cores of a kind wait for each other, and one that
they then set for the other cores of their group."""

# ---- how the work is split ----

ROUND_BYTES = 16 * 2**20
RING_ELEMENTS = 16 * 1024 * 256
MAX_HALF_ROUNDS = 8
MAX_FLAGS = 15
"""The highest count of a flag between cores."""
STRIP_N = 128
"""Columns that a vector core finishes."""
EPILOGUE_ROWS = 64
PRELOADS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitKPlan(Plan):
    """Blocks of k, rounds of columns, and a grid of vector cores over a round."""

    block_k: int
    k_blocks: int
    split_rows: int
    """Rows of x that a vector core splits at a time."""
    round_n: int
    """Columns of a round."""
    half_rounds: int
    """Rounds that half of the ring holds."""
    task_n: int
    """Columns of a block that a cube core computes at a time."""
    cube: BaseTile
    preloads: int
    """The most pieces of the weight that a cube core loads while it waits."""
    epilogue_cores_m: int
    """Vector cores that share the rows of a strip of 128 columns."""


def tile(spec: DeviceSpec, p: Problem) -> SplitKPlan:
    """Split like the vendor."""
    f = p.traits
    # k in blocks, n in rounds, a round in tasks of cube cores and strips of vector cores
    depth = block_k(f)
    k_blocks = ceil_div(f.k, depth)
    cubes, vectors = spec.cores["aic"].count, spec.cores["aiv"].count
    # Rows of int32 sums in a round: for all blocks and digits.
    sum_rows = k_blocks * scheme_of(f).terms * f.m
    max_round_n = align_down(ROUND_BYTES // INT32.nbytes(sum_rows), 256)
    round_n = min(max_round_n, STRIP_N * vectors, f.n)
    half_rounds = max(1, min(RING_ELEMENTS // (sum_rows * round_n), MAX_HALF_ROUNDS))
    if ceil_div(f.n, round_n) > MAX_FLAGS:
        # There are more rounds than a flag counts: the halves of the ring must be small enough.
        half_rounds = min(half_rounds, MAX_FLAGS // 2)
    even_n = align_up(ceil_div(round_n, cubes), 32)
    task_n = min(even_n if f.trans_weight else msd.core_columns(f, cubes), round_n)
    tasks, strips = ceil_div(round_n, task_n) * k_blocks, ceil_div(round_n, STRIP_N)
    block_dim = max(balanced(tasks, cubes), ceil_div(strips, 2))
    streamed = msd.digits_tile(spec, p, depth, task_n, keeps=False)
    # Digits that are multiplied by several tiles of the weight stay in L1.
    keeps = task_n > streamed.n
    products = GmView.of("products", INT32, 2 * half_rounds * sum_rows, round_n)
    return SplitKPlan(
        **p.chosen,
        block_dim=block_dim,
        workspaces=workspace_bytes(*msd.digit_views(f), *msd.row_views(f, k_blocks), products),
        block_k=depth,
        k_blocks=k_blocks,
        split_rows=min(8, MAX_BLOCK_K // depth),
        round_n=round_n,
        half_rounds=half_rounds,
        task_n=task_n,
        cube=msd.digits_tile(spec, p, depth, task_n, keeps) if keeps else streamed,
        preloads=PRELOADS,
        epilogue_cores_m=2 * block_dim // strips,
    )


Round = tuple[int, RingSlot]
"""The first of some columns of the output, and the slot of the ring for their products, int32
`(blocks x terms x m, columns)`."""


def _rounds(f: CallTraits, plan: SplitKPlan) -> tuple[Round, ...]:
    """All rounds, on which cube cores and vector cores agree."""
    slots, rows = 2 * plan.half_rounds, plan.k_blocks * scheme_of(f).terms * f.m
    ring = GmView.of("products", INT32, slots * rows, plan.round_n)
    count, found = ceil_div(f.n, plan.round_n), []
    for index, (column, columns) in enumerate(pieces(f.n, plan.round_n)):
        slot = ring_slot(ring, slots, index, count)
        found.append((column, slot._replace(view=slot.view[:, :columns])))
    return tuple(found)


# ---- programs ----


def build(spec: DeviceSpec, p: Problem, plan: SplitKPlan) -> tuple[Block, ...]:
    """Build a cube core and its two vector cores for each group that is launched."""
    bound = plan.bindings(p)
    cube, vector = _cube(spec, p, plan), _vector(spec, p, plan)
    return launch_mixed(plan.block_dim, cube, vector, lambda _: bound)


def _cube(spec: DeviceSpec, p: Problem, plan: SplitKPlan) -> CoreSteps:
    """The program of a cube core: its tasks of each round."""
    core, f = CubeCore(OP, spec), p.traits
    rounds, rows = _rounds(f, plan), scheme_of(f).terms * f.m
    cube = msd.DigitCube(core, p, plan.cube, min(plan.block_k, f.k))

    def tasks(each: Round, group: int) -> list[tuple[int, int, int, GmView]]:
        """First k, k, column and products of the core's tasks: all blocks of its columns first."""
        column, (products, _, _) = each
        found = []
        count = ceil_div(products.columns, plan.task_n) * plan.k_blocks
        for task in share(count, plan.block_dim, group):
            strip, block = divmod(task, plan.k_blocks)
            start, left = block * plan.block_k, strip * plan.task_n
            # (terms x m, columns) of the block in the slot `(blocks x terms x m, columns)`
            of_block = products[block * rows : (block + 1) * rows, left : left + plan.task_n]
            found.append((start, min(plan.block_k, f.k - start), column + left, of_block))
        return found

    def calls(group: int) -> Iterator[StageCall]:
        # While vector cores write digits, the weight of the first task is loaded into the L2.
        for start, k, column, products in tasks(rounds[0], group)[:1]:
            yield cube.prefetch_l2(start, k, column, products.columns, plan.preloads)
        yield core.cross_core_wait_flag, "group", "mte2", DIGITS_READY
        for each in rounds:
            if each[1].waits:
                yield core.cross_core_wait_flag, "group", "fixpipe", PRODUCTS_READ
            for task in tasks(each, group):
                yield from cube.multiply(*task)
            yield sync_all, core, "fixpipe", "fixpipe", ALL_MULTIPLIED, PRODUCTS_READY

    return CoreSteps.of_calls(core, plan.block_dim, calls)


def _vector(spec: DeviceSpec, p: Problem, plan: SplitKPlan) -> CoreSteps:
    """The program of a vector core; its second stage allocates the unified buffer anew."""
    core, f = VectorCore(OP, spec), p.traits
    split = _splitter(core, p, plan)
    core.reset_buffers()
    core_m = ceil_div(f.m, plan.epilogue_cores_m)
    epilogue = Epilogue(core, p, plan, min(core_m, EPILOGUE_ROWS))
    row_pieces, rounds = ceil_div(f.m, plan.split_rows), _rounds(f, plan)

    def calls(index: int) -> Iterator[StageCall]:
        for task in share(plan.k_blocks * row_pieces, 2 * plan.block_dim, index):
            yield split(*divmod(task, row_pieces))
        yield sync_all, core, "mte3", "mte2", ALL_SPLIT, DIGITS_READY
        yield (core.end_stage,)
        strip, part = divmod(index, plan.epilogue_cores_m)
        rows = slice(part * core_m, min((part + 1) * core_m, f.m))
        for column, slot in rounds:
            yield core.cross_core_wait_flag, "group", "mte2", PRODUCTS_READY
            products = slot.view[:, strip * STRIP_N : (strip + 1) * STRIP_N]
            if rows.start < rows.stop and products.columns > 0:
                yield from epilogue.write(rows, column + strip * STRIP_N, products)
            if slot.releases:
                yield sync_all, core, "mte2", "mte2", ALL_READ, PRODUCTS_READ

    return CoreSteps.of_calls(core, 2 * plan.block_dim, calls)


def _splitter(core: VectorCore, p: Problem, plan: SplitKPlan) -> Callable[[int, int], StageCall]:
    """The stage that splits piece *piece* of the rows of block *block* of k."""
    f, x = p.traits, GmView.of("x", p.x.element, p.traits.m, p.traits.k)
    sizes = plan.split_rows, plan.block_k
    splitter = DigitSplitter(core, p.x.element, scheme_of(f), *sizes, loads_ahead=False)

    def split(block: int, piece: int) -> StageCall:
        top, start = piece * plan.split_rows, block * plan.block_k
        rows, columns = (
            slice(top, min(top + plan.split_rows, f.m)),
            slice(start, start + plan.block_k),
        )
        absmax, sums = (view.row(block)[:, rows] for view in msd.row_views(f, plan.k_blocks))
        digits = (digit[rows, columns] for digit in msd.digit_views(f))
        piece_of_x, of_sums = x[rows, columns], sums if f.has_offset else None
        return splitter.write, False, piece_of_x, piece_of_x.rows, absmax, of_sums, *digits

    return split


# ---- the last stage: products of digits to y ----


class Epilogue:
    """Combines the products of all digits and blocks of k, scales them, and stores y."""

    def __init__(self, core: VectorCore, p: Problem, plan: SplitKPlan, max_rows: int) -> None:
        """Allocate space for *max_rows* x 128 at a time, or fewer columns if a round has fewer."""
        self.core, self.f, self.k_blocks, self.max_rows = core, p.traits, plan.k_blocks, max_rows
        self.scheme, self.output = scheme_of(p.traits), p.output_view
        columns = min(STRIP_N, align_up(plan.round_n, REPEAT))
        self.kinds = 1 + p.traits.has_offset
        """Largest magnitudes, and sums of x if there is an offset."""
        self.parameters = msd.ColumnParameters(core, p, columns)
        self.scaled_offset = core.tile(FLOAT32, columns)
        self.rows_padded = align_up(max_rows, 8)
        self.factors = RowFactors(core, self.kinds * plan.k_blocks * self.rows_padded)
        self.total, self.partial = (core.tile(FLOAT32, max_rows * columns) for _ in range(2))
        self.products_in = core.vecin(INT32, max_rows * columns)
        self.out = core.vecout(p.output.element, max_rows * columns)

    def write(self, rows: slice, column: int, products: GmView) -> Iterator[StageCall]:
        """Compute *rows* of the output, for the columns of *products*.

        The latter start at *column* and hold all rows, `(blocks x terms x m, columns)`.
        """
        columns = slice(column, column + products.columns)
        for start, count in pieces(rows.stop - rows.start, self.max_rows):
            here = slice(rows.start + start, rows.start + start + count)
            # From these rows of the first digit of the first block to those of the last.
            span = slice(here.start, here.stop + products.rows - self.f.m)
            of_rows = msd.row_views(self.f, self.k_blocks)[: self.kinds]
            yield (
                self._tile,
                self.output[here, columns],
                products[span, :],
                *(values[:, here] for values in of_rows),
                *self.parameters.views(columns),
            )

    def _tile(self, output: GmView, products: GmView, *views: GmView) -> None:
        """*views* are the row factors `(blocks, rows)`, then column parameters."""
        core, rows, pitch = self.core, output.rows, align_up(output.columns, REPEAT)
        core.sync("vector", "mte2")
        self.parameters.load(*views[self.kinds :])
        of_columns = self.parameters.of(output.columns)
        # (blocks, rows_padded) -> (blocks, rows_padded, 8) of each kind
        core.sync("vector", "mte2")
        count, pitch_m = self.k_blocks * self.rows_padded, self.rows_padded
        of_rows = views[: self.kinds]
        self.factors.load(count, *of_rows, pitch=pitch_m, with_gaps=True, parts=self.kinds)
        total = Plane(self.total, rows, pitch)
        core.duplicate(total.whole(), 0.0)
        scale = of_columns["antiquant_scale"]
        # total = sum over blocks of (sum of the row * (scale * offset))
        if "antiquant_offset" in of_columns:
            scaled = self.scaled_offset[: output.columns]
            core.mul(scaled, scale, of_columns["antiquant_offset"])
            for block in range(self.k_blocks):
                multiply_add(core, total, self.factors.of(count + block * pitch_m), scaled)
        # total += sum over blocks of (absmax of the row * (digits' products * scale))
        for block in range(self.k_blocks):
            partial = self._join_terms(products, block, rows, pitch)
            # (rows, columns) x (columns,), then total += (rows, 1) x (rows, columns)
            by_row(core, "mul", partial, scale)
            multiply_add(core, total, self.factors.of(block * pitch_m), partial)
        if "bias" in of_columns:
            by_row(core, "add", total, of_columns["bias"])
        result = self.out.alloc()
        # (rows, columns) fp32 -> the type of y, ties away from zero
        core.cast(result[: rows * pitch], total.whole(), "round")
        core.store_rows(self.out, result, output, pitch, with_gaps=True)

    def _join_terms(self, products: GmView, block: int, rows: int, pitch: int) -> Plane:
        """Combine the products of a block's digits: (terms, rows, columns) -> float32."""
        core, partial = self.core, Plane(self.partial, rows, pitch)
        core.duplicate(partial.whole(), 0.0)
        for term, weight in enumerate(self.scheme.weights):
            first = (block * self.scheme.terms + term) * self.f.m
            core.sync("vector", "mte2")
            of_term = products[first : first + rows, :]
            loaded = core.load_rows(self.products_in, of_term, pitch=pitch, with_gaps=True)
            raw = loaded[: rows * pitch]
            values = raw.as_dtype(FLOAT32)
            core.cast(values, raw)
            # partial += weight of the digit x product
            core.axpy(partial.whole(), values, weight)
            self.products_in.free(loaded)
        return partial
