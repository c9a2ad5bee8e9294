"""npu_dynamic_quant on 310P's AI cores: all in fp16, with a scalar round trip per row.

.. code-block:: text

    M = max|x|                       fp16; on 310P NaN counts as 0 and infinity as 65504
    y = fit(round(x * f16(127 / M)))  fp16, ties away from zero
    scale = M * f32(1 / 127)

Sources: ops-nn@e5c3fa9 quant/dynamic_quant/op_kernel/dynamic_quant_{align,unalign,
unalign_large}_310p.h. That the scalar unit saturates if 127 / M exceeds fp16 is assumed.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT16, FLOAT32, INT8
from npusim.isa import BinaryScalar, Local
from npusim.kernel import BLOCK_BYTES, Block, GmView, Step, VectorCore
from npusim.kernel.rows import parts_of
from npusim.ops._dynamic_quant import Plan, Problem
from npusim.ops._dynamic_quant.buffers import launch_pieces, pieces_of_cores


class HalfSteps:
    """The buffers of a core, and its steps for a row in fp16."""

    def __init__(self, core: VectorCore, plan: Plan) -> None:
        self.core = core
        rows, columns = plan.row_step, plan.column_step
        # Rows in whole blocks of int8, and so of x.
        self.x_in = core.vecin(FLOAT16, rows * columns, plan.depth)
        self.y_out = core.vecout(INT8, rows * columns)
        self.magnitudes = core.tile(FLOAT16, columns)
        self.absmax = core.tiles(FLOAT16, BLOCK_BYTES // FLOAT16.nbytes(1), "vector", "scalar")
        self.found = core.tiles(FLOAT32, rows, "scalar", "vector")
        """M of each row of a patch, in fp32."""
        self.scale_out = core.vecout(FLOAT32, rows)
        core.claim_tails()

    def read_absmax(self, x: Local) -> None:
        """Read the largest magnitude of *x* `(width,)` into register `half`, as fp16 bits."""
        core, absmax = self.core, self.absmax.alloc()
        magnitudes = self.magnitudes[: x.count]
        core.abs(magnitudes, x)
        core.reduce("max", absmax[:1], magnitudes)
        self.absmax.enque(absmax)
        absmax = self.absmax.deque()
        core.get_value("half", absmax[:1])
        self.absmax.free(absmax)

    def find_factor(self) -> None:
        """From register `half`: M in fp32 to `largest`, 127 / M in fp16 to `factor`."""
        alu = self.core.alu
        alu("f16_to_f32", "largest", "half")
        alu("f32_div", "factor", 127.0, "largest")
        alu("f32_to_f16", "factor", "factor")
        # A row of zeros must stay zeros: its factor would be infinite.
        alu("eq", "zero", "half", 0)
        alu("select", "factor", "zero", 0, "factor")

    def keep_absmax(self, x: Local, stored: Local, *, is_first: bool = False) -> None:
        """Write the running M of a row after part *x* to *stored* `(1,)`, as fp16 bits."""
        self.read_absmax(x)
        if not is_first:
            # Bit patterns of magnitudes are in the order of their values.
            self.core.get_value("before", stored)
            self.core.alu("max", "half", "half", "before")
        self.core.set_value(stored, "half")

    def read_factor(self, stored: Local) -> None:
        """Compute the factor like `find_factor`, from the result of `keep_absmax` in *stored*."""
        self.core.get_value("half", stored)
        self.find_factor()

    def quantise(self, y: Local, x: Local) -> None:
        """Multiply *x* `(width,)` by register `factor` in place, and round it into *y*."""
        self.core.mul(x, x, "factor")
        self.core.cast(y, x, "round")

    def store_scales(self, found: Local, scale: GmView) -> None:
        """Store M / 127 of all rows of a patch to *scale* `(rows,)`."""
        self.found.enque(found)
        found, out, rows = self.found.deque(), self.scale_out.alloc(), scale.columns
        self.core.emit(BinaryScalar("mul", out[:rows], found[:rows], 1 / 127))
        self.found.free(found)
        self.core.store(self.scale_out, out, scale)


def patches(core: VectorCore, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """The templates aligned and unaligned: whole rows, with the next patch loaded ahead."""
    half, columns = HalfSteps(core, plan), p.columns

    def fetch(x: GmView) -> None:
        core.copy_in(half.x_in, x)

    def patch(output: GmView, scale: GmView) -> None:
        """Write *output* `(rows, columns)` and *scale* `(rows,)` of the oldest rows of x."""
        loaded, out, found = half.x_in.deque(), half.y_out.alloc(), half.found.alloc()
        for row in range(output.rows):
            here = slice(row * columns, (row + 1) * columns)
            half.read_absmax(loaded[here])
            half.find_factor()
            core.set_value(found[row : row + 1], "largest")
            # (columns,) fp16 x factor -> int8
            half.quantise(out[here], loaded[here])
        half.x_in.free(loaded)
        core.store(half.y_out, out, output)
        half.store_scales(found, scale)

    found, (x, *others) = pieces_of_cores(p, plan)
    loading, working = found.ahead
    return core.launch(
        Step(fetch, (x,), found.core, loading, keeps_slots=True),
        Step(patch, tuple(others), found.core, working, keeps_slots=True),
    )


def long_patches(core: VectorCore, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """The template unaligned_large: eight rows at a time, in parts of 4096 columns.

    The remaining columns are quantised in the first pass; the parts before are loaded again, one
    row at a time.
    """
    half, step = HalfSteps(core, plan), plan.column_step
    whole = p.columns // step * step
    parts = parts_of(whole, step)

    def quantise_rest(x: GmView, output: GmView, found: Local) -> None:
        """Quantise the last columns *x*, which complete M, to *output*, both `(rows, width)`."""
        loaded, out = core.load(half.x_in, x), half.y_out.alloc()
        for row in range(x.rows):
            here, stored = slice(row * x.columns, (row + 1) * x.columns), found[row : row + 1]
            half.keep_absmax(loaded[here], stored)
            half.read_factor(stored)
            half.quantise(out[here], loaded[here])
        half.x_in.free(loaded)
        core.store(half.y_out, out, output)

    def quantise_row(x: GmView, output: GmView, stored: Local) -> None:
        """Quantise a part of a row, *x* to *output*, both `(1, width)`."""
        loaded = core.load(half.x_in, x)
        half.read_factor(stored)
        out = half.y_out.alloc()
        half.quantise(out[: x.columns], loaded[: x.columns])
        half.x_in.free(loaded)
        core.store(half.y_out, out, output)

    def patch(x: GmView, output: GmView, scale: GmView) -> None:
        found = half.found.alloc()
        stored = [found[row : row + 1] for row in range(x.rows)]
        for part in parts:
            loaded = core.load(half.x_in, x[:, part])
            for row, each in enumerate(stored):
                here = loaded[row * step : (row + 1) * step]
                half.keep_absmax(here, each, is_first=part.start == 0)
            half.x_in.free(loaded)
        if whole < x.columns:
            quantise_rest(x[:, whole:], output[:, whole:], found)
        for part in parts:
            for row, each in enumerate(stored):
                here_in = slice(row, row + 1), part
                quantise_row(x[here_in], output[here_in], each)
        # The M of all rows as fp32, and the scales from them.
        for each in stored:
            half.read_factor(each)
            core.set_value(each, "largest")
        half.store_scales(found, scale)

    return launch_pieces(core, p, plan, patch)
