"""A checked call of npu_weight_quant_batchmatmul, and the base of its kernels' plans."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from npusim.data.dtypes import INT4, INT8
from npusim.data.integers import ceil_div
from npusim.data.tensor import Operand
from npusim.kernel.matrices import GmMatrix
from npusim.kernel.program import Binding
from npusim.kernel.views import GmView
from npusim.ops import _vocabulary as ops
from npusim.ops._dequantised_weight import QuantisedWeight
from npusim.ops.npu_weight_quant_batchmatmul.choice import CallTraits, Choice

OP = "npu_weight_quant_batchmatmul"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call: x `(m, k)` times the weight `(k, n)`, as the kernel gets them."""

    x: Operand
    weight: Operand
    """int8 `(k, n)`, or int32 holding eight int4 each along the last dimension in memory."""
    antiquant_scale: Operand
    antiquant_offset: Operand | None
    quant_scale: Operand | None
    """int64: scale and offset as the fixpipe reads them, `(1,)`, `(n,)` or `(1, n)`."""
    packs_scale: bool
    """Whether torch_npu packs these words from a float32 quant_scale, by a launch of
    npu_trans_quant_param (op-plugin@517f2e7, WeightQuantBatchMatmulV2KernelNpuOpApi.cpp)."""
    bias: Operand | None
    """`(n,)` or `(1, n)`."""
    traits: CallTraits
    choice: Choice
    inner_precise: int

    @property
    def chosen(self) -> dict[str, Any]:
        """The plan's fields for its kernel; all but two start vector cores with cube cores."""
        is_mix = self.choice.template not in ("fixpipe", "weight_nz")
        return asdict(self.choice) | {"is_mix": is_mix}

    @property
    def gm_weight(self) -> GmMatrix:
        """The weight by elements: an int32 holds eight int4."""
        f = self.traits
        rows, columns = (f.n, f.k) if f.trans_weight else (f.k, f.n)
        layout: Literal["ND", "FRACTAL_NZ"] = "FRACTAL_NZ" if f.is_nz else "ND"
        dtype = INT8 if f.weight == "int8" else INT4
        return GmMatrix("weight", dtype, rows, columns, not f.trans_weight, layout)

    @property
    def quantised_weight(self) -> QuantisedWeight:
        """The weight, and the parameters with which vector cores dequantise it."""
        f, matrix = self.traits, self.gm_weight
        groups = ceil_div(f.k, f.group_size) if f.group_size else 1
        shape = (groups, f.n) if matrix.k_is_first else (f.n, groups)
        if is_single := f.scaling == "tensor":
            shape = 1, 1
        offset, scale = (
            None if x is None else GmView(x.name, x.element, *shape, 0 if is_single else shape[1])
            for x in (self.antiquant_offset, self.antiquant_scale)
        )
        return QuantisedWeight(matrix, f.k, f.n, f.group_size, offset, scale, is_single)

    @property
    def output_view(self) -> GmView:
        """All of the output, `(m, n)`."""
        return GmView.of("output", self.output.element, self.traits.m, self.traits.n)

    def column_view(self, operand: Operand | None) -> GmView | None:
        """An operand with an element for each column, `(n,)`, if it is given."""
        if operand is None:
            return None
        return GmView.vector(operand.name, operand.element, self.traits.n)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """The kernel, the reason for it, and its number of cores; each template adds its own sizes."""

    template: str
    form: str
    """The kernel among those of the template; empty if there is only one."""
    reason: str

    def bindings(self, p: Problem) -> dict[str, Binding]:
        """Inputs, output and workspaces, each under its own name."""
        names = [*(operand.name for operand in p.inputs), "output", *self.workspaces]
        return {name: Binding(name) for name in names}


def workspace_bytes(*views: GmView | None) -> dict[str, int]:
    """Name -> bytes of the workspaces that *views* cover."""
    found: dict[str, int] = {}
    for view in views:
        if view is not None:
            found[view.name] = found.get(view.name, 0) + view.nbytes
    return found
