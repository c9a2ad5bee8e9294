"""A call of npu_add_rms_norm_quant, and the steps shared by its templates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from npusim.data.tensor import Operand
from npusim.isa import ScalarLoadGlobal
from npusim.kernel import (
    BFLOAT16,
    FLOAT16,
    INT8,
    Cast,
    Local,
)
from npusim.kernel.rows import whole_blocks
from npusim.ops import _rms_norm as norm
from npusim.ops._rms_norm.core import NormCore, Rounding, upper_half


class OptionalVectors(NamedTuple):
    """The optional operands, or arrays in place of them."""

    zero_points1: Any
    beta: Any
    scales2: Any
    zero_points2: Any

    def are_for_one_scale(self, x1: Any, gamma: Any, scales1: Any, *, divides: bool) -> bool:
        """Whether the kernel for a single scale runs the call.

        ops-nn@e5c3fa9 norm/add_rms_norm_quant_v2/op_host/op_api/aclnn_add_rms_norm_quant_v2.cpp.
        """
        columns, points = x1.shape[-1], self.zero_points1
        is_one = scales1.shape == (1,) and points is not None and points.shape == (1,)
        is_alone = self.beta is not None and self.scales2 is None and self.zero_points2 is None
        return is_one and is_alone and divides and gamma.shape in ((columns,), (1, columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(norm.Problem):
    """A checked call."""

    scales1: Operand
    optional: OptionalVectors
    divides: bool
    """Whether elements are divided by the scales rather than multiplied."""
    per_tensor: bool
    """Whether the kernel for a single scale runs the call."""

    @property
    def quantisers(self) -> tuple[tuple[Operand, Operand | None], ...]:
        """Scales and zero points that are vectors, for the first output and for the second."""
        if self.per_tensor:
            return ()
        points1, _, scales2, points2 = self.optional
        first = self.scales1, points1
        return (first,) if scales2 is None else (first, (scales2, points2))


class Quantiser:
    """The steps for a row after its root is known."""

    def __init__(self, core: NormCore, p: Problem, plan: norm.Plan) -> None:
        self.core, self.p, self.room = core, p, whole_blocks(plan.room, p.x.element)
        self.in_half = p.x.element is FLOAT16 and not p.per_tensor
        """Whether fp16 is added and multiplied by gamma in fp16."""
        is_late = plan.template == "single_n" or p.optional.beta is not None
        self.rounding = Rounding(is_exact=not is_late or p.per_tensor, in_half=self.in_half)

    # ---- vectors ----

    def fill(self, tile: Local, operand: Operand, part: slice = slice(None)) -> None:
        """Load columns *part* of *operand* to the end of *tile*, which may be wider."""
        core, view = self.core, norm.vector_of(operand)[:, part]
        core.fill(upper_half(tile, view.dtype), view)

    def widen(self, tile: Local, operand: Operand, part: slice = slice(None)) -> None:
        """Convert what `fill` loaded to the type of *tile*, at its start."""
        view = norm.vector_of(operand)[:, part]
        if view.dtype is not tile.dtype:
            loaded = upper_half(tile, view.dtype)
            self.core.cast(tile[: view.columns], loaded[: view.columns])

    def fetch(self, tile: Local, operand: Operand, part: slice = slice(None)) -> None:
        """Load columns *part* of *operand*; wait for it and widen it if necessary."""
        self.fill(tile, operand, part)
        if operand.element is not tile.dtype:
            self.core.sync("mte2", "vector")
            self.widen(tile, operand, part)

    def read_inverse(self, scale: Operand) -> None:
        """Compute 1 / the only scale, read from global memory by the scalar unit, in `inverse`."""
        core = self.core
        here = norm.vector_of(scale).operand
        core.emit(ScalarLoadGlobal("scale", here, scale.element))
        if scale.element is BFLOAT16:
            # The upper half of an fp32.
            core.alu("shl", "scale", "scale", 16)
        core.alu("f32_div", "inverse", 1.0, "scale")

    # ---- a row ----

    def times_gamma(self, values: Local, gamma: Local, work: Local) -> None:
        """Multiply *values* by register `root` and *gamma*; fp16 is rounded before and after."""
        core = self.core
        core.mul(values, values, "root")
        if self.in_half:
            halves = work.as_dtype(FLOAT16, values.count)
            core.cast(halves, values)
            core.mul(halves, gamma[: values.count], halves)
            core.cast(values, halves)
        else:
            core.cast(work, gamma[: values.count])
            core.mul(values, work, values)

    def plus_beta(self, values: Local, beta: Local, work: Local) -> None:
        """Add *beta* to *values*, using *work*."""
        self.core.cast(work, beta[: values.count])
        self.core.add(values, values, work)

    def scale_by(self, dst: Local, values: Local, scales: Local) -> None:
        """Scale *values* by *scales*, to *dst*."""
        (self.core.div if self.p.divides else self.core.mul)(dst, values, scales[: values.count])

    def narrow(self, out: Local, values: Local) -> Local:
        """*values* as int8 in the tile *out*; no barrier follows."""
        out = out.as_dtype(INT8, values.count)
        self.core.emit(Cast(out, self.core.whole_halves(values), "trunc"))
        return out
