"""Outputs of groups along k that have nothing of it: vector cores fill them with zeros.

ops-transformer@c29bc10 gmm/grouped_matmul/op_kernel/grouped_matmul_vector.h. That the vector cores
take turns with the rows of such an output is assumed.
"""

from __future__ import annotations

from npusim.data.integers import align_down, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Duplicate
from npusim.kernel.builder import Builder
from npusim.kernel.program import Program
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, repeat
from npusim.ops.npu_grouped_matmul.operands import Operands
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.templates.plan import Part

__all__ = ["ZeroFill"]

BUFFER_BYTES = 32768
"""Zeros that are stored at a time (assumed)."""


class ZeroFill:
    """The kernel of a vector core."""

    def __init__(self, spec: DeviceSpec, p: Problem, cores: int) -> None:
        self.p, self.cores, self.operands = p, cores, Operands(p)
        self.builder = Builder("npu_grouped_matmul", spec.cores["aiv"], spec.sync)
        self.zeros = self.builder.claim("ub", BUFFER_BYTES)
        self.element = p.output.element

    def program(self, core: int) -> Program:
        """Fill the share of core number *core* of every group without k."""
        builder, count = self.builder, BUFFER_BYTES * 8 // self.element.bits
        builder.emit(Duplicate(self.zeros.of(self.element, count), 0))
        builder.sync("vector", "mte3")
        for group in self.p.groups:
            self.operands.read_entry(builder, group.index)
            step = ceil_div(group.m, self.cores)
            if group.k or core * step >= group.m:
                continue
            rows = min(step, group.m - core * step)
            whole = self.operands.output(Part(group, core * step, 0, rows, group.n))
            widest = align_down(count, BLOCK_BYTES)
            for row in range(rows):
                for column, columns in pieces(group.n, widest):
                    part = whole[row : row + 1, column : column + columns]
                    repeat(builder, self._store, part)
        return builder.build()

    def _store(self, part: GmView) -> None:
        self.builder.data_copy(part.operand, self.zeros.of(self.element, part.columns))
