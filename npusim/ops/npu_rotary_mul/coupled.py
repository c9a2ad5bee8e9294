"""The program that each AI core of 310P runs for npu_rotary_mul: the kernel RotaryMul.

leideng/CANN-8.1.RC1@551ed27 tbe/impl/dynamic/rotary_mul.py, for float16 and float32, in their own
type. Its buffers are single, and its compiler sets the flags. Assumed: that it sets the flags which
the buffers need and no others, that a single line for all vectors is a separate mode, which repeats
the line in the buffer, and that lines of S11D are loaded like those of 1S1D.
"""

from __future__ import annotations

from npusim.kernel import GmView, VectorCore
from npusim.ops._rotary import exchange, negate_left
from npusim.ops.npu_rotary_mul.check import CoupledPlan, Problem


class CoupledHalves:
    """The buffers of a core and its stages: a vector is `(width,)`, a multiple of 64."""

    def __init__(self, core: VectorCore, p: Problem, plan: CoupledPlan) -> None:
        self.core, self.width, dtype = core, p.width, p.x.element
        count = plan.line_step * p.width
        self.cos, self.sin = core.tile(dtype, count), core.tile(dtype, count)
        self.x, self.turned = core.tile(dtype, count), core.tile(dtype, count)
        self.lines = [core.tile(dtype, p.width) for _ in range(2)] if p.axes.is_single else None
        """The buffers into which the single line for all vectors is loaded."""

    def take(self, count: int, cos: GmView, sin: GmView) -> None:
        """Load *cos* and *sin*, for each of *count* lines or one for all, and negate the sines."""
        core, total = self.core, count * self.width
        if self.lines is None:
            for tile, view in ((self.cos, cos), (self.sin, sin)):
                core.fill(tile[:total], view)
            core.sync("mte2", "vector")
        else:
            for tile, view in zip(self.lines, (cos, sin), strict=True):
                core.data_copy(tile, view.operand)
            core.sync("mte2", "vector")
            with core.independent():
                for start in range(0, total, self.width):
                    for tile, line in zip((self.cos, self.sin), self.lines, strict=True):
                        core.copy(tile.at(start, self.width), line)
        negate_left(core, self.sin[:total], self.width)

    def head(self, x: GmView, output: GmView) -> None:
        """Rotate *x* `(count, width)` to *output*."""
        core, total, width = self.core, x.rows * self.width, self.width
        values, turned = self.x[:total], self.turned[:total]
        core.fetch(values, x)
        exchange(core, turned, values, width)
        core.mul(values, values, self.cos[:total])
        core.mul(turned, turned, self.sin[:total])
        core.add(values, values, turned)
        core.sync("vector", "mte3")
        is_one_run = output.rows == 1 or output.pitch == width
        to, pitch_bytes = (output.flat, 0) if is_one_run else (output, output.row_bytes)
        core.data_copy(to.operand, values, pitch_bytes)
        # The next vectors are loaded to where these are stored from.
        core.sync("mte3", "mte2")

    def drop(self) -> None:
        """Let the next cosines and sines wait until all heads with these are rotated."""
        self.core.sync("vector", "mte2")
