"""What npu_quant_matmul accepts beside int8 times int8, and int4 times int4 with scales of columns.

ops-nn@e5c3fa9 matmul/quant_batch_matmul_v4/op_host/op_api, aclnn_quant_matmul_v5.cpp.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from npusim.data.dtypes import FLOAT16, FLOAT32, INT4, INT32, INT64, UINT64, DType
from npusim.data.tensor import Operand, TensorSpec
from npusim.kernel.matmul import Product
from npusim.ops._contract import Contract, listed
from npusim.ops._int4_matmul import MAX_ROW
from npusim.ops._matrix import product_of
from npusim.ops._protocol import present
from npusim.ops._words import fixpipe_words
from npusim.ops.npu_quant_matmul.choice import Form, asked_for
from npusim.ops.npu_quant_matmul.problem import Problem
from npusim.ops.npu_quant_matmul.shapes import LARGEST_INNER, check_ranks

__all__ = ["GROUP_K", "Given", "check_v4"]

GROUP_K = 256
"""k of a group, the only one."""
PACKED_K, PACKED_N = 1024, 256
"""What k and n are multiples of with groups of int4."""

Groups = tuple[int, int, int]
"""Rows, columns and k of a group; 0 for none."""


class Given(NamedTuple):
    """The numbers beside the matrices, as a caller has passed them."""

    scale: Any
    offset: Any
    bias: Any
    pertoken_scale: Any


def check_v4(
    contract: Contract,
    matrices: tuple[Operand, Operand],
    form: Form,
    groups: Groups,
    given: Given,
    target: DType,
    template: Any,
) -> Problem:
    """Hold a call of one of the *form*s that are not plain against the contract."""
    a, b = matrices
    what = " with int8 times packed int4" if form == "int8 times int4" else " with groups of int4"
    contract.require(given.bias is None, f"bias must be None{what}; leave it out")
    product = product_of(contract, a, b, INT4, packed=a.element is INT32, packed_x2=True)
    check_ranks(contract, a, b)
    group_k = _check_sizes(contract, product, form, groups, what)
    m, n = product.m, product.n
    of_groups = product.k // group_k, n
    t = contract.operand("pertoken_scale", given.pertoken_scale, (FLOAT32,), what)
    tokens: tuple[int, ...] = (m, 1) if groups[2] else (m,)
    if form == "int8 times int4":
        s = contract.operand("scale", given.scale, (INT64, UINT64), what)
        o = contract.operand("offset", given.offset, (FLOAT32,), what)
        columns = of_groups if groups[2] else (n,)
        _require_shapes(contract, (t, tokens), (s, columns), (o, (n,)))
        s = fixpipe_words(contract, s, target)
    else:
        s = contract.operand("scale", given.scale, (FLOAT32,), what)
        o = contract.operand("offset", given.offset, (FLOAT16,), what)
        _require_shapes(contract, (t, tokens), (s, of_groups), (o, of_groups))
    return Problem(
        inputs=present(a, b, s, o, t),
        outputs={"output": TensorSpec((m, n), target.name)},
        x1=a,
        x2=b,
        scale=s,
        bias=None,
        pertoken_scale=t,
        product=product,
        epilogue="vector",
        mode="none",
        asked=asked_for(contract, template, "vector", form),
        packs_scale=False,
        form=form,
        offset=o,
        group_k=group_k,
    )


def _check_sizes(
    contract: Contract, product: Product, form: Form, groups: Groups, what: str
) -> int:
    """The k of what has scales of its own: a group, or all."""
    contract.require(
        product.batch == (), f"x1 and x2 must have two dimensions{what}; pass matrix by matrix"
    )
    contract.require(
        not product.transposed_a, f"x1 must not be transposed{what}; make it contiguous"
    )
    sizes = [[0, 0, 0], [0, 0, GROUP_K]] if form == "int8 times int4" else [[0, 0, GROUP_K]]
    contract.require(
        [0, 0, groups[2]] in sizes and max(groups[:2]) <= 1,
        f"group_sizes must be {listed(tuple(map(str, sizes)))}{what}, not {list(groups)}; "
        f"pass those of the scales",
    )
    k, n = product.k, product.n
    inner = k if product.transposed_b else n
    contract.require(
        inner <= LARGEST_INNER,
        f"the dimension of x2 that lies inside must be at most {LARGEST_INNER}, not {inner}; split "
        f"the call",
    )
    if form == "groups of int4":
        contract.require(
            k % PACKED_K == 0 and n % PACKED_N == 0,
            f"k must be a multiple of {PACKED_K} and n of {PACKED_N}{what}, not {k} and {n}; pad "
            f"both matrices",
        )
        contract.require(
            product.transposed_b,
            f"x2 must be the transposed view of (n, k / 8){what}, not contiguous; turn it",
        )
        return GROUP_K
    contract.require(
        k % 2 == 0 and k <= MAX_ROW and n % 2 == 0,
        f"k and n must be even and k at most {MAX_ROW}{what}, not {k} and {n}; pad the matrices, "
        f"or split them",
    )
    if not groups[2]:
        return k
    contract.require(
        k % GROUP_K == 0,
        f"k must be a multiple of {GROUP_K}{what} and scales of groups, not {k}; pad both matrices",
    )
    contract.require(
        not product.transposed_b and not product.fractal_b,
        f"x2 must be (k, n / 8) in ND{what} and scales of groups, not "
        f"{'in FRACTAL_NZ' if product.fractal_b else 'transposed'}; make it so",
    )
    return GROUP_K


def _require_shapes(contract: Contract, *wanted: tuple[Operand, tuple[int, ...]]) -> None:
    """Refuse operands that do not have their shapes."""
    for operand, shape in wanted:
        remedy = "reshape it" if operand.spec.size == prod(shape) else "pass as many numbers"
        contract.require(
            operand.shape == shape,
            f"{operand.name} must have shape {shape}, not {operand.shape}; {remedy}",
        )
