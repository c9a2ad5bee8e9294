"""ReduceMax and ReduceMin of a number of elements, without their index.

Each is several instructions, and the scalar unit copies the result: asc-devkit, impl/basic_api/
dav_c220/kernel_operator_vec_reduce_impl.h. Indices lie between the values there, so that the second
instruction has up to twice the repeats.
"""

from __future__ import annotations

from typing import Literal

from npusim.data.dtypes import FLOAT32
from npusim.isa import FLOATS_PER_REPEAT, Local, Reduce, ScalarLoad, ScalarStore, WholeReduce
from npusim.kernel.builder import Builder, step
from npusim.kernel.queues import Slot

__all__ = ["Reduction"]

__kernel_vocabulary__ = True


class Reduction:
    """Three instructions and a scalar trip; three more trips where elements fill no repeat."""

    def __init__(self, builder: Builder, columns: int) -> None:
        self.builder = builder
        self.partial = builder.claim("ub", FLOAT32.nbytes(max(1, columns // FLOATS_PER_REPEAT)))

    def find_largest(self, result: Local | Slot, values: Local) -> None:
        """The largest of *values* `(width,)` to the first of two elements of *result*."""
        self.find("max", result, values)

    def find(self, op: Literal["min", "max"], result: Local | Slot, values: Local) -> None:
        """The smallest or largest of *values* `(width,)` to the first of two of *result*."""
        builder = self.builder
        pair = result[:2] if isinstance(result, Local) else result.of(FLOAT32, 2)
        first, second = pair[:1], pair[1:]
        repeats, left = divmod(values.count, FLOATS_PER_REPEAT)
        if repeats > 1:
            # (repeats x 64,) -> (repeats,) -> (1,)
            partial = self.partial.of(FLOAT32, repeats)
            step(builder, WholeReduce(op, partial, values.at(0, repeats * FLOATS_PER_REPEAT)))
            step(builder, Reduce(op, partial.at(0, 1), partial))
            self._last_step(op, first, partial.at(0, 1))
        else:
            self._last_step(op, first, values.at(0, min(FLOATS_PER_REPEAT, values.count)))
        if repeats and left:
            builder.emit(ScalarLoad("whole", first))
            self._last_step(op, first, values.at(repeats * FLOATS_PER_REPEAT, left))
            builder.emit(
                ScalarLoad("rest", first), ScalarStore(first, "whole"), ScalarStore(second, "rest")
            )
            builder.sync("scalar", "vector")
            self._last_step(op, first, pair)

    def _last_step(self, op: Literal["min", "max"], result: Local, values: Local) -> None:
        """The smallest or largest of one repeat to *result*, by way of the scalar unit."""
        builder, partial = self.builder, self.partial.of(FLOAT32, 1)
        step(builder, WholeReduce(op, partial, values))
        builder.sync("vector", "scalar")
        builder.emit(ScalarLoad("found", partial), ScalarStore(result, "found"))
        builder.sync("scalar", "vector")
