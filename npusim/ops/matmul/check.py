"""The calls that matmul accepts, per product line, and the checked call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from npusim.data.tensor import LAYOUTS, Operand, TensorSpec
from npusim.kernel import Product
from npusim.ops import _vocabulary as ops
from npusim.ops._operands import product_of
from npusim.ops._vocabulary import A2_A3, ATLAS_INFERENCE, Operands, Row
from npusim.ops.matmul.choice import Choice, choose
from npusim.ops.matmul.traits import CallTraits

HALVES = Operands((FLOAT16,), LAYOUTS)
SUPPORT = (
    Row(on=A2_A3, x1=FLOAT16, x2=HALVES, bias=(FLOAT16, FLOAT32)),
    Row(on=A2_A3, x1=BFLOAT16, x2=Operands((BFLOAT16,), LAYOUTS), bias=FLOAT32),
    Row(on=A2_A3, x1=FLOAT32, x2=FLOAT32, bias=FLOAT32),
    Row(on=ATLAS_INFERENCE, x1=FLOAT16, x2=HALVES, bias=(FLOAT16, FLOAT32)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call."""

    x1: Operand
    x2: Operand
    bias: Operand | None
    product: Product
    traits: CallTraits
    choice: Choice

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors of all its kernels, by their names in programs."""
        return (*(operand.name for operand in self.inputs), "output")

    @property
    def bias_type(self) -> DType | None:
        """The element type of the bias, if there is one."""
        return None if self.bias is None else self.bias.element


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """The kernel that runs, why, and on how many cores; each template adds sizes of its tiles."""

    template: str
    reason: str


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    a, b = contract.matrix("x1"), contract.matrix("x2")
    product = product_of(contract, a, b, a.element, packed=False)
    bias = contract.optional("bias")
    if bias is not None:
        n = product.n
        contract.require_shape(bias, (n,), (1, n), remedy="pass a number a column")
    out = _output_type(contract, a.element, contract.value("output_dtype"))
    # To aclnnMatmul a batch of x1 is further rows (aclnn_matmul.cpp), if x2 is one matrix.
    batch, m = product.batch, product.m
    product = product.as_rows
    traits = _traits(product, bias is not None, out)
    return Problem(
        inputs=ops.present(a, b, bias),
        outputs={"output": TensorSpec((*batch, m, product.n), out)},
        x1=a,
        x2=b,
        bias=bias,
        product=product,
        traits=traits,
        choice=choose(traits, contract.spec, contract.value("template")),
    )


def _output_type(contract: ops.Contract, element: DType, name: Any) -> str:
    """The type of the result: that of the matrices, or float32 if the fixpipe can store sums."""
    types: tuple[str, ...] = (element.name,)
    if contract.spec.arch != "2002" and element is not FLOAT32:
        types += (FLOAT32.name,)
    return element.name if name is None else contract.choice("output_dtype", types)


def _traits(p: Product, has_bias: bool, output: str) -> CallTraits:
    """The properties that decide the kernel."""
    return CallTraits(
        *(p.m, p.k, p.n, p.element.name, p.matrices),
        trans_x1=p.transposed_a,
        trans_x2=p.transposed_b,
        is_nz=p.fractal_b,
        has_bias=has_bias,
        is_wide=output == FLOAT32.name != p.element.name,
    )
