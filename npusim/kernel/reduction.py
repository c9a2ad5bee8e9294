"""ReduceMax and ReduceMin over a vector, without the index.

Each takes several instructions, and the scalar unit copies the result: asc-devkit, impl/basic_api/
dav_c220/kernel_operator_vec_reduce_impl.h. Partial results alternate values and indices, so the
second instruction has up to twice the repeats.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32
from npusim.isa import FLOATS_PER_REPEAT, Local
from npusim.isa.reductions import ExtremeOp
from npusim.kernel.vector_core import VectorCore

__all__ = ["Reduction"]

__kernel_vocabulary__ = True


class Reduction:
    """Three instructions and a scalar round trip; three more if the elements fill no repeat."""

    def __init__(self, core: VectorCore, columns: int) -> None:
        self.core = core
        self.partial = core.tile(FLOAT32, max(1, columns // FLOATS_PER_REPEAT))

    def find_largest(self, result: Local, values: Local) -> None:
        """Write the largest of *values* `(width,)` to the first of two elements of *result*."""
        self.find("max", result, values)

    def find(self, op: ExtremeOp, result: Local, values: Local) -> None:
        """Write the smallest or largest of *values* `(width,)` to the first of two of *result*."""
        core, first, second = self.core, result[:1], result[1:2]
        repeats, left = divmod(values.count, FLOATS_PER_REPEAT)
        whole = repeats * FLOATS_PER_REPEAT
        if repeats > 1:
            # (repeats x 64,) -> (repeats,) -> (1,)
            partial = self.partial[:repeats]
            core.whole_reduce(op, partial, values[:whole])
            core.reduce(op, partial[:1], partial)
            self._last_step(op, first, partial[:1])
        else:
            self._last_step(op, first, values[: min(FLOATS_PER_REPEAT, values.count)])
        if repeats and left:
            core.get_value("whole", first)
            self._last_step(op, first, values[whole:])
            core.get_value("rest", first)
            core.set_value(first, "whole")
            core.set_value(second, "rest")
            core.sync("scalar", "vector")
            self._last_step(op, first, result[:2])

    def _last_step(self, op: ExtremeOp, result: Local, values: Local) -> None:
        """Write the smallest or largest of one repeat to *result*, by the scalar unit."""
        core, partial = self.core, self.partial[:1]
        core.whole_reduce(op, partial, values)
        core.sync("vector", "scalar")
        core.get_value("found", partial)
        core.set_value(result, "found")
        core.sync("scalar", "vector")
