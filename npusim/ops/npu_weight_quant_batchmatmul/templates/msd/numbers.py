"""Numbers of rows of x and of columns for the msd kernels with a scale for each column."""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_up
from npusim.isa import BLOCK_BYTES, Cast, Copy, Local
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.views import GmView, load
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.traits import CallTraits

__all__ = ["ColumnParameters", "absmax_view", "sums_view"]


def absmax_view(f: CallTraits, k_blocks: int = 1) -> GmView:
    """The largest magnitude of each row of each block of k, `(blocks, m)`, in a workspace."""
    return GmView.of("most", FLOAT32, k_blocks, f.m)


def sums_view(f: CallTraits, k_blocks: int = 1) -> GmView:
    """The sum of each row of each block of k, `(blocks, m)`, in a workspace."""
    return GmView.of("sums", FLOAT32, k_blocks, f.m)


class ColumnParameters:
    """Scale, offset and bias of some columns, as float32 in the unified buffer."""

    def __init__(self, builder: Builder, p: Problem, max_columns: int) -> None:
        """Claim room for *max_columns*, a multiple of 64."""
        self._builder = builder
        operands = (p.antiquant_scale, p.antiquant_offset, p.bias)
        self._views = [
            GmView.vector(x.name, x.element, p.traits.n) for x in operands if x is not None
        ]
        raw_bytes = sum(
            align_up(view.dtype.nbytes(max_columns), BLOCK_BYTES) for view in self._views
        )
        self._raw = builder.queue("ub", raw_bytes, "mte2", "vector")
        self._floats = [builder.claim("ub", FLOAT32.nbytes(max_columns)) for _ in self._views]

    def views(self, columns: slice) -> tuple[GmView, ...]:
        """Those of *columns* in global memory."""
        return tuple(view[:, columns] for view in self._views)

    def load(self, *views: GmView) -> None:
        """Load *views* `(columns,)`, which `of` names afterwards."""
        slot, start_bytes = load(self._builder, self._raw, *views), 0
        for view, numbers in zip(views, self.of(views[0].columns).values(), strict=True):
            raw = slot.of(view.dtype, view.columns, start_bytes)
            is_float32 = view.dtype is FLOAT32
            step(self._builder, Copy(numbers, raw) if is_float32 else Cast(numbers, raw, "none"))
            start_bytes += align_up(view.row_bytes, BLOCK_BYTES)
        self._raw.free(slot)

    def of(self, columns: int) -> dict[str, Local]:
        """Name -> the first *columns* of what was loaded, float32."""
        return {
            view.name: floats.of(FLOAT32, columns)
            for view, floats in zip(self._views, self._floats, strict=True)
        }
