"""What the msd kernels know of each column: its scale, its offset and its bias."""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_up
from npusim.isa import BLOCK_BYTES, Cast, Copy, Global, Local
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem

__all__ = ["Columns"]


class Columns:
    """Scale, offset and bias of up to *most* columns, as float32 in the unified buffer."""

    def __init__(self, builder: Builder, p: Problem, most: int) -> None:
        """Claim room; *most* is a multiple of 64."""
        self._builder = builder
        given = (p.antiquant_scale, p.antiquant_offset, p.bias)
        self._operands = {operand.name: operand for operand in given if operand is not None}
        nbytes = sum(
            align_up(operand.element.nbytes(most), BLOCK_BYTES)
            for operand in self._operands.values()
        )
        self._queue = builder.queue("ub", nbytes, "mte2", "vector")
        self._wide = {name: builder.claim("ub", FLOAT32.nbytes(most)) for name in self._operands}

    def shifts(self, column: int) -> dict[str, int]:
        """Bytes to *column* in each of them."""
        return {name: x.element.nbytes(column) for name, x in self._operands.items()}

    def take(self, count: int) -> dict[str, Local]:
        """Bring those of *count* columns; name -> float32."""
        builder = self._builder
        slot = self._queue.alloc()
        raw: dict[str, Local] = {}
        start = 0
        for name, operand in self._operands.items():
            raw[name] = slot.of(operand.element, count, start)
            builder.load(raw[name], Global(name, 0, operand.element.nbytes(count)))
            start += align_up(operand.element.nbytes(count), BLOCK_BYTES)
        self._queue.enque(slot)
        slot = self._queue.deque()
        wide = {name: place.of(FLOAT32, count) for name, place in self._wide.items()}
        for name, numbers in wide.items():
            is_wide = raw[name].dtype is FLOAT32
            op = Copy(numbers, raw[name]) if is_wide else Cast(numbers, raw[name], "none")
            step(builder, op)
        self._queue.free(slot)
        return wide
