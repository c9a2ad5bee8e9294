"""The msd template with a scale for each column, form split_k: k in blocks of their own magnitudes.

.. code-block:: text

    vector cores  rows of a block of x: largest magnitudes, sums, two or three digits
    cube cores    meanwhile load some of the weight, so that it is in the L2
                  then, round by round of columns: digits of each block @ weight, int32 sums
    vector cores  all digits and blocks combined, scaled, y, during the next round

The sums go through a ring of slots in global memory. All cube cores wait for each other after a
round; the ring has two halves of `half_rounds` slots, and after each half all vector cores wait
for each other before it is written again. Nothing is loaded ahead on a vector core: each load waits
for all that its vector pipe has been given (ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2,
op_kernel/*_msd_split_k.h, op_host/op_tiling/*_msd_tiling.cpp). Assumed: as many cores start as
share the tasks of a round evenly, and its strips; a task's columns are multiples of 32, and tasks
go through all blocks of some columns first; the base tile is that of multicore, the digits staying
in L1 only where they serve several tiles of columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from npusim.data.dtypes import FLOAT32, INT32
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import Axpy, Binary, Cast, Duplicate, Local
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.cross_core import sync_all
from npusim.kernel.cube import BaseTile
from npusim.kernel.launch import mixed_launch, share
from npusim.kernel.plane import REPEAT, Plane, by_row, multiply_add, spread_rows
from npusim.kernel.program import Block, Program
from npusim.kernel.rows import balanced, pieces
from npusim.kernel.views import GmView, load, repeat, store
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.digits.scheme import digit_views, scheme_of
from npusim.ops.npu_weight_quant_batchmatmul.templates.digits.splitter import DigitSplitter
from npusim.ops.npu_weight_quant_batchmatmul.templates.msd.cube import (
    DigitCube,
    core_columns,
    digits_tile,
)
from npusim.ops.npu_weight_quant_batchmatmul.templates.msd.numbers import (
    ColumnParameters,
    absmax_view,
    sums_view,
)
from npusim.ops.npu_weight_quant_batchmatmul.templates.plan import Plan
from npusim.ops.npu_weight_quant_batchmatmul.templates.workspaces import (
    bindings,
    ring_slot,
    workspace_bytes,
)
from npusim.ops.npu_weight_quant_batchmatmul.traits import CallTraits

__all__ = ["SplitKPlan", "build", "tile"]

OP = "npu_weight_quant_batchmatmul"
ALL_SPLIT, DIGITS_READY, ALL_MULTIPLIED, PRODUCTS_READY, ALL_READ, PRODUCTS_READ = range(6)
"""Flags between cores: one at which all cores of a kind wait for each other, and the one that they
then set for the other cores of their group, each."""

# ---- how the work is split ----

MAX_BLOCK_K = 12288
MAX_BLOCKS = 6
ROUND_BYTES = 16 * 2**20
RING_ELEMENTS = 16 * 1024 * 256
MAX_HALF_ROUNDS = 8
MAX_FLAGS = 15
"""What a flag between cores counts to."""
STRIP_N = 128
"""Columns that a vector core finishes."""
EPILOGUE_ROWS = 64
PRELOADS = 10


@dataclass(frozen=True, slots=True)
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
    """Columns that a cube core makes of a block at a time."""
    cube: BaseTile
    preloads: int
    """Pieces of the weight that a cube core loads while it waits, at most."""
    epilogue_cores_m: int
    """Vector cores that share the rows of a strip of 128 columns."""


def tile(spec: DeviceSpec, p: Problem) -> SplitKPlan:
    """Split as the vendor does."""
    f = p.traits
    # k in blocks, n in rounds, a round in tasks of cube cores and strips of vector cores
    block_k = _block_k(f)
    k_blocks = ceil_div(f.k, block_k)
    cubes, vectors = spec.cores["aic"].count, spec.cores["aiv"].count
    # Rows of a round of int32 sums: of all blocks, all digits.
    sum_rows = k_blocks * scheme_of(f).terms * f.m
    max_round_n = align_down(ROUND_BYTES // INT32.nbytes(sum_rows), 256)
    round_n = min(max_round_n, STRIP_N * vectors, f.n)
    half_rounds = max(1, min(RING_ELEMENTS // (sum_rows * round_n), MAX_HALF_ROUNDS))
    if ceil_div(f.n, round_n) > MAX_FLAGS:
        # More rounds than a flag counts to: the halves of the ring must be small enough.
        half_rounds = min(half_rounds, MAX_FLAGS // 2)
    even_n = align_up(ceil_div(round_n, cubes), 32)
    task_n = min(even_n if f.trans_weight else core_columns(f, cubes), round_n)
    tasks, strips = ceil_div(round_n, task_n) * k_blocks, ceil_div(round_n, STRIP_N)
    block_dim = max(balanced(tasks, cubes), ceil_div(strips, 2))
    streamed = digits_tile(spec, p, block_k, task_n, keeps=False)
    # Digits that are multiplied by several tiles of the weight stay in L1.
    keeps = task_n > streamed.n
    return SplitKPlan(
        template=p.choice.template,
        form=p.choice.form,
        reason=p.choice.reason,
        block_dim=block_dim,
        is_mix=True,
        workspaces=workspace_bytes(
            *digit_views(f),
            absmax_view(f, k_blocks),
            sums_view(f, k_blocks),
            GmView.of("products", INT32, 2 * half_rounds * sum_rows, round_n),
        ),
        block_k=block_k,
        k_blocks=k_blocks,
        split_rows=min(8, MAX_BLOCK_K // block_k),
        round_n=round_n,
        half_rounds=half_rounds,
        task_n=task_n,
        cube=digits_tile(spec, p, block_k, task_n, keeps) if keeps else streamed,
        preloads=PRELOADS,
        epilogue_cores_m=2 * block_dim // strips,
    )


def _block_k(f: CallTraits) -> int:
    """How much of k is scaled by one largest magnitude."""
    unit = 64 if not f.trans_weight else 512 if f.weight == "int8" else 1024
    first = 4 if f.k // f.n >= 30 and not f.trans_weight else 1
    depths = [align_up(ceil_div(f.k, blocks), unit) for blocks in range(first, MAX_BLOCKS + 1)]
    return next((depth for depth in depths if depth <= MAX_BLOCK_K), depths[-1])


class Round(NamedTuple):
    """Some columns of the output, and the slot of the ring that their products go through."""

    column: int
    products: GmView
    """int32 `(blocks x terms x m, columns)`."""
    waits: bool
    """Whether cube cores wait for its half of the ring; `releases` for vector cores: `RingSlot`."""
    releases: bool


def rounds(f: CallTraits, plan: SplitKPlan) -> tuple[Round, ...]:
    """All rounds, on which cube cores and vector cores agree."""
    slots, rows = 2 * plan.half_rounds, plan.k_blocks * scheme_of(f).terms * f.m
    ring = GmView.of("products", INT32, slots * rows, plan.round_n)
    count = ceil_div(f.n, plan.round_n)
    found = []
    for index, (column, columns) in enumerate(pieces(f.n, plan.round_n)):
        slot = ring_slot(ring, slots, index, count)
        found.append(Round(column, slot.view[:, :columns], slot.waits, slot.releases))
    return tuple(found)


# ---- who does what ----


def build(spec: DeviceSpec, p: Problem, plan: SplitKPlan) -> tuple[Block, ...]:
    """A cube core and its two vector cores for each group that is launched."""
    bound = bindings(p, plan)
    cube, vector = _CubeCore(spec, p, plan), _VectorCore(spec, p, plan)
    return mixed_launch(
        plan.block_dim,
        lambda _: bound,
        cube.program,
        lambda group, half: vector.program(2 * group + half),
    )


class _Task(NamedTuple):
    """A product of a cube core: a block of k, and columns of the round."""

    start: int
    k: int
    column: int
    products: GmView
    """`(terms x m, columns)`."""


class _CubeCore:
    """The kernel of a cube core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: SplitKPlan) -> None:
        self._f, self._plan = p.traits, plan
        self._rounds = rounds(p.traits, plan)
        self._builder = Builder(OP, spec.cores["aic"], spec.sync)
        max_k = min(plan.block_k, p.traits.k)
        self._cube = DigitCube(self._builder, p, plan.cube, max_k)

    def program(self, core: int) -> Program:
        """The program of cube core number *core*."""
        builder = self._builder
        # While vector cores write digits, the weight of the first task is brought into the L2.
        for task in self._tasks(self._rounds[0], core)[:1]:
            columns = task.products.columns
            self._cube.prefetch_l2(task.start, task.k, task.column, columns, self._plan.preloads)
        builder.cross_core_wait_flag("group", "mte2", DIGITS_READY)
        for each in self._rounds:
            if each.waits:
                builder.cross_core_wait_flag("group", "fixpipe", PRODUCTS_READ)
            for task in self._tasks(each, core):
                self._cube.multiply(*task)
            sync_all(
                builder, "fixpipe", "fixpipe", event=ALL_MULTIPLIED, group_event=PRODUCTS_READY
            )
        return builder.build()

    def _tasks(self, each: Round, core: int) -> list[_Task]:
        """The tasks of a core in a round: all blocks of its columns first."""
        plan, columns = self._plan, each.products.columns
        rows = scheme_of(self._f).terms * self._f.m
        tasks = []
        for task in share(ceil_div(columns, plan.task_n) * plan.k_blocks, plan.block_dim, core):
            strip, block = divmod(task, plan.k_blocks)
            start, left = block * plan.block_k, strip * plan.task_n
            k = min(plan.block_k, self._f.k - start)
            # (terms x m, columns) of the block in the slot `(blocks x terms x m, columns)`
            of_block = each.products[block * rows : (block + 1) * rows, left : left + plan.task_n]
            tasks.append(_Task(start, k, each.column + left, of_block))
        return tasks


class _VectorCore:
    """The kernel of a vector core; its second stage claims the unified buffer anew."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: SplitKPlan) -> None:
        self._f, self._plan = p.traits, plan
        self._rounds = rounds(p.traits, plan)
        self._x = GmView.of("x", p.x.element, p.traits.m, p.traits.k)
        self._builder = Builder(OP, spec.cores["aiv"], spec.sync)
        self._splitter = DigitSplitter(
            self._builder,
            p.x.element,
            scheme_of(p.traits),
            plan.split_rows,
            plan.block_k,
            loads_ahead=False,
        )
        self._builder.reset_buffers()
        self._core_m = ceil_div(p.traits.m, plan.epilogue_cores_m)
        self._epilogue = Epilogue(self._builder, p, plan, min(self._core_m, EPILOGUE_ROWS))

    def program(self, core: int) -> Program:
        """The program of vector core number *core*."""
        builder, f, plan = self._builder, self._f, self._plan
        row_pieces = ceil_div(f.m, plan.split_rows)
        for task in share(plan.k_blocks * row_pieces, 2 * plan.block_dim, core):
            self._split(*divmod(task, row_pieces))
        sync_all(builder, "mte3", "mte2", event=ALL_SPLIT, group_event=DIGITS_READY)
        builder.end_stage()
        strip, part = divmod(core, plan.epilogue_cores_m)
        row, left = part * self._core_m, strip * STRIP_N
        rows = min(self._core_m, f.m - row)
        for each in self._rounds:
            builder.cross_core_wait_flag("group", "mte2", PRODUCTS_READY)
            products = each.products[:, left : left + STRIP_N]
            if rows > 0 and products.columns > 0:
                self._epilogue.write(row, rows, each.column + left, products)
            if each.releases:
                sync_all(builder, "mte2", "mte2", event=ALL_READ, group_event=PRODUCTS_READ)
        return builder.build()

    def _split(self, block: int, piece: int) -> None:
        """Split some rows of a block of k."""
        f, plan = self._f, self._plan
        top, start = piece * plan.split_rows, block * plan.block_k
        rows = slice(top, min(top + plan.split_rows, f.m))
        columns = slice(start, start + plan.block_k)
        repeat(
            self._builder,
            self._split_rows,
            self._x[rows, columns],
            absmax_view(f, plan.k_blocks).row(block)[:, rows],
            sums_view(f, plan.k_blocks).row(block)[:, rows] if f.has_offset else None,
            *(digit[rows, columns] for digit in digit_views(f)),
        )

    def _split_rows(self, x: GmView, absmax: GmView, sums: GmView | None, *digits: GmView) -> None:
        """x (rows, k of the block) -> digits of the same shape, two numbers for each row."""
        splitter = self._splitter
        # (rows, k of the block) fp16 or bf16 -> fp32
        plane = splitter.load(x, x.rows)
        largest = splitter.absmax(plane)
        if sums is not None:
            splitter.store_numbers(splitter.row_sums(plane), sums)
        splitter.divide(plane, largest)
        splitter.store_numbers(largest, absmax)
        # (rows, k of the block) in [-1, 1] -> two or three digits
        splitter.split(plane, *digits)


# ---- the last stage: products of digits to y ----

ABSMAX, SUMS = 0, 1
"""Numbers of rows, in the order in which they are loaded."""


class Epilogue:
    """Combines the products of all digits and blocks of k, scales them, and stores y."""

    def __init__(self, builder: Builder, p: Problem, plan: SplitKPlan, max_rows: int) -> None:
        """Claim room for *max_rows* x 128 at a time, or fewer columns if a round has fewer."""
        self._builder, self._f, self._plan = builder, p.traits, plan
        f, self._max_rows, self._rows_padded = p.traits, max_rows, align_up(max_rows, 8)
        columns = min(STRIP_N, align_up(plan.round_n, REPEAT))
        self._scheme = scheme_of(f)
        self._output = GmView.of("output", p.output.element, f.m, f.n)
        self._numbers_of_rows = [absmax_view(f, plan.k_blocks)]
        if f.has_offset:
            self._numbers_of_rows.append(sums_view(f, plan.k_blocks))
        self._parameters = ColumnParameters(builder, p, columns)
        self._scaled_offset = builder.claim("ub", FLOAT32.nbytes(columns))
        kinds, count = len(self._numbers_of_rows), plan.k_blocks * self._rows_padded
        self._numbers = builder.queue("ub", kinds * FLOAT32.nbytes(count), "mte2", "vector")
        self._blocks = [builder.claim("ub", FLOAT32.nbytes(8 * count)) for _ in range(kinds)]
        tile_bytes = FLOAT32.nbytes(max_rows * columns)
        self._total, self._partial = (
            builder.claim("ub", tile_bytes),
            builder.claim("ub", tile_bytes),
        )
        self._products = builder.queue("ub", tile_bytes, "mte2", "vector")
        result_bytes = p.output.element.nbytes(max_rows * columns)
        self._results = builder.queue("ub", result_bytes, "vector", "mte3")

    def write(self, row: int, rows: int, column: int, products: GmView) -> None:
        """Make *rows* rows of the output from *row* on, for the columns of *products*.

        These begin at *column* and are those of all rows, `(blocks x terms x m, columns)`.
        """
        columns = slice(column, column + products.columns)
        for start, count in pieces(rows, self._max_rows):
            here = slice(row + start, row + start + count)
            # From these rows of the first digit of the first block to those of the last.
            span = slice(here.start, here.stop + products.rows - self._f.m)
            repeat(
                self._builder,
                self._tile,
                self._output[here, columns],
                products[span, :],
                len(self._numbers_of_rows),
                *(numbers[:, here] for numbers in self._numbers_of_rows),
                *self._parameters.views(columns),
            )

    def _tile(self, output: GmView, products: GmView, kinds: int, *views: GmView) -> None:
        """*views* are *kinds* numbers of rows `(blocks, rows)`, then parameters of columns."""
        builder, rows, pitch = self._builder, output.rows, align_up(output.columns, REPEAT)
        self._builder.sync("vector", "mte2")
        self._parameters.load(*views[kinds:])
        of_columns = self._parameters.of(output.columns)
        self._spread(*views[:kinds])
        total = Plane(self._total, rows, pitch)
        step(builder, Duplicate(total.whole(), 0.0))
        scale = of_columns["antiquant_scale"]
        # total = sum over blocks of (sum of the row * (scale * offset))
        if "antiquant_offset" in of_columns:
            scaled = self._scaled_offset.of(FLOAT32, output.columns)
            step(builder, Binary("mul", scaled, scale, of_columns["antiquant_offset"]))
            for block in range(self._plan.k_blocks):
                multiply_add(builder, total, self._of_rows(SUMS, block), scaled)
        # total += sum over blocks of (absmax of the row * (digits' products * scale))
        for block in range(self._plan.k_blocks):
            partial = self._join_terms(products, block, rows, pitch)
            # (rows, columns) x (columns,), then total += (rows, 1) x (rows, columns)
            by_row(builder, "mul", partial, scale)
            multiply_add(builder, total, self._of_rows(ABSMAX, block), partial)
        if "bias" in of_columns:
            by_row(builder, "add", total, of_columns["bias"])
        slot = self._results.alloc()
        # (rows, columns) fp32 -> the type of y, ties away from zero
        step(builder, Cast(slot.of(output.dtype, rows * pitch), total.whole(), "round"))
        store(builder, self._results, slot, output, pitch, with_gaps=True)

    def _join_terms(self, products: GmView, block: int, rows: int, pitch: int) -> Plane:
        """Combine the products of a block's digits: (terms, rows, columns) -> float32."""
        builder, partial = self._builder, Plane(self._partial, rows, pitch)
        step(builder, Duplicate(partial.whole(), 0.0))
        for term, weight in enumerate(self._scheme.weights):
            first = (block * self._scheme.terms + term) * self._f.m
            of_term = products[first : first + rows, :]
            builder.sync("vector", "mte2")
            slot = load(builder, self._products, of_term, pitch=pitch, with_gaps=True)
            numbers = slot.of(FLOAT32, rows * pitch)
            step(builder, Cast(numbers, slot.of(INT32, rows * pitch), "none"))
            # partial += weight of the digit x product
            step(builder, Axpy(partial.whole(), numbers, weight))
            self._products.free(slot)
        return partial

    def _spread(self, *numbers: GmView) -> None:
        """Numbers of rows `(blocks, rows)`, each as a block of eight."""
        builder, pitch = self._builder, self._rows_padded
        count = self._plan.k_blocks * pitch
        builder.sync("vector", "mte2")
        slot = load(builder, self._numbers, *numbers, pitch=pitch, with_gaps=True)
        # (blocks, rows_padded) -> (blocks, rows_padded, 8)
        for index, blocks in enumerate(self._blocks):
            of_kind = slot.of(FLOAT32, count, index * FLOAT32.nbytes(count))
            spread_rows(builder, blocks.of(FLOAT32, 8 * count), of_kind)
        self._numbers.free(slot)

    def _of_rows(self, kind: int, block: int) -> Local:
        """The numbers of a block of k, from the first row on."""
        size = 8 * self._rows_padded
        return self._blocks[kind].of(FLOAT32, size, FLOAT32.nbytes(block * size))
