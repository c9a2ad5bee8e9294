"""From int32 sums to the output on vector cores: float scales, scales a row, a bias, one rounding.

`((f32(sum) x scale) x pertoken) + bias`, each step rounded to float32, the result to the output's
type, ties to even. Each of the two vector cores of a group takes half of the rows of a block, or
the first one all of them, some at a time, and goes through them as often as the vendor's kernel
does (ops-nn@e5c3fa9 matmul/quant_batch_matmul_v3/op_kernel, *_basic_epilogue.h and *_bf16_basic.h;
asc-devkit, ascend_dequant_common_impl.h). For every piece scales and bias are loaded and widened
anew; then

=========================  ======================================================================
Cast                       the sums, int32 to float32
Mul, Muls                  by the scales of the columns, 64 columns of all rows at a time
Muls 1                     into the plane of the result; only if a pass follows that is no Cast
Brcb, Copy                 the scales of the rows become a plane of their own
Mul                        plane by plane
Add                        the bias, row by row
Cast                       to the output's type
=========================  ======================================================================

The vendor's kernel adds 0 where Muls 1 stands, and where float32 scales of columns are widened; the
multiplication takes as long, and keeps the sign of a zero, as the operator's documents say of the
whole. That a bias alone needs the plane of the result too is assumed, as is that one scale for all
columns goes the same way.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32, INT32
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import Binary, BinaryScalar, Cast, Copy, Local
from npusim.kernel.blocks import columns_of, output_of
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.columns import ColumnVector
from npusim.kernel.plane import REPEAT, Plane, by_row, spread_rows
from npusim.kernel.program import Program
from npusim.kernel.rows import pieces as row_pieces
from npusim.kernel.tiles import Piece
from npusim.kernel.views import GmView, load, repeat, store
from npusim.ops.npu_quant_matmul.contract import Problem
from npusim.ops.npu_quant_matmul.messages import Outbox, rectangles
from npusim.ops.npu_quant_matmul.tiling import Plan

__all__ = ["FILLED", "READ", "Epilogue", "workspace_of"]

FILLED, READ = 0, 1
"""Flags between a cube core and its vector cores: a block is in the workspace; it was read."""


def workspace_of(plan: Plan, index: int) -> GmView:
    """Block number *index* of int32 `(base_m, base_n)` in the workspace, and those behind it."""
    rows = plan.cube.base_m * plan.workspace_blocks * plan.cube.cores
    blocks = GmView.of("workspace", INT32, rows, plan.cube.base_n)
    return blocks[index * plan.cube.base_m :, :]


class Epilogue:
    """The kernel of a vector core beside a cube core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.p, self.plan = p, plan
        self.builder = Builder("npu_quant_matmul", spec.cores["aiv"], spec.sync)
        assert p.scale is not None
        queue, claim = self.builder.queue, self.builder.claim
        width = align_up(plan.cube.base_n, REPEAT)
        self.scale = ColumnVector.claim(self.builder, p.scale.element, width)
        self.widened = claim("ub", FLOAT32.nbytes(width))
        self.late = p.bias if p.start is None else None
        """A bias that is added here, after the scales."""
        if self.late is not None:
            self.bias = ColumnVector.claim(self.builder, self.late.element, width)
        if p.pertoken_scale is not None:
            max_rows = align_up(self._max_rows(), 8)
            self.token = queue("ub", FLOAT32.nbytes(max_rows), "mte2", "vector")
            self.token_blocks = claim("ub", FLOAT32.nbytes(8 * max_rows))
        self.outbox = Outbox(self.builder) if plan.is_driven else None
        self._claim_more(width)
        out, planes = p.output.element, self._planes()
        # Sums and results are double buffered.
        row_bytes = width * (2 * INT32.bits + 2 * out.bits + planes * FLOAT32.bits) // 8
        fitting = self.builder.room_bytes("ub") // row_bytes
        self.step = max(1, min(fitting, plan.epilogue_rows))
        count = self.step * width
        self.sums = queue("ub", INT32.nbytes(count), "mte2", "vector", 2)
        self.results = queue("ub", out.nbytes(count), "vector", "mte3", 2)
        self.planes = [claim("ub", FLOAT32.nbytes(count)) for _ in range(planes)]

    def _max_rows(self) -> int:
        """Rows of a block that this core has to do with."""
        return ceil_div(self.plan.cube.base_m, self.plan.vector_cores)

    def _claim_more(self, width: int) -> None:
        """Claim what a template needs for all rows of a block, each of *width* columns."""

    def _planes(self) -> int:
        """Planes of float32: of scaled sums, of the result, of the scales of the rows."""
        has_token = self.p.pertoken_scale is not None
        return 1 + (has_token or self.late is not None) + has_token

    def program(self, pieces: tuple[Piece, ...], half: int) -> Program:
        """Finish *pieces*, of each the first or the second *half* of the rows."""
        p = self.p
        assert p.scale is not None
        if p.scale.spec.size == 1:
            self.scale.take_number(GmView.vector("scale", p.scale.element, 1), "scale")
            self.scale.drop()
        if self.outbox is not None:
            self.outbox.prepare()
        for rectangle in rectangles(self.plan, pieces):
            if self.outbox is not None:
                self.outbox.send(half)
            for index, piece in enumerate(rectangle):
                self._piece(index % self.plan.workspace_blocks, piece, half)
        return self.builder.build()

    def _piece(self, place: int, piece: Piece, half: int) -> None:
        """Finish the rows of *half* of *piece*, which is at *place* in the workspace."""
        p, own = self.p, self._own(piece, half)
        assert p.scale is not None
        repeat(
            self.builder,
            self._block,
            workspace_of(self.plan, place)[: piece.rows, : piece.columns][own, :],
            output_of(p.product, piece, p.output.element)[own, :],
            self._token_of(piece, own),
            None if p.scale.spec.size == 1 else columns_of(p.product, piece, p.scale),
            None if self.late is None else columns_of(p.product, piece, self.late),
        )

    def _own(self, piece: Piece, half: int) -> slice:
        """The rows of *piece* that vector core *half* finishes, which may be none."""
        upper = piece.rows // 2 if self.plan.vector_cores == 2 else piece.rows
        return slice(0, upper) if half == 0 else slice(upper, piece.rows)

    def _token_of(self, piece: Piece, own: slice) -> GmView | None:
        """The scales of those rows of *piece*."""
        if self.p.pertoken_scale is None:
            return None
        scales = GmView.vector("pertoken_scale", FLOAT32, self.p.product.m)
        return scales[:, piece.row : piece.row + piece.rows][:, own]

    def _block(
        self,
        sums: GmView,
        output: GmView,
        token: GmView | None,
        scale: GmView | None,
        bias: GmView | None,
    ) -> None:
        """Make *output* `(rows, columns)` of int32 *sums*; the half of a row may be none."""
        self.builder.cross_core_wait_flag("group", "mte2", FILLED)
        for row, count in row_pieces(output.rows, self.step):
            rows = slice(row, row + count)
            own = None if token is None else token[:, rows]
            self._rows(sums[rows, :], output[rows, :], own, scale, bias)
        if not self.plan.is_driven:
            self.builder.cross_core_set_flag("group", "mte2", READ)

    def _rows(
        self,
        sums: GmView,
        output: GmView,
        token: GmView | None,
        scale: GmView | None,
        bias: GmView | None,
    ) -> None:
        """Make some rows of a block, *output* `(count, columns)`; *token* is `(count,)`."""
        builder = self.builder
        shape = output.rows, align_up(output.columns, REPEAT)
        slot = load(builder, self.sums, sums, pitch=shape[1])
        late = None if bias is None else self.bias.take(bias)
        numbers = None if scale is None else self._widen(scale)
        # (count, columns_padded), int32 -> float32
        plane = Plane(self.planes[0], *shape)
        step(builder, Cast(plane.whole(), slot.of(INT32, shape[0] * shape[1]), "none"))
        self._scale(plane, numbers)
        self.sums.free(slot)
        if len(self.planes) > 1:
            scaled, plane = plane, Plane(self.planes[1], *shape)
            step(builder, BinaryScalar("mul", plane.whole(), scaled.whole(), 1.0))
        if token is not None:
            factors = self._spread(token, Plane(self.planes[2], *shape))
            step(builder, Binary("mul", plane.whole(), plane.whole(), factors.whole()))
        self._finish(plane, output, late)
        if late is not None:
            self.bias.drop()

    def _widen(self, scale: GmView) -> Local:
        """The scales of the columns as float32: cast, or multiplied by 1."""
        numbers = self.scale.take(scale)
        if scale.dtype is FLOAT32:
            widened = self.widened.of(FLOAT32, scale.columns)
            step(self.builder, BinaryScalar("mul", widened, numbers, 1.0))
            numbers = widened
        self.scale.drop()
        return numbers

    def _scale(self, plane: Plane, numbers: Local | None) -> None:
        """Multiply *plane* by the scales of the columns, or the one in the register "scale"."""
        if numbers is not None:
            by_row(self.builder, "mul", plane, numbers)
        else:
            step(self.builder, BinaryScalar("mul", plane.whole(), plane.whole(), "scale"))

    def _spread(self, token: GmView, plane: Plane) -> Plane:
        """Load *token* `(rows,)` and fill each row of *plane* with its number."""
        slot = load(self.builder, self.token, token)
        count = align_up(token.columns, 8)
        blocks = self.token_blocks.of(FLOAT32, 8 * count)
        # (rows,) -> (rows, 8) -> (rows, columns)
        spread_rows(self.builder, blocks, slot.of(FLOAT32, count))
        self.token.free(slot)
        for index in plane.pieces:
            self.builder.emit(Copy(plane.piece(index), plane.blocks_piece(blocks, index, 1)))
        self.builder.barrier("vector")
        return plane

    def _finish(self, plane: Plane, output: GmView, late: Local | None) -> None:
        """Add the bias *late*, row by row, and store *plane* as *output*."""
        builder, out = self.builder, output.dtype
        if late is not None:
            for row in range(plane.rows):
                here = plane.row(row, output.columns)
                builder.emit(Binary("add", here, here, late))
            builder.barrier("vector")
        result = self.results.alloc()
        # (count, columns_padded) fp32 -> the output's type, ties to even
        step(builder, Cast(result.of(out, plane.rows * plane.columns), plane.whole(), "rint"))
        store(builder, self.results, result, output, pitch=plane.columns)
