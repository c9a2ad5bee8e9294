"""What the kernels of npu_add_rms_norm_dynamic_quant have in common.

ops-nn@e5c3fa9 norm/add_rms_norm_dynamic_quant/op_kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.data.dtypes import FLOAT32
from npusim.devices.schema import DeviceSpec
from npusim.isa import (
    BLOCK_BYTES,
    Binary,
    BinaryScalar,
    Local,
    Register,
    ScalarAlu,
    ScalarLoad,
    ScalarStore,
    Unary,
    WholeReduce,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.queues import Slot
from npusim.kernel.views import GmView
from npusim.ops._rms_norm.steps import float_bits, root_by_scalar, widen
from npusim.ops._rms_norm.sums import halve_into
from npusim.ops.npu_add_rms_norm_dynamic_quant.choice import padded
from npusim.ops.npu_add_rms_norm_dynamic_quant.contract import Problem
from npusim.ops.npu_add_rms_norm_dynamic_quant.tiling import Plan
from npusim.ops.npu_dynamic_quant.row_steps import fold

__all__ = ["Output", "QuantKernel", "outputs_of", "vector_of", "views_of"]


@dataclass(frozen=True, slots=True)
class Output:
    """One of the two quantised outputs that a kernel computes."""

    number: int
    """1 or 2."""
    smooth: str | None
    """Its smooth scales in global memory."""
    is_stored: bool


def outputs_of(p: Problem, *, all_without_mask: bool) -> tuple[Output, ...]:
    """The outputs that are computed: the second without a mask, too, if *all_without_mask*."""
    found = []
    for number, (is_taken, smooth) in enumerate(zip(p.taken, p.smooth, strict=True), 1):
        if is_taken or (all_without_mask and not p.is_masked):
            found.append(Output(number, smooth.name if smooth else None, is_taken))
    return tuple(found)


def vector_of(p: Problem, name: str) -> GmView:
    """gamma, beta or smooth scales in global memory, `(columns,)`."""
    return GmView.vector(name, p.x.element, p.columns)


def views_of(p: Problem) -> dict[str, GmView]:
    """What is cut by rows: x1, x2, x and the outputs `(rows, columns)`, the scales `(rows,)`."""
    views = {name: GmView.of(name, p.x.element, p.rows, p.columns) for name in ("x1", "x2", "x")}
    for output in outputs_of(p, all_without_mask=False):
        name = "output" if output.number == 1 else "y2"
        views[name] = GmView.of(name, p.target, p.rows, p.columns)
        scale = f"scale{output.number}"
        views[scale] = GmView.vector(scale, FLOAT32, p.rows)
    return views


class QuantKernel:
    """The program of a core, and steps that a row takes."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p, self.plan = spec, p, plan
        name = "npu_add_rms_norm_dynamic_quant"
        self.builder = Builder(name, spec.cores[spec.vector_kinds[0]], spec.sync)
        self.pitch = padded(plan.column_step, is_int4=p.is_int4)
        """Columns from row to row in the buffer."""
        self.absmax = self.builder.claim("ub", BLOCK_BYTES)
        self.total = self.builder.claim("ub", BLOCK_BYTES)
        self.names = tuple(views_of(p))

    def named(self, views: tuple[GmView, ...]) -> dict[str, GmView]:
        """The views of a group by name."""
        return dict(zip(self.names, views, strict=True))

    def add(self, values: Local, addends: tuple[Local, Local], work: Local) -> None:
        """The fp32 sum of *addends* to *values*."""
        widen(self.builder, values, addends[0])
        widen(self.builder, work, addends[1])
        step(self.builder, Binary("add", values, values, work))

    def find_root(self, squares: Local) -> None:
        """1 / root of a row into register `root`; *squares* `(columns,)` is overwritten."""
        total = self.total.of(FLOAT32, 1)
        halve_into(self.builder, total, squares)
        root_by_scalar(self.builder, "root", total, self.p.mean, self.p.epsilon)

    def smoothed(self, dst: Local, values: Local, smooth: Local | None) -> None:
        """*values* times fp32 *smooth*, or times 1.0, to *dst*."""
        if smooth is None:
            step(self.builder, BinaryScalar("mul", dst, values, 1.0))
        else:
            step(self.builder, Binary("mul", dst, values, smooth))

    def take_absmax(self, magnitudes: Local, register: Register) -> None:
        """The largest of *magnitudes* `(columns,)`, overwritten, into *register*."""
        absmax = self.absmax.of(FLOAT32, 1)
        step(self.builder, WholeReduce("max", absmax, fold(self.builder, magnitudes)))
        self.builder.sync("vector", "scalar")
        self.builder.emit(ScalarLoad(register, absmax))

    def divide(self, absmax: Register, scales: Slot, row: int) -> None:
        """127 / M into register `factor`, 1 / (127 / M) to element *row* of *scales*."""
        self.builder.emit(
            ScalarAlu("f32_div", "factor", float_bits(self.p.largest), absmax),
            ScalarAlu("f32_div", "scale", float_bits(1), "factor"),
            ScalarStore(scales.of(FLOAT32, 1, FLOAT32.nbytes(row)), "scale"),
        )
        self.builder.sync("scalar", "vector")

    def magnitudes(self, dst: Local, values: Local) -> None:
        """*values* without their signs."""
        step(self.builder, Unary("abs", dst, values))
