"""What npu_weight_quant_batchmatmul accepts on each product line, and the kernel for the call.

Sources: torch_npu.contrib LinearWeightQuant, and aclnn_weight_quant_batch_matmul_v2.cpp of ops-nn.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8, INT32, INT64, DType
from npusim.data.errors import Code
from npusim.data.integers import ceil_div
from npusim.data.tensor import LAYOUTS, Operand, TensorSpec
from npusim.ops import _vocabulary as ops
from npusim.ops import npu_trans_quant_param
from npusim.ops._operands import INT4_PER_INT32, as_fractals, logical_shape, unpacked_remedy
from npusim.ops._support import Entries
from npusim.ops._vocabulary import A2_A3, ATLAS_INFERENCE, Contract, Operands, Row, listed
from npusim.ops.npu_weight_quant_batchmatmul.choice import CallTraits, choose
from npusim.ops.npu_weight_quant_batchmatmul.problem import Problem

MAX_SIZE = 65535
"""Largest k and n, and largest m of a transposed x."""
MAX_PER_TENSOR = 512_000_000
"""Largest m x k of 310P with one scale for all (aclnnWeightQuantBatchMatmulV2.md)."""
SHIFT_BITS = 0x1F << 32
"""The shift and its switch in a packed word; npu_trans_quant_param leaves them 0."""
INT8_FLAG = 1 << 46
IDENTITY = Operand("identity", TensorSpec((32, 32), "int8"), np.eye(32, dtype=np.int8))
"""A constant of the fixpipe kernel, which moves the weight through the cube."""


TWO = (2, 2)
"""Dimensions of a matrix."""


def _row(x: DType, scale: DType, offset: DType, bias: DType, *, quantises: bool = True) -> Row:
    """A row of Atlas A2 and A3."""
    more: Entries = {}
    if quantises:
        more = {"quant_scale": (FLOAT32, INT64), "quant_offset": FLOAT32}
    return Row(
        on=A2_A3,
        x=Operands((x,), ranks=TWO),
        weight=Operands((INT8, INT32), LAYOUTS, TWO),
        antiquant_scale=scale,
        antiquant_offset=offset,
        bias=bias,
        **more,
    )


SUPPORT = (
    _row(FLOAT16, FLOAT16, FLOAT16, FLOAT16),
    _row(FLOAT16, INT64, INT32, FLOAT16, quantises=False),
    _row(BFLOAT16, BFLOAT16, BFLOAT16, FLOAT32),
    Row(
        on=ATLAS_INFERENCE,
        x=Operands((FLOAT16,), ranks=TWO),
        weight=Operands((INT8,), LAYOUTS, TWO),
        antiquant_scale=FLOAT16,
        antiquant_offset=FLOAT16,
        bias=FLOAT16,
    ),
)


def check(contract: Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    x, weight = contract.matrix("x"), contract.matrix("weight")
    m, k, n = _sizes(contract, x, weight)
    group_size = _group_size(contract, k)
    scale, offset = _antiquant(contract, weight, (k, n), group_size)
    quant, packs_scale = _quant(contract, n)
    bias = _bias(contract, n)
    inner = contract.integer("inner_precise")
    contract.require(
        inner in (0, 1), f"inner_precise must be 0 or 1, not {inner}; 0 is precise, 1 is fast"
    )
    if contract.spec.series in ATLAS_INFERENCE:
        # aclnn converts an ND weight to FRACTAL_NZ of its transpose for the kernel of 310P.
        weight = as_fractals(weight)
    traits = CallTraits(
        *(m, k, n),
        x=x.element.name,
        weight="int8" if weight.element is INT8 else "int4",
        trans_x=x.spec.transposed,
        trans_weight=weight.spec.transposed,
        is_nz=weight.spec.layout != "ND",
        scaling="group" if group_size else "tensor" if scale.spec.size == 1 else "channel",
        group_size=group_size,
        has_offset=offset is not None,
        has_bias=bias is not None,
        has_quant=quant is not None,
        is_packed=not scale.element.is_float,
        deterministic=contract.boolean("deterministic"),
    )
    _check_combination(contract, traits)
    choice = choose(traits, contract.spec, contract.value("template"))
    constant = IDENTITY if choice.template == "fixpipe" else None
    return Problem(
        inputs=ops.present(x, weight, scale, offset, quant, bias, constant),
        outputs={"output": TensorSpec((m, n), "int8" if quant else x.element.name)},
        x=x,
        weight=weight,
        antiquant_scale=scale,
        antiquant_offset=offset,
        quant_scale=quant,
        packs_scale=packs_scale,
        bias=bias,
        traits=traits,
        choice=choice,
        inner_precise=inner,
    )


# ---- sizes ----


def _sizes(contract: Contract, x: Operand, weight: Operand) -> tuple[int, int, int]:
    """m, k and n; an int32 of the weight counts as eight int4."""
    contract.require_filled(x, weight)
    m, k = x.shape
    rows, n = weight.shape
    remedy = "pass its transpose" if n == k else "pass it as (k, n)"
    if weight.element is INT32:
        rows, n = logical_shape(weight, packed=True)
        remedy = "pass it as (k, n / 8), or as the transpose of (n, k / 8)"
        if rows == INT4_PER_INT32 * k:
            remedy = unpacked_remedy("weight")
    contract.require(
        rows == k, f"weight must have k = {k} rows as x has columns, not {rows}; {remedy}"
    )
    for name, size in (("k", k), ("n", n)):
        contract.require(
            size <= MAX_SIZE, f"{name} must lie in [1, {MAX_SIZE}], not be {size}; split the weight"
        )
    max_m, when = (MAX_SIZE, " for a transposed x") if x.spec.transposed else (2**31 - 1, "")
    contract.require(m <= max_m, f"m must lie in [1, {max_m}]{when}, not be {m}; split x")
    return m, k, n


def _group_size(contract: Contract, k: int) -> int:
    size, series = contract.integer("antiquant_group_size"), contract.spec.series
    contract.require(
        size == 0 or series not in ATLAS_INFERENCE,
        f"antiquant_group_size must be 0 on {series}, not {size}; pass a scale for each column",
    )
    sizes = f", or a multiple of 32 in [32, k - 1 = {k - 1}]" if k > 32 else f" for k = {k}"
    remedy = "pass 0, with one scale for each column"
    if k > 32:
        near = min(max(size // 32, 1), (k - 1) // 32) * 32
        remedy = f"pass {near} with scales ({ceil_div(k, near)}, n), or 0 with one for each column"
    contract.require(
        size == 0 or (32 <= size <= k - 1 and size % 32 == 0),
        f"antiquant_group_size must be 0{sizes}, not {size}; {remedy}",
    )
    return size


# ---- scales, offsets and bias ----


def _antiquant(
    contract: Contract, weight: Operand, sizes: tuple[int, int], group_size: int
) -> tuple[Operand, Operand | None]:
    """The scales and offsets that dequantise the *weight* of *sizes* k and n."""
    k, n = sizes
    s, groups = contract.operand("antiquant_scale"), ceil_div(k, group_size) if group_size else 1
    shapes = ((groups, n),) if group_size else ((1,), (1, 1), (n,), (1, n))
    remedy = _scale_remedy(contract, s.shape, weight.element, k, n, group_size)
    _require_shape(contract, s, shapes, remedy)
    if s.element is INT64:
        _check_words(contract, s, 0)
    o = contract.optional("antiquant_offset")
    if o is not None:
        is_turned = len(s.shape) == 2 and 1 not in s.shape and o.shape == s.shape[::-1]
        contract.require(
            o.shape == s.shape,
            f"antiquant_offset must have the shape of antiquant_scale, {s.shape}, not {o.shape}; "
            f"{'transpose it' if is_turned else ops.same_shape_remedy(o, s)}",
        )
        if o.element is INT32 and o.array is not None:
            low, high = int(o.array.min()), int(o.array.max())
            contract.require(
                low >= -128 and high <= 127,
                f"antiquant_offset must lie in [-128, 127] if it is int32, not in [{low}, {high}]; "
                f"clip it",
            )
    if not group_size:
        return s, o
    # aclnn passes group scales to the kernels transposed like the weight.
    return _turned_as(weight, s), o and _turned_as(weight, o)


def _turned_as(weight: Operand, parameter: Operand) -> Operand:
    spec = replace(parameter.spec, transposed=weight.spec.transposed)
    return replace(parameter, spec=spec)


def _scale_remedy(
    contract: Contract, shape: tuple[int, ...], weight: DType, k: int, n: int, group_size: int
) -> str | None:
    """How to fix an antiquant_scale of *shape* that does not fit; None for the general message."""
    if weight is INT32 and shape[-1:] == (n // INT4_PER_INT32,):
        return unpacked_remedy("weight")
    if group_size:
        is_turned = shape == (n, ceil_div(k, group_size))
        return "transpose it" if is_turned else "pass a scale for each group and column"
    if contract.spec.series in ATLAS_INFERENCE:
        return None if prod(shape) == n else "pass one for each column"
    if len(shape) == 2 and shape[1] == n and shape[0] > 1:
        # The widest groups that give this count, preferring those that divide k evenly.
        sizes = [size for size in range(32, k, 32) if ceil_div(k, size) == shape[0]]
        even = [size for size in sizes if size * shape[0] == k]
        if sizes:
            return f"pass antiquant_group_size={(even or sizes)[-1]} if these are scales of groups"
    return None


def _require_shape(
    contract: Contract,
    operand: Operand,
    shapes: tuple[tuple[int, ...], ...],
    remedy: str | None = None,
) -> None:
    if remedy is None:
        fits = operand.spec.size in {prod(shape) for shape in shapes}
        remedy = "reshape it" if fits else "pass one value, or one for each column"
    contract.require_shape(operand, *shapes, remedy=remedy)


def _quant(contract: Contract, n: int) -> tuple[Operand | None, bool]:
    """The scale that quantises the output, as int64, and whether it is packed for that."""
    s = contract.optional("quant_scale")
    if s is None:
        contract.require(
            contract.optional("quant_offset") is None,
            "quant_offset must be None without quant_scale; pass both, or neither",
        )
        return None, False
    _require_shape(contract, s, ((1,), (n,), (1, n)))
    o = contract.optional("quant_offset")
    if o is not None:
        contract.require(
            o.shape == s.shape,
            f"quant_offset must have the shape of quant_scale, {s.shape}, not {o.shape}; "
            f"{ops.same_shape_remedy(o, s)}",
        )
    if s.element is INT64:
        _check_words(contract, s, INT8_FLAG)
        return s, False
    packed = None
    if s.array is not None and (o is None or o.array is not None):
        packed = npu_trans_quant_param.reference(s.array, None if o is None else o.array)
    return Operand(s.name, TensorSpec(s.shape, "int64"), packed), True


def _check_words(contract: Contract, operand: Operand, flag: int) -> None:
    """Check that packed words make the fixpipe do what this operator means."""
    if operand.array is None:
        return
    bad = operand.array[(operand.array & (SHIFT_BITS | flag)) != flag]
    contract.require(
        bad.size == 0,
        f"{operand.name} must come from npu_trans_quant_param if it is int64, "
        f"not be {bad.flat[0] if bad.size else 0}; pack it",
    )


def _bias(contract: Contract, n: int) -> Operand | None:
    """The bias, an element for each column."""
    bias = contract.optional("bias")
    if bias is None:
        return None
    _require_shape(contract, bias, ((1,), (n,), (1, n)))
    if bias.shape == (1,) and n > 1:
        # The document allows one element; the kernels read n of them.
        array = None if bias.array is None else np.repeat(bias.array, n)
        return Operand(bias.name, TensorSpec((n,), bias.element.name), array)
    return bias


# ---- mutual requirements of types, layouts, transpositions and scaling ----

Needs = tuple[tuple[bool, str], ...]
"""Whether it holds; what must hold, and what was given."""


def _check_combination(contract: Contract, f: CallTraits) -> None:
    if f.is_packed:
        what, remedy = "an int64 antiquant_scale", f"pass a {f.x} antiquant_scale"
        _need(contract, what, _int64_scale_needs(f), remedy)
    if contract.spec.series in ATLAS_INFERENCE:
        _check_310p(contract, f)
    elif f.is_nz:
        is_int8 = f.weight == "int8"
        what = f"{'an int8' if is_int8 else 'an int32'} FRACTAL_NZ weight"
        plain_x = (not f.trans_x, "x must not be transposed")
        needs = (_scaling_need(f), plain_x) if is_int8 else _int4_nz_needs(f)
        _need(contract, what, needs, "pass weight through npu_format_cast(..., 2)")
        _warn_of_nz(contract, f)


def _need(contract: Contract, what: str, needs: Needs, remedy: str) -> None:
    """Refuse unless all of *needs* hold, naming only those that do not."""
    unmet = tuple(text for holds, text in needs if not holds)
    contract.require(not unmet, f"with {what}, {listed(unmet, 'and')}; change that, or {remedy}")


def _scaling_need(f: CallTraits) -> tuple[bool, str]:
    came = "one for all" if f.scaling == "tensor" else f"one for each group of {f.group_size}"
    text = f"antiquant_scale must have a value for each column, not {came}"
    return f.scaling == "channel", text


def _int64_scale_needs(f: CallTraits) -> Needs:
    layout = "FRACTAL_NZ" if f.is_nz else "ND"
    is_plain = f.weight == "int8" and not f.is_nz
    return (
        (not f.trans_x, "x must not be transposed"),
        (is_plain, f"weight must be int8 in ND, not {f.weight} in {layout}"),
        (f.trans_weight, "weight must be the transposed view of an (n, k) matrix, not of (k, n)"),
        _scaling_need(f),
        (f.m <= 96, f"m must be at most 96, not {f.m}"),
        (f.k % 64 == 0, f"k must be a multiple of 64, not {f.k}"),
        (f.n % 64 == 0, f"n must be a multiple of 64, not {f.n}"),
    )


def _int4_nz_needs(f: CallTraits) -> Needs:
    is_grouped, size = f.scaling == "group", f.group_size
    turned, as_it_is = "the transposed view of an (n, k) matrix", "a (k, n) matrix"
    by_group, by_column = "for scales of groups", "for a scale for each column"
    return (
        (not f.has_quant, "quant_scale must be None"),
        _scaling_need(f) if f.scaling == "tensor" else (True, ""),
        (
            f.scaling != "channel" or f.trans_weight,
            f"weight must be {turned} {by_column}, not {as_it_is}",
        ),
        (
            not is_grouped or not f.trans_weight,
            f"weight must be {as_it_is} {by_group}, not {turned}",
        ),
        (
            not is_grouped or size in (64, 128),
            f"antiquant_group_size must be 64 or 128, not {size}",
        ),
        (
            size not in (64, 128) or f.k % size == 0,
            f"k must be a multiple of antiquant_group_size, {size}, not {f.k}",
        ),
        (not is_grouped or f.n % 64 == 0, f"n must be a multiple of 64, not {f.n}"),
    )


def _warn_of_nz(contract: Contract, f: CallTraits) -> None:
    """Warn where the document and its own examples, or the kernels, disagree."""
    if f.weight == "int8" and f.has_quant:
        contract.warn(
            "the document takes quant_scale with ND weights only, but its own example passes it "
            "with a FRACTAL_NZ one; it is taken"
        )
    if f.weight == "int4" and f.scaling == "group" and not f.trans_x:
        contract.warn(
            "the document asks for a transposed x with an int32 FRACTAL_NZ weight scaled per "
            "group, but its inner_precise and the kernels for m <= 16 take x as it is; it is taken"
        )


def _check_310p(contract: Contract, f: CallTraits) -> None:
    series = contract.spec.series
    contract.require(
        f.scaling == "channel" or f.n == 1,
        f"antiquant_scale must have a value for each of {f.n} columns on {series}, not one for "
        f"all; repeat it",
    )
    contract.require(
        not f.is_nz or f.trans_weight,
        f"weight in FRACTAL_NZ must be the transposed view of an (n, k) matrix on {series}, not "
        f"of (k, n); cast the contiguous (n, k) matrix with npu_format_cast(..., 29), and pass "
        f"that one's .T",
        Code.UNSUPPORTED,
    )
    contract.require(
        f.scaling != "tensor" or f.m * f.k <= MAX_PER_TENSOR,
        f"m x k must be at most {MAX_PER_TENSOR} with one scale for all on {series}, not "
        f"{f.m * f.k}; split x",
    )
