"""What types, layouts, transpositions and scaling ask of each other, beyond each by itself.

torch_npu.contrib LinearWeightQuant, and aclnn_weight_quant_batch_matmul_v2.cpp of ops-nn.
"""

from __future__ import annotations

from npusim.data.errors import Code
from npusim.ops._contract import Contract, listed
from npusim.ops.npu_weight_quant_batchmatmul.traits import CallTraits

__all__ = ["check_combination"]

MAX_PER_TENSOR = 512_000_000
"""Largest m x k of 310P with one scale for all (aclnnWeightQuantBatchMatmulV2.md)."""


def check_combination(contract: Contract, f: CallTraits) -> None:
    """What type, layout, transposition and scaling ask of each other."""
    if f.is_packed:
        what, remedy = "an int64 antiquant_scale", f"pass a {f.x} antiquant_scale"
        _need(contract, what, _int64_scale_needs(f), remedy)
    if contract.spec.series == "Atlas inference":
        _check_310p(contract, f)
    elif f.is_nz:
        is_int8 = f.weight == "int8"
        what = f"{'an int8' if is_int8 else 'an int32'} FRACTAL_NZ weight"
        needs = _int8_nz_needs(f) if is_int8 else _int4_nz_needs(f)
        _need(contract, what, needs, "pass weight through npu_format_cast(..., 2)")
        _warn_of_nz(contract, f)


Needs = tuple[tuple[bool, str], ...]
"""Whether it holds; what must hold, and what came."""


def _need(contract: Contract, what: str, needs: Needs, remedy: str) -> None:
    """Refuse unless all of *needs* hold, and name those that do not, and only those."""
    unmet = tuple(text for holds, text in needs if not holds)
    contract.require(not unmet, f"with {what}, {listed(unmet, 'and')}; change that, or {remedy}")


def _scaling_need(f: CallTraits) -> tuple[bool, str]:
    came = "one for all" if f.scaling == "tensor" else f"one for each group of {f.group_size}"
    text = f"antiquant_scale must have a number for each column, not {came}"
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


def _int8_nz_needs(f: CallTraits) -> Needs:
    return _scaling_need(f), (not f.trans_x, "x must not be transposed")


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
    """Say where the document and its own examples, or the kernels, disagree."""
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
    contract.require(
        f.scaling == "channel" or f.n == 1,
        f"antiquant_scale must have one number for each of {f.n} columns on "
        f"{contract.spec.series}, not one for all; repeat it",
    )
    contract.require(
        not f.is_nz or f.trans_weight,
        f"weight in FRACTAL_NZ must be the transposed view of an (n, k) matrix on "
        f"{contract.spec.series}, not of (k, n); cast the contiguous (n, k) matrix with "
        f"npu_format_cast(..., 29), and pass that one's .T",
        Code.UNSUPPORTED,
    )
    contract.require(
        f.scaling != "tensor" or f.m * f.k <= MAX_PER_TENSOR,
        f"m x k must be at most {MAX_PER_TENSOR} with one scale for all on "
        f"{contract.spec.series}, not {f.m * f.k}; split x",
    )
