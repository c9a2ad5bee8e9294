"""The last stage of msd split_k, on a vector core."""

from __future__ import annotations

from collections.abc import Callable

from npusim.data.dtypes import FLOAT32, INT32
from npusim.data.integers import align_up
from npusim.isa import Axpy, Binary, Cast, Duplicate, Global, Local
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.plane import REPEAT, Plane, by_row, multiply_add, spread_rows
from npusim.kernel.rows import pieces
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.digits import Scheme
from npusim.ops.npu_weight_quant_batchmatmul.templates.msd_columns import Columns

__all__ = ["Finish"]


class Finish:
    """Puts the products of all digits and blocks of k together, scales them, and makes them y."""

    def __init__(
        self,
        builder: Builder,
        p: Problem,
        scheme: Scheme,
        shape: tuple[int, int, int, int],
        round_n: int,
    ) -> None:
        """*shape*: terms, blocks of k, and rows x columns (a multiple of 64) at a time."""
        self._builder, self._p, self._scheme = builder, p, scheme
        self._terms, self._k_blocks, self._rows, wide = shape
        self._pitch = INT32.nbytes(round_n)
        self._vectors = Columns(builder, p, wide)
        self._both = builder.claim("ub", FLOAT32.nbytes(wide))
        self._high = align_up(self._rows, 8)
        names = ("most", "sums") if p.traits.has_offset else ("most",)
        count = self._k_blocks * self._high
        self._numbers = builder.queue("ub", len(names) * FLOAT32.nbytes(count), "mte2", "vector")
        self._blocks = {name: builder.claim("ub", FLOAT32.nbytes(8 * count)) for name in names}
        size = FLOAT32.nbytes(self._rows * wide)
        self._total, self._partial = builder.claim("ub", size), builder.claim("ub", size)
        self._products = builder.queue("ub", size, "mte2", "vector", 2)
        out = p.output.element.nbytes(self._rows * wide)
        self._results = builder.queue("ub", out, "vector", "mte3", 2)

    def strip(self, place_bytes: int, row: int, rows: int, column: int, columns: int) -> None:
        """Finish *rows* x *columns* of the output; their sums begin at *place_bytes*, row 0."""
        f, out = self._p.traits, self._p.output.element
        for top, count in pieces(rows, self._rows):
            number = FLOAT32.nbytes(row + top)
            shifts = {
                "products": place_bytes + (row + top) * self._pitch,
                "output": out.nbytes((row + top) * f.n + column),
                "most": number,
                "sums": number,
                **self._vectors.shifts(column),
            }
            self._builder.call(("finish", count, columns), shifts, self._writing(count, columns))

    def _writing(self, rows: int, columns: int) -> Callable[[], None]:
        return lambda: self._tile(rows, columns)

    def _tile(self, rows: int, columns: int) -> None:
        builder, p = self._builder, self._p
        wide = align_up(columns, REPEAT)
        vectors = self._vectors.take(columns)
        self._take_numbers(rows)
        total = Plane(self._total, rows, wide)
        step(builder, Duplicate(total.whole(), 0.0))
        scale = vectors["antiquant_scale"]
        if p.traits.has_offset:
            both = self._both.of(FLOAT32, columns)
            step(builder, Binary("mul", both, scale, vectors["antiquant_offset"]))
            for block in range(self._k_blocks):
                multiply_add(builder, total, self._of("sums", block), both)
        for block in range(self._k_blocks):
            partial = self._block(block, rows, columns)
            by_row(builder, "mul", partial, scale)
            multiply_add(builder, total, self._of("most", block), partial)
        if "bias" in vectors:
            by_row(builder, "add", total, vectors["bias"])
        out = p.output.element
        slot = self._results.alloc()
        result = slot.of(out, rows * wide)
        step(builder, Cast(result, total.whole(), "round"))
        self._results.enque(slot)
        slot = self._results.deque()
        place = Global("output", 0, out.nbytes(columns), rows, out.nbytes(p.traits.n))
        builder.store(place, result, out.nbytes(wide))
        self._results.free(slot)

    def _block(self, block: int, rows: int, columns: int) -> Plane:
        """The products of a block's digits, put together."""
        builder, wide = self._builder, align_up(columns, REPEAT)
        partial = Plane(self._partial, rows, wide)
        step(builder, Duplicate(partial.whole(), 0.0))
        for term, weight in enumerate(self._scheme.weights):
            slot = self._products.alloc()
            given = slot.of(INT32, rows * wide)
            start = (block * self._terms + term) * self._p.traits.m * self._pitch
            place = Global("products", start, INT32.nbytes(columns), rows, self._pitch)
            builder.load(given, place, INT32.nbytes(wide))
            self._products.enque(slot)
            slot = self._products.deque()
            numbers = slot.of(FLOAT32, rows * wide)
            step(builder, Cast(numbers, given, "none"))
            step(builder, Axpy(partial.whole(), numbers, weight))
            self._products.free(slot)
        return partial

    def _take_numbers(self, rows: int) -> None:
        """Largest magnitudes and sums of rows of all blocks, each as a block of eight."""
        builder, count = self._builder, self._k_blocks * self._high
        slot = self._numbers.alloc()
        pitch = FLOAT32.nbytes(self._high)
        stride = FLOAT32.nbytes(self._p.traits.m)
        for index, name in enumerate(self._blocks):
            place = Global(name, 0, FLOAT32.nbytes(rows), self._k_blocks, stride)
            builder.load(slot.of(FLOAT32, count, index * FLOAT32.nbytes(count)), place, pitch)
        self._numbers.enque(slot)
        slot = self._numbers.deque()
        for index, blocks in enumerate(self._blocks.values()):
            numbers = slot.of(FLOAT32, count, index * FLOAT32.nbytes(count))
            spread_rows(builder, blocks.of(FLOAT32, 8 * count), numbers)
        self._numbers.free(slot)

    def _of(self, name: str, block: int) -> Local:
        """The numbers of a block of k, from the first row on."""
        size = 8 * self._high
        return self._blocks[name].of(FLOAT32, size, FLOAT32.nbytes(block * size))
