"""The program that each core runs for npu_moe_finalize_routing.

A tile of tokens begins with its skips. Then come the rows of each token, one after the other: the
scalar unit reads where the row is from global memory, mte2 brings it into one of two buffers, and
the vector pipe adds the bias, multiplies by the scale and adds that to the sum of its token.

ops-transformer@c29bc10 moe/moe_finalize_routing/op_kernel. Assumed: that the expert of a row is
read from global memory too, that the scales of a tile are loaded at once, and that the next tile is
begun when the sums of this one have left the buffer.
"""

from __future__ import annotations

from npusim.data.dtypes import BFLOAT16, FLOAT32, INT32
from npusim.data.integers import align_up
from npusim.devices.schema import DeviceSpec
from npusim.isa import (
    BLOCK_BYTES,
    Binary,
    BinaryScalar,
    Cast,
    Copy,
    Duplicate,
    Local,
    ScalarLoad,
    ScalarLoadGlobal,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.program import Block, Program
from npusim.kernel.queues import Queue, Slot
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, bindings, fill, load, repeat
from npusim.ops.npu_moe_finalize_routing.contract import DROPPED, Problem
from npusim.ops.npu_moe_finalize_routing.tiling import PING_PONG, Plan

__all__ = ["build"]

LINE_BYTES = 64
"""Of the scalar unit's data cache, which keeps what lies beside an index that was read (asc-devkit,
DataCacheCleanAndInvalid.md)."""
INDEX, EXPERT, SCALE = "index", "expert", "scale"
"""Registers."""


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core, each with a program of its own: rows differ."""
    kernel = Finalize(spec, p, plan)
    blocks: list[Block] = []
    for first, count in pieces(p.tokens, plan.tokens_per_core):
        core, bound = len(blocks), bindings(*kernel.views.values())
        program = kernel.program(range(first, first + count))
        blocks.append(Block(core, spec.vector_cores[core], program, bound))
    return tuple(blocks)


class Finalize:
    """The kernel, while it is written: its programs share one builder and its bodies."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.p, self.plan = p, plan
        self.is_wide = p.element is BFLOAT16
        self.work = FLOAT32 if self.is_wide else p.element
        self.lanes = align_up(plan.columns, BLOCK_BYTES * 8 // p.element.bits)
        """Numbers from row to row in the buffer."""
        self.views = _views(p)
        core = spec.cores[spec.vector_kinds[0]]
        self.builder = builder = Builder("finalize", core, spec.sync)
        row_bytes = p.element.nbytes(self.lanes)
        tile_bytes = plan.tokens_per_tile * row_bytes
        skips = sum(name in p.names for name in ("skip1", "skip2"))
        self.skips = builder.queue("ub", skips * tile_bytes, "mte2", "vector") if skips else None
        self.sums = builder.claim("ub", self.work.nbytes(plan.tokens_per_tile * self.lanes))
        self.results = self.sums
        """What is stored: the sums themselves, unless they are rounded first."""
        if self.is_wide:
            self.results = builder.claim("ub", tile_bytes)
        self.wide: dict[str, Slot] = {}
        """What comes as bfloat16, as float32."""
        for name, count in (
            ("skip2", plan.tokens_per_tile), ("expanded_permuted_rows", 1), ("bias", 1)
        ):  # fmt: skip
            if self.is_wide and name in p.names:
                self.wide[name] = builder.claim("ub", FLOAT32.nbytes(count * self.lanes))
        self.passing: dict[str, Queue] = {
            name: builder.queue("ub", row_bytes, "mte2", "vector", PING_PONG)
            for name in ("expanded_permuted_rows", "bias")
            if name in p.names
        }
        self.scales: Slot | None = None
        if "scales" in p.names:
            numbers = plan.tokens_per_tile * p.k
            self.scales = builder.claim("ub", p.element.nbytes(numbers))
            if self.is_wide:
                self.wide["scales"] = builder.claim("ub", FLOAT32.nbytes(numbers))

    def program(self, tokens: range) -> Program:
        """The tokens of one core."""
        for start, count in pieces(len(tokens), self.plan.tokens_per_tile):
            tile = tokens[start : start + count]
            for column, columns in pieces(self.p.width, self.plan.columns):
                self._tile(tokens.start, tile, slice(column, column + columns))
        return self.builder.build()

    def _tile(self, first: int, tile: range, columns: slice) -> None:
        """*columns* of the sums of the tokens of *tile*; *first* is the core's first token."""
        builder, views = self.builder, self.views
        here = slice(tile.start, tile.stop)
        skips = [views[name][here, columns] for name in ("skip1", "skip2") if name in self.p.names]
        scales = [views["scales"][here, :]] if self.scales else []
        repeat(builder, self._begin, *skips, *scales)
        for place, token in enumerate(tile):
            for choice in range(self.p.k):
                is_first = choice == 0 and not skips
                self._choice(token, choice, first, columns, (place, is_first))
        repeat(builder, self._end, views["output"][here, columns])

    # ---- around the rows of experts ----

    def _begin(self, *given: GmView) -> None:
        """The skips, each `(tokens, columns)`, become the sums; the scales, `(tokens, k)`, come."""
        skips = [view for view in given if view.name != "scales"]
        if skips:
            self._add_skips(*skips)
        for view in given[len(skips) :]:
            self._load_scales(view)

    def _add_skips(self, *skips: GmView) -> None:
        """One skip or the sum of two, each `(tokens, columns)`, to the sums."""
        builder, queue = self.builder, self.skips
        assert queue is not None
        sums = self._numbers(self.sums, skips[0])
        slot = load(builder, queue, *skips, pitch=self.lanes)
        first, *others = [
            slot.of(view.dtype, sums.count, index * view.dtype.nbytes(view.rows * self.lanes))
            for index, view in enumerate(skips)
        ]
        step(builder, Cast(sums, first, "none") if self.is_wide else Copy(sums, first))
        for second in others:
            if self.is_wide:
                wide = self._numbers(self.wide["skip2"], skips[1])
                step(builder, Cast(wide, second, "none"))
                second = wide
            step(builder, Binary("add", sums, sums, second))
        queue.free(slot)

    def _load_scales(self, scales: GmView) -> None:
        """*scales* of a tile, `(tokens, k)`, for the scalar unit."""
        builder, slot = self.builder, self.scales
        assert slot is not None
        numbers = scales.rows * scales.columns
        flat = GmView(scales.name, scales.dtype, 1, numbers, 0, scales.offset_bytes)
        # The scalar unit has read those of the tile before.
        builder.sync("scalar", "mte2")
        fill(builder, slot, flat)
        if not self.is_wide:
            builder.sync("mte2", "scalar")
            return
        builder.sync("mte2", "vector")
        wide = self.wide["scales"].of(FLOAT32, numbers)
        step(builder, Cast(wide, slot.of(scales.dtype, numbers), "none"))
        builder.sync("vector", "scalar")
        # The next ones may come only when these are converted.
        builder.sync("vector", "mte2")

    def _end(self, output: GmView) -> None:
        """The sums to *output*, `(tokens, columns)`."""
        builder = self.builder
        results = self._narrow(self.results, output)
        if self.is_wide:
            step(builder, Cast(results, self._numbers(self.sums, output), "rint"))
        builder.sync("vector", "mte3")
        builder.data_copy(output.operand, results, self.p.element.nbytes(self.lanes))
        builder.sync("mte3", "vector")

    # ---- rows of experts ----

    def _choice(
        self, token: int, choice: int, first: int, columns: slice, where: tuple[int, bool]
    ) -> None:
        """The row that *token* gets by its *choice*; *where* its sum is, and whether it begins."""
        p, views, index = self.p, self.views, self.p.index_of(token, choice)
        place, is_first = where
        row = p.row_of(token, choice)
        numbers = [self._element(views["expanded_src_to_dst_row"], index)]
        is_known = [self._is_cached(index, first, p.is_by_token)]
        rows: list[GmView] = []
        if row != DROPPED:
            rows.append(views["expanded_permuted_rows"].row(row)[:, columns])
            if "bias" in p.names:
                number = token * p.k + choice
                numbers.append(self._element(views["export_for_source_row"], number))
                is_known.append(self._is_cached(number, first, True))
                rows.append(views["bias"].row(p.expert_of(token, choice))[:, columns])
        width = len(range(*columns.indices(p.width)))
        target = self.sums.of(self.work, width, self.work.nbytes(place * self.lanes))
        scale = place * p.k + choice
        views_of = (*numbers, *rows)
        repeat(self.builder, self._term, target, scale, is_first, tuple(is_known), *views_of)

    def _term(
        self,
        target: Local,
        scale: int,
        is_first: bool,
        is_known: tuple[bool, ...],
        *given: GmView,
    ) -> None:
        """`(row + bias) * scale` to the sum *target* `(columns,)`, or as the first of it."""
        builder, count = self.builder, len(is_known)
        names = (INDEX, EXPERT)
        for name, view, is_cached in zip(names, given[:count], is_known, strict=False):
            builder.emit(ScalarLoadGlobal(name, view.operand, INT32, is_cached))
        rows = given[count:]
        if not rows:
            zero = Duplicate(target, 0.0)
            step(builder, zero if is_first else BinaryScalar("add", target, target, 0.0))
            return
        slots = [load(builder, self.passing[view.name], view) for view in rows]
        values, *biases = [self._widened(x, y) for x, y in zip(slots, rows, strict=True)]
        if biases:
            step(builder, Binary("add", values, values, biases[0]))
        elif not self.is_wide:
            step(builder, BinaryScalar("add", values, values, 0.0))
        if self.scales is not None:
            slot = self.wide["scales"] if self.is_wide else self.scales
            number = slot.of(self.work, 1, self.work.nbytes(scale))
            builder.emit(ScalarLoad(SCALE, number))
            product = target if is_first else values
            step(builder, BinaryScalar("mul", product, values, SCALE))
        elif is_first:
            step(builder, Copy(target, values))
        if not is_first:
            step(builder, Binary("add", target, target, values))
        for slot, view in zip(slots, rows, strict=True):
            self.passing[view.name].free(slot)

    def _widened(self, slot: Slot, view: GmView) -> Local:
        """What was loaded of *view*, one row, in the type that is calculated in."""
        own = slot.of(view.dtype, view.columns)
        if not self.is_wide:
            return own
        wide = self.wide[view.name].of(FLOAT32, view.columns)
        step(self.builder, Cast(wide, own, "none"))
        return wide

    def _element(self, view: GmView, index: int) -> GmView:
        """Number *index* of a list."""
        return view[:, index : index + 1]

    def _is_cached(self, index: int, first: int, is_by_token: bool) -> bool:
        """Whether the scalar unit has read the line of *index* for a core that began at *first*."""
        begin = first * self.p.k if is_by_token else first
        place = index if is_by_token else index % self.p.tokens
        return place > begin and INT32.nbytes(index) % LINE_BYTES > 0

    def _numbers(self, slot: Slot, view: GmView) -> Local:
        """Rows of *view* as they lie in the buffer, gaps between them included."""
        return slot.of(self.work, (view.rows - 1) * self.lanes + view.columns)

    def _narrow(self, slot: Slot, view: GmView) -> Local:
        """The same in the type of the tensors."""
        return slot.of(view.dtype, (view.rows - 1) * self.lanes + view.columns)


def _views(p: Problem) -> dict[str, GmView]:
    """The tensors as programs see them, by name."""
    views = {
        operand.name: GmView.of(operand.name, operand.element, *_matrix(operand.shape))
        for operand in p.inputs
        if operand.element is not INT32
    }
    for name in ("expanded_src_to_dst_row", "export_for_source_row"):
        if name in p.names:
            views[name] = GmView.vector(name, INT32, p.tokens * p.k)
    return views | {"output": GmView.of("output", p.element, p.tokens, p.width)}


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """*shape* as rows and columns."""
    *leading, columns = shape
    rows = 1
    for size in leading:
        rows *= size
    return rows, columns
