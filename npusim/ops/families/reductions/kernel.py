"""Cores, tiles and programs of reductions along rows.

Rows are divided evenly; a tile has as many as fit into the unified buffer twice, with their
results. Each row is processed separately, with a barrier after each step. A reduction adds, or
takes the maximum of, halves: elements beyond the largest power of two are folded onto the
beginning, then one half onto the other until one repeat is left, which one instruction reduces. A
number per row is combined with the row as a block made by Brcb. The index of the maximum is the
smallest index of the elements that equal it.

The vendor's kernels are built by a closed generator; that they process rows one after another, by
halves, is assumed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32, UINT8, DType
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, REPEAT_BYTES, Binary, BinaryOp, Local
from npusim.kernel import Block, GmView, Step, VectorCore
from npusim.kernel.rectangles import Rectangles, rectangles
from npusim.kernel.rows import whole_blocks
from npusim.kernel.sequences import count_on
from npusim.ops import _vocabulary as ops
from npusim.ops.families.reductions.contract import Problem

Fold = Literal["sum", "max", "min"]
"""Operation that reduces a row to a number."""
BRCB_LANES = 8
"""Elements that Brcb processes at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """Runs of rows, some at a time."""

    rows_per_core: int
    tile_rows: int
    depth: int
    """Depth of the queues of input and output rows."""


# ---- tiling ----


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Equal runs of rows that fit into the buffer."""
    cores = cores_of(spec, p)
    each = ceil_div(p.rows, cores)
    room, row_bytes = _room_bytes(spec, p), _row_bytes(p)
    depth = 2 if room >= 2 * row_bytes else 1
    return Plan(
        block_dim=ceil_div(p.rows, each),
        reads_tiling=False,
        rows_per_core=each,
        tile_rows=min(each, room // (depth * row_bytes)),
        depth=depth,
    )


def cores_of(spec: DeviceSpec, p: Problem) -> int:
    """How many cores may process rows."""
    out_columns = p.columns if p.keeps_shape else 1
    if p.output.element.nbytes(out_columns) < spec.transfer.store_granule_bytes:
        # Such rows spill into the next ones when they are stored, so one core takes them all.
        return 1
    return len(spec.vector_cores)


def fits(spec: DeviceSpec, p: Problem) -> bool:
    """Whether the unified buffer has room for a row and its intermediate results."""
    return _room_bytes(spec, p) >= _row_bytes(p)


def _room_bytes(spec: DeviceSpec, p: Problem) -> int:
    """Bytes for input and output rows."""
    return spec.cores[spec.vector_kinds[0]].usable_bytes("ub") - _fixed_bytes(p)


def _row_bytes(p: Problem) -> int:
    return p.inputs[0].element.nbytes(_pitch(p)) + p.output.element.nbytes(_out_pitch(p))


def _pitch(p: Problem) -> int:
    """Elements from row to row of x in the buffer: whole blocks."""
    return whole_blocks(p.columns, p.inputs[0].element)


def _out_pitch(p: Problem) -> int:
    """Elements from row to row of the result."""
    return _pitch(p) if p.keeps_shape else whole_blocks(1, p.output.element)


def _width(p: Problem) -> int:
    """Elements of a row, padded to whole blocks of any type."""
    if p.name == "argmax":
        # A comparison needs full repeats.
        return align_up(p.columns, REPEAT_BYTES * 8 // FLOAT32.bits)
    return whole_blocks(p.columns, FLOAT16)


def _fixed_bytes(p: Problem) -> int:
    """Bytes that a reduction overwrites, a row in float32, a number of the row and its blocks."""
    rows = 1 if _ends_in_float32(p) else 2
    # The indices as float32, and one bit for each.
    extra = FLOAT32.nbytes(_width(p)) + _mask_bytes(p) if p.name == "argmax" else 0
    return rows * FLOAT32.nbytes(_width(p)) + (BRCB_LANES + 1) * BLOCK_BYTES + extra


def _mask_bytes(p: Problem) -> int:
    """Bytes of one bit per element of a row."""
    return align_up(_width(p) // 8, BLOCK_BYTES)


def _ends_in_float32(p: Problem) -> bool:
    """Whether the result is a row of float32, which is computed in place."""
    return p.keeps_shape and p.output.element is FLOAT32


# ---- program ----


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Tiles of a core's rows, one after the other."""
    kernel = RowKernel(VectorCore(p.name, spec), p, plan.tile_rows, plan.depth)
    return kernel.core.launch(
        shares(p, plan.rows_per_core, plan.tile_rows, kernel.tile), begin=kernel.begin
    )


def shares(
    p: Problem, rows_per_core: int, row_step: int, stage: Callable[..., None], *more: GmView
) -> Step:
    """*stage* for each *row_step* rows of x, of the result and of *more*, `(rows, columns)`.

    Cores have *rows_per_core*.
    """
    columns = p.columns if p.keeps_shape else 1
    x = GmView.of("x", p.inputs[0].element, p.rows, p.columns)
    y = GmView.of("output", p.output.element, p.rows, columns)
    parts = rectangles(p.rows, p.columns, (rows_per_core, p.columns), p.columns).cut(row_step)
    out: Rectangles = replace(parts, columns=np.full(parts.core.size, columns))
    views = parts.views(x), out.views(y), *map(parts.views, more)
    return Step(stage, views, parts.core, parts.order)


class RowKernel:
    """The buffers of a core that processes *tile_rows* rows at a time, and its stages."""

    def __init__(self, core: VectorCore, p: Problem, tile_rows: int, depth: int) -> None:
        self.core, self.p = core, p
        element, width = p.inputs[0].element, _width(p)
        self.x = core.vecin(element, tile_rows * _pitch(p), depth)
        self.y = core.vecout(p.output.element, tile_rows * _out_pitch(p), depth)
        self.values = None if _ends_in_float32(p) else core.tile(FLOAT32, width)
        self.folded = core.tile(FLOAT32, width)
        self.number = core.claim("ub", BLOCK_BYTES)
        self.blocks = core.claim("ub", BRCB_LANES * BLOCK_BYTES)
        self.indices = self.mask = None
        if p.name == "argmax":
            self.indices = core.tile(FLOAT32, width)
            self.mask = core.tile(UINT8, width // 8)
        self.row = self.folded[: p.columns]
        """Scratch for a row in float32; shared by all rows."""
        core.claim_tails()

    def begin(self) -> None:
        """Fill constants that are the same for all rows."""
        if self.indices:
            assert self.values is not None
            # A comparison also reads the padding of a row.
            self.core.duplicate(self.values, 0.0)
            self._count(self.indices)

    def _count(self, indices: Local) -> None:
        """Fill *indices* with 0, 1, 2 and so on: eight by the scalar unit, then doubling."""
        core = self.core
        for index in range(BRCB_LANES):
            core.alu("add", "index", int(np.float32(index).view(np.int32)))
            core.set_value(indices[index : index + 1], "index")
        core.sync("scalar", "vector")
        count_on(core, indices, BRCB_LANES, 1.0)

    def tile(self, x: GmView, y: GmView) -> None:
        """Process *x* `(rows, columns)`; *y* is the same, or `(rows, 1)`."""
        core, pitch, out_pitch = self.core, _pitch(self.p), _out_pitch(self.p)
        loaded, out = core.load(self.x, x), self.y.alloc()
        for row in range(x.rows):
            src = loaded[row * pitch : row * pitch + x.columns]
            dst = out[row * out_pitch : row * out_pitch + y.columns]
            # The buffers that this row writes may still be read for the previous one.
            core.barrier("vector")
            self.row = self.values[: x.columns] if self.values else dst
            ROWS[self.p.name](self, dst, src)
        self.x.free(loaded)
        core.store(self.y, out, y, out_pitch)

    # ---- steps of a row ----

    def wide(self, src: Local) -> Local:
        """*src* as float32."""
        if src.dtype is FLOAT32:
            return src
        self.core.cast(self.row, src)
        return self.row

    def narrow(self, dst: Local, src: Local) -> None:
        """*src*, float32, as the type of *dst*, to nearest even."""
        if dst.dtype is not FLOAT32:
            self.core.cast(dst, src)
        elif dst != src:
            self.core.copy(dst, src)

    def reduced(self, op: Fold, src: Local) -> Local:
        """The sum, maximum or minimum of *src*, as a number."""
        self.core.copy(self.folded.as_dtype(src.dtype, src.count), src)
        return self.fold(op, src.dtype, src.count)

    def fold(self, op: Fold, dtype: DType, count: int) -> Local:
        """The same for the *count* elements in `folded`, which are overwritten."""
        folded = self.folded.as_dtype(dtype, count)
        lanes = REPEAT_BYTES * 8 // dtype.bits
        both: BinaryOp = "add" if op == "sum" else op
        while count > lanes:
            half = 1 << (count - 1).bit_length() - 1
            low, high = folded[: count - half], folded[half:count]
            self.core.apply(both, low, low, high)
            count = half
        number = self.number.of(dtype, 1)
        self.core.whole_reduce(op, number, folded[:count])
        return number

    def place_of_largest(self, src: Local) -> Local:
        """The first index of the maximum of *src*, or the last index for NaN, in float32.

        Leaves the maximum itself, in float32, in the register of that name.
        """
        assert self.indices is not None
        assert self.mask is not None
        core, width = self.core, _width(self.p)
        if src.dtype is FLOAT32:
            core.copy(self.row, src)
        else:
            self.wide(src)
        largest = self.reduced("max", self.row)
        core.sync("vector", "scalar")
        core.get_value("largest", largest)
        core.sync("scalar", "vector")
        # The padding of the row is compared as well, but not folded.
        row = Local("ub", self.row.offset_bytes, FLOAT32, width)
        core.compare("eq", self.mask, row, "largest")
        core.select(self.folded, self.mask, self.indices, float(src.count - 1))
        return self.fold("min", FLOAT32, src.count)

    def with_number(self, op: BinaryOp, dst: Local, src: Local, number: Local) -> None:
        """`dst = src op number`, with the block that Brcb makes of the number."""
        dtype = src.dtype
        lanes = BLOCK_BYTES * 8 // dtype.bits
        blocks = self.blocks.of(dtype, BRCB_LANES * lanes)
        eight = Local("ub", number.offset_bytes, dtype, BRCB_LANES)
        self.core.brcb(blocks, eight)
        repeats = src.count // (8 * lanes) * 8 * lanes
        rest = align_up(src.count - repeats, lanes)
        with self.core.independent():
            for start, count in ((0, repeats), (repeats, rest)):
                if count:
                    to, part = (
                        Local("ub", x.offset_bytes + dtype.nbytes(start), dtype, count)
                        for x in (dst, src)
                    )
                    self.core.step(Binary(op, to, part, blocks.again(count)))

    def in_float32(self, src: Local, number: Local) -> Local:
        """`src - number`, in the type of both, as float32."""
        if src.dtype is FLOAT32:
            self.with_number("sub", self.row, src, number)
        else:
            self.with_number("sub", src, src, number)
            self.core.cast(self.row, src)
        return self.row

    def invert(self, number: Local) -> None:
        """`number = 1 / number`."""
        ones = self.blocks.of(FLOAT32, 1)
        self.core.duplicate(ones, 1.0)
        self.core.div(number, ones, number)


# ---- results of a row ----


def _sum(kernel: RowKernel, dst: Local, src: Local) -> None:
    kernel.narrow(dst, kernel.reduced("sum", kernel.wide(src)))


def _mean(kernel: RowKernel, dst: Local, src: Local) -> None:
    # Scaled first, then summed.
    kernel.core.mul(kernel.row, kernel.wide(src), 1 / src.count)
    kernel.narrow(dst, kernel.reduced("sum", kernel.row))


def _amax(kernel: RowKernel, dst: Local, src: Local) -> None:
    if src.dtype is FLOAT16:
        kernel.core.copy(dst, kernel.reduced("max", src))
    else:
        kernel.narrow(dst, kernel.reduced("max", kernel.wide(src)))


def _argmax(kernel: RowKernel, dst: Local, src: Local) -> None:
    kernel.core.cast(dst, kernel.place_of_largest(src), "trunc")


def _softmax(kernel: RowKernel, dst: Local, src: Local) -> None:
    # The maximum is subtracted in float16, if the row is float16.
    row = src if src.dtype is FLOAT16 else kernel.wide(src)
    values = kernel.in_float32(row, kernel.reduced("max", row))
    kernel.core.exp(values, values)
    total = kernel.reduced("sum", values)
    if kernel.core.is_310p:
        kernel.invert(total)
        kernel.with_number("mul", values, values, total)
    else:
        kernel.with_number("div", values, values, total)
    kernel.narrow(dst, values)


def _log_softmax(kernel: RowKernel, dst: Local, src: Local) -> None:
    wide = kernel.wide(src)
    largest = kernel.reduced("max", wide)
    if src.dtype is not FLOAT16:
        # By default the maximum is that of the elements rounded to float16.
        half = kernel.folded.as_dtype(FLOAT16, 1)
        kernel.narrow(half, largest)
        kernel.core.cast(largest, half)
    kernel.with_number("sub", kernel.row, wide, largest)
    kernel.core.exp(kernel.folded[: src.count], kernel.row)
    total = kernel.fold("sum", FLOAT32, src.count)
    kernel.core.ln(total, total)
    kernel.with_number("sub", kernel.row, kernel.row, total)
    kernel.narrow(dst, kernel.row)


ROWS: dict[str, Callable[[RowKernel, Local, Local], None]] = {
    "sum": _sum,
    "mean": _mean,
    "amax": _amax,
    "argmax": _argmax,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
}
"""Operator -> the function that writes the steps of a row: result `(columns,)` or `(1,)`, row."""
