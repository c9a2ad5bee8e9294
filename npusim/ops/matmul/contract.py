"""What matmul accepts, per product line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from npusim.data.errors import shown
from npusim.data.tensor import LAYOUTS, Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.kernel.product import Product
from npusim.ops import _protocol
from npusim.ops._contract import Contract
from npusim.ops._matrix import product_of
from npusim.ops._protocol import present
from npusim.ops.matmul.choice import Choice, choose
from npusim.ops.matmul.traits import CallTraits

__all__ = ["Problem", "check"]

BIASES: dict[DType, tuple[DType, ...]] = {
    FLOAT16: (FLOAT16, FLOAT32),
    BFLOAT16: (FLOAT32,),
    FLOAT32: (FLOAT32,),
}
"""Type of the matrices -> types of the bias."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call."""

    x1: Operand
    x2: Operand
    bias: Operand | None
    product: Product
    traits: CallTraits
    choice: Choice


def check(
    spec: DeviceSpec,
    x1: Any,
    x2: Any,
    bias: Any = None,
    *,
    output_dtype: Any = None,
    template: Any = None,
) -> Problem:
    """Hold a call against the contract of this product line; raises OpError."""
    contract = Contract("matmul", spec)
    a = contract.matrix("x1", x1, tuple(BIASES) if spec.arch != "2002" else (FLOAT16,))
    layouts = ("ND",) if a.element is FLOAT32 else LAYOUTS
    b = contract.matrix("x2", x2, (a.element,), " like x1", layouts)
    product = product_of(contract, a, b, a.element, packed=False)
    c = contract.optional("bias", bias, BIASES[a.element], f" with {a.element} matrices")
    if c is not None:
        n = product.n
        contract.require(
            c.shape in ((n,), (1, n)),
            f"bias must have shape ({n},) or (1, {n}), not {c.shape}; pass a number a column",
        )
    out = _output_type(contract, a.element, output_dtype)
    if template is not None and not isinstance(template, str):
        contract.fail(f"template must be a name or None, not {shown(template)}; leave it out")
    # A batch of x1 is further rows to aclnnMatmul (aclnn_matmul.cpp), if x2 is one matrix.
    batch, m = product.batch, product.m
    product = product.as_rows
    traits = _traits(product, c is not None, out)
    choice = choose(traits, spec, template)
    output = TensorSpec((*batch, m, product.n), out)
    return Problem(
        inputs=present(a, b, c),
        outputs={"output": output},
        x1=a,
        x2=b,
        bias=c,
        product=product,
        traits=traits,
        choice=choice,
    )


def _output_type(contract: Contract, element: DType, name: Any) -> str:
    """The type of the result: that of the matrices, or float32 where the fixpipe can store sums."""
    types: tuple[str, ...] = (element.name,)
    if contract.spec.arch != "2002" and element is not FLOAT32:
        types += (FLOAT32.name,)
    return element.name if name is None else contract.choice("output_dtype", name, types)


def _traits(p: Product, has_bias: bool, output: str) -> CallTraits:
    """What the choice of a kernel looks at."""
    return CallTraits(
        *(p.m, p.k, p.n, p.element.name, p.matrices),
        trans_x1=p.transposed_a,
        trans_x2=p.transposed_b,
        is_nz=p.fractal_b,
        has_bias=has_bias,
        is_wide=output == FLOAT32.name != p.element.name,
    )
