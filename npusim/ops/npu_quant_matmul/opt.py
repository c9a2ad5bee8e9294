"""The epilogue of tbe_opt with scales of rows: what sums are multiplied by is ready before them.

`f32(sum) x (scale x pertoken) + bias`: here the scales of rows and columns are multiplied first, so
results may differ from those of the other templates in the last place. While the cube multiplies,
the vector core makes a plane of these products for all of a block; then each piece of sums takes
three passes. Vector core 0 of a group does all of it (ops-nn@e5c3fa9 matmul/quant_batch_matmul_v3/
op_kernel, *_pertoken_opt.h). That vector core 1 answers the cube core's flags is assumed.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32, INT32
from npusim.data.integers import align_up
from npusim.isa import Binary, Cast
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
        late = None
        if token is not None and output.rows:
            late = None if bias is None else self.bias.take(bias)
            self._multiply_scales(token, scale, width)
        builder.cross_core_wait_flag("group", "mte2", FILLED)
        for row, count in row_pieces(output.rows, self.step):
            rows = slice(row, row + count)
            slot = load(builder, self.sums, sums[rows, :], pitch=width)
            # (count, columns_padded), int32 -> float32
            plane = Plane(self.planes[0], count, width)
            step(builder, Cast(plane.whole(), slot.of(INT32, count * width), "none"))
            self.sums.free(slot)
            factors = Plane(self.factors, count, width, FLOAT32.nbytes(row * width))
            step(builder, Binary("mul", plane.whole(), plane.whole(), factors.whole()))
            self._finish(plane, output[rows, :], late)
        if late is not None:
            self.bias.drop()
        builder.cross_core_set_flag("group", "mte2", READ)

    def _multiply_scales(self, token: GmView, scale: GmView | None, width: int) -> None:
        """Fill the plane with `token x scale`, row by row."""
        numbers = None if scale is None else self.scale.take(scale)
        plane = self._spread(token, Plane(self.factors, token.columns, width))
        if numbers is None:
            self._scale(plane, None)
            return
        for row in range(plane.rows):
            here = plane.row(row, numbers.count)
            self.builder.emit(Binary("mul", here, here, numbers))
        self.builder.barrier("vector")
        self.scale.drop()
