"""The epilogue of tbe_opt with scales of rows: a plane of these is ready before the sums are.

`(f32(sum) x scale) x pertoken + bias`, as in the other templates. While the cube multiplies, the
vector core fills a plane with the scales of the rows of a block, and multiplies it row by row; then
each piece of sums takes a pass for every step. The vendor's kernel is told to multiply that plane
by the scales of the columns, and so to save one pass of four; its golden values have the order
above, which is kept: here the rows are multiplied by 1, which takes as long.
Vector core 0 of a group does all of it (ops-nn@e5c3fa9 matmul/quant_batch_matmul_v3/op_kernel,
*_pertoken_opt.h). That vector core 1 answers the cube core's flags is assumed.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32, INT32
from npusim.data.integers import align_up
from npusim.isa import Binary, BinaryScalar, Cast
from npusim.kernel.chain import step
from npusim.kernel.plane import REPEAT, Plane
from npusim.kernel.rows import pieces as row_pieces
from npusim.kernel.views import GmView, load
from npusim.ops.npu_quant_matmul.epilogue import FILLED, READ, Epilogue

__all__ = ["OptEpilogue"]


class OptEpilogue(Epilogue):
    """The kernel of a vector core beside a cube core that never waits within a row of blocks."""

    def _claim_more(self, width: int) -> None:
        self.factors = self.builder.claim("ub", FLOAT32.nbytes(self._max_rows() * width))

    def _planes(self) -> int:
        return 1

    def _block(
        self,
        sums: GmView,
        output: GmView,
        token: GmView | None,
        scale: GmView | None,
        bias: GmView | None,
    ) -> None:
        builder, width = self.builder, align_up(output.columns, REPEAT)
        late = numbers = None
        if token is not None and output.rows:
            late = None if bias is None else self.bias.take(bias)
            spread = self._spread(token, Plane(self.factors, token.columns, width))
            numbers = None if scale is None else self._widen(scale)
            for row in range(spread.rows):
                here = spread.row(row, output.columns)
                builder.emit(BinaryScalar("mul", here, here, 1.0))
            builder.barrier("vector")
        builder.cross_core_wait_flag("group", "mte2", FILLED)
        for row, count in row_pieces(output.rows, self.step):
            rows = slice(row, row + count)
            slot = load(builder, self.sums, sums[rows, :], pitch=width)
            # (count, columns_padded), int32 -> float32
            plane = Plane(self.planes[0], count, width)
            step(builder, Cast(plane.whole(), slot.of(INT32, count * width), "none"))
            self.sums.free(slot)
            self._scale(plane, numbers)
            factors = Plane(self.factors, count, width, FLOAT32.nbytes(row * width))
            step(builder, Binary("mul", plane.whole(), plane.whole(), factors.whole()))
            self._finish(plane, output[rows, :], late)
        if late is not None:
            self.bias.drop()
        builder.cross_core_set_flag("group", "mte2", READ)
