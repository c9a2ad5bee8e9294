"""From float16 sums to float32, on a vector core; of two digits 16 hi + lo."""

from __future__ import annotations

from npusim.data.dtypes import FLOAT16, FLOAT32
from npusim.data.integers import align_up
from npusim.isa import Binary, BinaryScalar, Cast
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.plane import REPEAT, Plane
from npusim.kernel.views import GmView, load

__all__ = ["DigitSums", "HalfSums"]


class HalfSums:
    """Buffers for *rows* x *columns* of sums."""

    def __init__(self, builder: Builder, rows: int, columns: int) -> None:
        """Claim room; sums are loaded twice."""
        self._builder = builder
        count = rows * align_up(columns, REPEAT)
        self._loaded = builder.queue("ub", FLOAT16.nbytes(count), "mte2", "vector", 2)
        self._plane = builder.claim("ub", FLOAT32.nbytes(count))

    def take(self, sums: GmView) -> Plane:
        """*sums* `(rows, columns)` in fp32."""
        width = align_up(sums.columns, REPEAT)
        plane = Plane(self._plane, sums.rows, width)
        slot = load(self._builder, self._loaded, sums, pitch=width)
        step(self._builder, Cast(plane.whole(), slot.of(FLOAT16, sums.rows * width), "none"))
        self._loaded.free(slot)
        return plane


class DigitSums:
    """Buffers for *rows* x *columns* of both digits."""

    def __init__(self, builder: Builder, rows: int, columns: int) -> None:
        """Claim room; sums are loaded twice."""
        self._builder = builder
        count = rows * align_up(columns, REPEAT)
        self._high = builder.queue("ub", FLOAT16.nbytes(count), "mte2", "vector", 2)
        self._low = builder.queue("ub", FLOAT16.nbytes(count), "mte2", "vector", 2)
        self._plane = builder.claim("ub", FLOAT32.nbytes(count))
        self._work = builder.claim("ub", FLOAT32.nbytes(count))

    def work_like(self, plane: Plane) -> Plane:
        """A plane of that size that nothing is kept in."""
        return Plane(self._work, plane.rows, plane.columns)

    def take(self, sums: GmView) -> Plane:
        """`f32(lo) + f32(hi) * 16` of *sums* `(2 rows, columns)`, high digits in even rows."""
        builder, rows = self._builder, sums.rows // 2
        # A row of both: (rows, 2 x pitch), of which the first columns are high digits.
        pitch = sums.pitch
        whole = GmView(sums.name, sums.dtype, rows, 2 * pitch, 2 * pitch, sums.offset_bytes)
        width = align_up(sums.columns, REPEAT)
        plane, work = (Plane(slot, rows, width) for slot in (self._plane, self._work))
        halves = (self._high, plane, 0), (self._low, work, pitch)
        for queue, target, first in halves:
            slot = load(builder, queue, whole[:, first : first + sums.columns], pitch=width)
            step(builder, Cast(target.whole(), slot.of(FLOAT16, rows * width), "none"))
            queue.free(slot)
        step(builder, BinaryScalar("mul", plane.whole(), plane.whole(), 16.0))
        step(builder, Binary("add", plane.whole(), work.whole(), plane.whole()))
        return plane
