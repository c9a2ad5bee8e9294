"""From int32 sums to the output on vector cores: float scales, row scales, a bias, one rounding.

`((f32(sum) x scale) x pertoken) + bias`, each step rounded to float32, the result to the output's
type, ties to even. Each of the two vector cores of a group processes half of the rows of a block,
or the first one all of them, some at a time, in as many passes as the vendor's kernel
(ops-nn@e5c3fa9 matmul/quant_batch_matmul_v3/op_kernel, *_basic_epilogue.h and *_bf16_basic.h;
asc-devkit, ascend_dequant_common_impl.h). Scales and bias are loaded and widened again for every
piece; then

=========================  ======================================================================
Cast                       the sums, int32 to float32
Mul, Muls                  by the scales of the columns, 64 columns of all rows at a time
Muls 1                     into the plane of the result; only if a pass other than Cast follows
Brcb, Copy                 the row scales, broadcast to a separate plane
Mul                        plane by plane
Add                        the bias, row by row
Cast                       to the output's type
=========================  ======================================================================

The vendor's kernel adds 0 in place of Muls 1, and to widen float32 column scales; the
multiplication takes as long, and keeps the sign of a zero, as the operator's documents require.
Assumed: a bias alone needs the plane of the result too, and a single scale for all columns is
handled the same way.

In tbe_opt with row scales a plane of these is ready before the sums are: while the cube multiplies,
the vector core fills a plane with the scales of the rows of a block, and multiplies it row by row;
then each piece of sums takes a pass for every step. The vendor's kernel code multiplies that plane
by the column scales to save one pass of four; its golden values follow the order above, as here:
the rows are multiplied by 1, which takes as long. Vector core 0 of a group does all of it
(*_pertoken_opt.h). That vector core 1 answers the cube core's flags is assumed.
"""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import FLOAT32, INT32
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.kernel import (
    CoreSteps,
    GmView,
    GmViews,
    Local,
    Pieces,
    Plane,
    Step,
    VectorCore,
    by_row,
    spread_rows,
)
from npusim.kernel.blocks import columns_of, output_of
from npusim.kernel.plane import REPEAT
from npusim.kernel.rows import pieces as row_pieces
from npusim.ops._quant_parameters import QuantParameter
from npusim.ops.npu_quant_matmul.check import Problem
from npusim.ops.npu_quant_matmul.messages import Outbox, places
from npusim.ops.npu_quant_matmul.tiling import Plan

FILLED, READ = 0, 1
"""Flags between a cube core and its vector cores: a block is in the workspace; it was read."""


def workspace_of(plan: Plan, index: int) -> GmView:
    """Block *index* of int32 `(base_m, base_n)` in the workspace, and the following ones."""
    rows = plan.cube.base_m * plan.workspace_blocks * plan.cube.cores
    blocks = GmView.of("workspace", INT32, rows, plan.cube.base_n)
    return blocks[index * plan.cube.base_m :, :]


def blocks_of(plan: Plan, pieces: Pieces) -> GmViews:
    """The locations of the sums of *pieces* in the blocks of their group in the workspace."""
    place, _ = places(plan, pieces)
    row = place * plan.cube.base_m + pieces.inside
    return GmViews.of(workspace_of(plan, 0), row, 0, pieces.rows, pieces.columns)


class Epilogue:
    """The kernel of a vector core that finishes the sums of a cube core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.p, self.plan = p, plan
        self.core = core = VectorCore("npu_quant_matmul", spec)
        assert p.scale is not None
        has_token = p.pertoken_scale is not None
        self.is_opt = plan.template == "tbe_opt" and has_token
        self.late = p.bias if p.start is None else None
        """A bias that is added here, after the scales."""
        # Rows of a block that this core processes.
        max_rows = ceil_div(plan.cube.base_m, plan.vector_cores)
        width = align_up(plan.cube.base_n, REPEAT)
        self.scale = QuantParameter(core, p.scale, width, by_rows=True)
        self.widened = core.tile(FLOAT32, width)
        if self.late is not None:
            self.bias = QuantParameter(core, self.late, width, by_rows=True)
        if has_token:
            padded = align_up(max_rows, 8)
            self.token = core.vecin(FLOAT32, padded)
            self.token_blocks = core.tile(FLOAT32, 8 * padded)
        self.outbox = Outbox(core) if plan.is_driven else None
        if self.is_opt:
            self.factors = core.claim("ub", FLOAT32.nbytes(max_rows * width))
        # float32 planes: scaled sums, the result, the row scales.
        planes = 1 if self.is_opt else 1 + (has_token or self.late is not None) + has_token
        # Sums and results are double buffered.
        out = p.output.element
        row_bytes = width * (2 * INT32.bits + 2 * out.bits + planes * FLOAT32.bits) // 8
        fitting = core.room_bytes("ub") // row_bytes
        self.step = max(1, min(fitting, plan.epilogue_rows))
        count = self.step * width
        self.sums = core.vecin(INT32, count, depth=2)
        self.results = core.vecout(out, count, depth=2)
        self.planes = [core.claim("ub", FLOAT32.nbytes(count)) for _ in range(planes)]

    def steps(self, pieces: Pieces) -> CoreSteps:
        """Let each vector core of a group finish half of the rows, or the first one all of them."""
        p, product = self.p, self.p.product
        halves = pieces.halved(pieces.rows // 2 if self.plan.vector_cores == 2 else pieces.rows)
        token = None
        if p.pertoken_scale is not None:
            scales = GmView.vector("pertoken_scale", FLOAT32, product.m)
            token = GmViews.of(scales, 0, halves.row, 1, halves.rows)
        arguments = (
            blocks_of(self.plan, halves),
            output_of(product, halves, p.output.element),
            token,
            columns_of(product, halves, None if p.has_one_scale else p.scale),
            columns_of(product, halves, self.late),
        )
        stage = self._block_of_opt if self.is_opt else self._block
        steps = [Step(stage, arguments, halves.core, np.arange(halves.core.size))]
        if self.outbox is not None:
            _, begins = places(self.plan, halves)
            steps.insert(0, self.outbox.send_step(halves, begins))
        begin = self._begin if p.has_one_scale or self.outbox is not None else None
        return CoreSteps(self.core, tuple(steps), begin)

    def _begin(self) -> None:
        """Load a single scale of all columns into a register, and fill the buffer of messages."""
        p = self.p
        assert p.scale is not None
        if p.has_one_scale:
            self.scale.take_number("scale")
            self.scale.drop()
        if self.outbox is not None:
            self.outbox.prepare()

    def _block(
        self,
        sums: GmView,
        output: GmView,
        token: GmView | None,
        scale: GmView | None,
        bias: GmView | None,
    ) -> None:
        """Compute *output* `(rows, columns)` from int32 *sums*; half of one row may be empty."""
        self.core.cross_core_wait_flag("group", "mte2", FILLED)
        for row, count in row_pieces(output.rows, self.step):
            rows = slice(row, row + count)
            own = None if token is None else token[:, rows]
            self._rows(sums[rows, :], output[rows, :], own, scale, bias)
        if not self.plan.is_driven:
            self.core.cross_core_set_flag("group", "mte2", READ)

    def _rows(
        self,
        sums: GmView,
        output: GmView,
        token: GmView | None,
        scale: GmView | None,
        bias: GmView | None,
    ) -> None:
        """Compute rows of a block, *output* `(count, columns)`; *token* is `(count,)`."""
        core, shape = self.core, (output.rows, align_up(output.columns, REPEAT))
        loaded = core.load_rows(self.sums, sums, pitch=shape[1])
        late = None if bias is None else self.bias.take(bias)
        factors = None if scale is None else self._widen(scale)
        plane = Plane(self.planes[0], *shape)
        # (count, columns_padded), int32 -> float32
        core.cast(plane.whole(), loaded[: shape[0] * shape[1]], "none")
        self._multiply(plane, factors)
        self.sums.free(loaded)
        if len(self.planes) > 1:
            scaled, plane = plane, Plane(self.planes[1], *shape)
            core.mul(plane.whole(), scaled.whole(), 1.0)
        if token is not None:
            tokens = self._spread(token, Plane(self.planes[2], *shape))
            core.mul(plane.whole(), plane.whole(), tokens.whole())
        self._finish(plane, output, late)
        if late is not None:
            self.bias.drop()

    def _block_of_opt(
        self,
        sums: GmView,
        output: GmView,
        token: GmView | None,
        scale: GmView | None,
        bias: GmView | None,
    ) -> None:
        """The same in tbe_opt with row scales."""
        core, width = self.core, align_up(output.columns, REPEAT)
        late = factors = None
        if token is not None and output.rows:
            late = None if bias is None else self.bias.take(bias)
            spread = self._spread(token, Plane(self.factors, token.columns, width))
            factors = None if scale is None else self._widen(scale)
            with core.independent():
                for row in range(spread.rows):
                    here = spread.row(row, output.columns)
                    core.mul(here, here, 1.0)
        core.cross_core_wait_flag("group", "mte2", FILLED)
        for row, count in row_pieces(output.rows, self.step):
            rows = slice(row, row + count)
            loaded = core.load_rows(self.sums, sums[rows, :], pitch=width)
            plane = Plane(self.planes[0], count, width)
            # (count, columns_padded), int32 -> float32
            core.cast(plane.whole(), loaded[: count * width], "none")
            self.sums.free(loaded)
            self._multiply(plane, factors)
            tokens = Plane(self.factors, count, width, FLOAT32.nbytes(row * width))
            core.mul(plane.whole(), plane.whole(), tokens.whole())
            self._finish(plane, output[rows, :], late)
        if late is not None:
            self.bias.drop()
        core.cross_core_set_flag("group", "mte2", READ)

    def _widen(self, scale: GmView) -> Local:
        """The column scales as float32: cast, or multiplied by 1."""
        factors = self.scale.take(scale)
        if scale.dtype is FLOAT32:
            widened = self.widened[: scale.columns]
            self.core.mul(widened, factors, 1.0)
            factors = widened
        self.scale.drop()
        return factors

    def _multiply(self, plane: Plane, factors: Local | None) -> None:
        """Multiply *plane* by the column scales, or by the single one in register "scale"."""
        if factors is not None:
            by_row(self.core, "mul", plane, factors)
        else:
            self.core.mul(plane.whole(), plane.whole(), "scale")

    def _spread(self, token: GmView, plane: Plane) -> Plane:
        """Load *token* `(rows,)` and fill each row of *plane* with its element."""
        core, count = self.core, align_up(token.columns, 8)
        loaded = core.load_rows(self.token, token)
        blocks = self.token_blocks[: 8 * count]
        # (rows,) -> (rows, 8) -> (rows, columns)
        spread_rows(core, blocks, loaded[:count])
        self.token.free(loaded)
        with core.independent():
            for index in plane.pieces:
                core.copy(plane.piece(index), plane.blocks_piece(blocks, index, 1))
        return plane

    def _finish(self, plane: Plane, output: GmView, late: Local | None) -> None:
        """Add the bias *late*, row by row, and store *plane* as *output*."""
        core = self.core
        if late is not None:
            with core.independent():
                for row in range(plane.rows):
                    here = plane.row(row, output.columns)
                    core.add(here, here, late)
        result = self.results.alloc()
        # (count, columns_padded) fp32 -> the output's type, ties to even
        core.cast(result[: plane.rows * plane.columns], plane.whole(), "rint")
        core.store_rows(self.results, result, output, pitch=plane.columns)
