"""What npu_quant_matmul accepts, per product line, and what its kernel receives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT4, INT8, INT32, INT64, UINT64, DType
from npusim.data.errors import Code, shown
from npusim.data.tensor import LAYOUTS, Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.isa.matrix import QuantMode
from npusim.kernel.product import Product
from npusim.ops import npu_trans_quant_param
from npusim.ops._contract import Contract
from npusim.ops._matrix import as_fractals, product_of, require_nd
from npusim.ops._protocol import present
from npusim.ops._words import fixpipe_words
from npusim.ops.npu_quant_matmul.choice import asked_for, form_of
from npusim.ops.npu_quant_matmul.problem import Problem
from npusim.ops.npu_quant_matmul.shapes import LARGEST_INNER, check_ranks, check_vectors
from npusim.ops.npu_quant_matmul.v4.contract import Given, check_v4

__all__ = ["Problem", "check"]

TARGETS = {"int8": INT8, "float16": FLOAT16, "bfloat16": BFLOAT16, "int32": INT32}
PACKED = (INT64, UINT64)
SCALES: dict[DType, tuple[DType, ...]] = {
    INT8: (FLOAT32, *PACKED),
    FLOAT16: (FLOAT32, *PACKED),
    BFLOAT16: (FLOAT32, BFLOAT16),
    INT32: (FLOAT32, BFLOAT16),
}


def check(
    spec: DeviceSpec,
    x1: Any,
    x2: Any,
    scale: Any,
    offset: Any = None,
    bias: Any = None,
    *,
    pertoken_scale: Any = None,
    output_dtype: Any = None,
    group_sizes: Any = None,
    template: Any = None,
) -> Problem:
    """Hold a call against the contract of this product line; raises OpError."""
    contract = Contract("npu_quant_matmul", spec)
    is_310p = spec.series == "Atlas inference"
    a, b = _check_matrices(contract, x1, x2)
    target = _check_target(contract, output_dtype, b.element)
    groups = _group_sizes(contract, group_sizes, b.element)
    form = form_of(a, b, groups)
    if form != "plain":
        given = Given(scale, offset, bias, pertoken_scale)
        return check_v4(contract, (a, b), form, groups, given, target, template)
    t = _check_tokens(contract, pertoken_scale, target)
    what = f" with output_dtype={target.name!r}" + (" and a pertoken_scale" if t else "")
    is_vector = target is BFLOAT16 or t is not None
    scales = (FLOAT32,) if target is FLOAT16 and t else SCALES[target]
    s = contract.operand("scale", scale, scales, what)
    if a.element is INT32 and t is not None:
        _check_ungrouped(contract, s)
    contract.require(
        offset is None or target is INT8,
        f"offset must be None{what}; leave it out, for only an int8 output takes one",
    )
    o = contract.optional("offset", offset, (FLOAT32,))
    c = contract.optional("bias", bias, _biases(target, is_vector), what)
    product = product_of(contract, a, b, INT4 if a.element is INT32 else INT8, a.element is INT32)
    _check_product(contract, product)
    check_vectors(contract, product, s, o, c, t)
    parameter, mode = _kernel_scale(contract, s, o, target, is_vector)
    output = TensorSpec((*product.batch, product.m, product.n), target.name)
    epilogue: Literal["fixpipe", "vector"] = "vector" if is_vector else "fixpipe"
    if is_310p:
        b, product = as_fractals(b), replace(product, transposed_b=True, fractal_b=True)
    return Problem(
        inputs=present(a, b, parameter, c, t),
        outputs={"output": output},
        x1=a,
        x2=b,
        scale=parameter,
        bias=c,
        pertoken_scale=t,
        product=product,
        epilogue=epilogue,
        mode=mode,
        asked=asked_for(contract, template, epilogue),
        packs_scale=s.element is FLOAT32 and mode != "none",
    )


def _check_tokens(contract: Contract, pertoken_scale: Any, target: DType) -> Operand | None:
    """The scales of rows, which only floats that the vector cores make are multiplied by."""
    series = contract.spec.series
    contract.require(
        pertoken_scale is None or series != "Atlas inference",
        f"pertoken_scale must be None on {series}; leave it out",
    )
    contract.require(
        pertoken_scale is None or target in (FLOAT16, BFLOAT16),
        f"pertoken_scale must be None with output_dtype={target.name!r}; leave it out, or pass "
        f"output_dtype='float16' or 'bfloat16'",
    )
    return contract.optional("pertoken_scale", pertoken_scale, (FLOAT32,))


def _check_ungrouped(contract: Contract, scale: Operand) -> None:
    """Refuse numbers for each group of k of packed int4, whose size nobody gives."""
    contract.require(
        len(scale.shape) == 1,
        f"scale must have one dimension with packed int4 matrices and without group_sizes, "
        f"not shape {scale.shape}; pass one number, or one a column, or group_sizes=[0, 0, 256]",
    )


def _check_matrices(contract: Contract, x1: Any, x2: Any) -> tuple[Operand, Operand]:
    kinds = (INT8,) if contract.spec.series == "Atlas inference" else (INT8, INT32)
    a = contract.matrix("x1", x1, kinds, layouts=LAYOUTS)
    b = contract.matrix("x2", x2, kinds, layouts=LAYOUTS)
    contract.require(
        a.element is b.element or b.element is INT32,
        f"x2 must be {a.element} like x1, not {b.element}; pack its numbers, as int32, with "
        f"npu_convert_weight_to_int4pack",
    )
    require_nd(contract, a)
    if a.element is INT32:
        require_nd(contract, b)
        if 1 in a.shape[-2:]:
            # The same bytes either way, and x1 can only be packed along k.
            a = replace(a, spec=replace(a.spec, transposed=False))
        contract.require(
            not a.spec.transposed,
            "x1 must not be transposed if it holds packed int4; make it contiguous",
        )
    contract.require(
        contract.spec.series != "Atlas inference" or b.spec.layout == "ND" or b.spec.transposed,
        f"x2 in FRACTAL_NZ must be the transposed view of an (n, k) matrix on "
        f"{contract.spec.series}, not of (k, n); cast the contiguous (n, k) matrix with "
        f"npu_format_cast(..., 29), and pass that one's .T",
    )
    check_ranks(contract, a, b)
    return a, b


def _check_target(contract: Contract, output_dtype: Any, element: DType) -> DType:
    choices, when = tuple(TARGETS), ""
    if contract.spec.series == "Atlas inference":
        choices, when = ("int8", "float16"), f" on {contract.spec.series}"
    if element is INT32:
        choices, when = ("float16", "bfloat16"), " with packed int4 matrices"
    name = "int8" if output_dtype is None else output_dtype
    return TARGETS[contract.choice("output_dtype", name, choices, when)]


def _biases(target: DType, is_vector: bool) -> tuple[DType, ...]:
    return (INT32, target, FLOAT32) if is_vector else (INT32,)


def _group_sizes(contract: Contract, group_sizes: Any, element: DType) -> tuple[int, int, int]:
    """Rows, columns and k of what has a scale of its own; 0 for no groups."""
    if group_sizes is None:
        return 0, 0, 0
    contract.require(
        isinstance(group_sizes, list | tuple) and len(group_sizes) == 3,
        f"group_sizes must be three integers (m, n, k), not {shown(group_sizes)}; pass [0, 0, 0]",
    )
    sizes = [contract.integer(f"group_sizes[{i}]", size) for i, size in enumerate(group_sizes)]
    for i, size in enumerate(sizes):
        contract.require(
            0 <= size <= 65535,
            f"group_sizes[{i}] must lie in [0, 65535], not {size}; pass 0 for no groups",
        )
    contract.require(
        element is INT32 or not any(sizes),
        f"group_sizes must be None or all 0 with int8 matrices, not {sizes}, since their kernel "
        f"with blocks (quant_batch_matmul_v4) is not simulated; leave it out",
        Code.UNSUPPORTED,
    )
    return sizes[0], sizes[1], sizes[2]


def _check_product(contract: Contract, product: Product) -> None:
    inner_a = product.m if product.transposed_a else product.k
    inner_b = product.k if product.transposed_b else product.n
    for name, size in (("k", product.k), ("x1", inner_a), ("x2", inner_b)):
        who = "k" if name == "k" else f"the dimension of {name} that lies inside"
        contract.require(
            size <= LARGEST_INNER,
            f"{who} must be at most {LARGEST_INNER}, not {size}; split the call",
        )
    contract.require(
        product.element is INT8 or product.n % 2 == 0,
        f"n must be even with packed int4 matrices, not {product.n}; pad x2 by a column, and "
        f"what has a number for each",
    )


def _kernel_scale(
    contract: Contract, s: Operand, o: Operand | None, target: DType, is_vector: bool
) -> tuple[Operand | None, QuantMode]:
    """The scale as the kernel reads it, None if it reads none, and what L0C's way out does."""
    if target is INT32:
        return None, "none"
    if is_vector:
        return s, "none"
    return _words(contract, s, o, target), "req8" if target is INT8 else "deqf16"


def _words(contract: Contract, s: Operand, o: Operand | None, target: DType) -> Operand:
    """The 64-bit parameters of the fixpipe, from numbers or as they came."""
    if s.element in PACKED:
        return fixpipe_words(contract, s, target)
    shape = s.shape if o is None or s.spec.size > 1 else o.shape
    spec = TensorSpec(shape, "uint64")
    if s.array is None or (o is not None and o.array is None):
        return Operand("scale", spec)
    packed = npu_trans_quant_param.reference(s.array, None if o is None else o.array)
    return Operand("scale", spec, packed.view(np.uint64))
