"""What types, layouts, transpositions and scaling ask of each other, beyond each by itself.

torch_npu.contrib LinearWeightQuant, and aclnn_weight_quant_batch_matmul_v2.cpp of ops-nn.
"""

from __future__ import annotations

from warnings import warn

from npusim.ops._contract import Contract
from npusim.ops.npu_weight_quant_batchmatmul.traits import CallTraits

__all__ = ["check_combination"]

MAX_PER_TENSOR = 512_000_000
"""Largest m x k of 310P with one scale for all (aclnnWeightQuantBatchMatmulV2.md)."""


def check_combination(contract: Contract, f: CallTraits) -> None:
    """What type, layout, transposition and scaling ask of each other."""
    if f.is_packed:
        needs = (
            (not f.trans_x, "x that is not transposed"),
            (f.weight == "int8" and not f.is_nz, "an int8 weight of layout ND"),
            (f.trans_weight, "a transposed weight"),
            (f.scaling == "channel", "a scale for each column"),
            (f.m <= 96, "m in [1, 96]"),
            (f.k % 64 == 0 and f.n % 64 == 0, "k and n that are multiples of 64"),
        )
        _need(contract, f, "an int64 antiquant_scale", needs, f"pass a {f.x} scale")
    if contract.spec.series == "Atlas inference":
        _check_310p(contract, f)
    elif f.is_nz and f.weight == "int8":
        _check_int8_nz(contract, f)
    elif f.is_nz:
        _check_int4_nz(contract, f)


Needs = tuple[tuple[bool, str], ...]


def _need(contract: Contract, f: CallTraits, what: str, needs: Needs, remedy: str) -> None:
    for holds, text in needs:
        contract.require(holds, f"{what} needs {text}, not {_describe(f)}; {remedy}")


def _check_int8_nz(contract: Contract, f: CallTraits) -> None:
    needs = (
        (f.scaling == "channel", "a scale for each column"),
        (not f.trans_x, "x that is not transposed"),
    )
    _need(contract, f, "an int8 FRACTAL_NZ weight", needs, "use layout ND")
    if f.has_quant:
        warn(
            f"{contract.op}: the document takes quant_scale with ND weights only, but its own "
            f"example passes it with a FRACTAL_NZ one; it is taken",
            UserWarning,
            stacklevel=4,
        )


def _check_int4_nz(contract: Contract, f: CallTraits) -> None:
    needs = (
        (not f.has_quant, "quant_scale None"),
        (f.scaling != "tensor", "a scale for each column or group"),
        (f.scaling == "group" or f.trans_weight, "a transposed weight if scaled per channel"),
        (f.scaling != "group" or not f.trans_weight, "no transposed weight if scaled per group"),
        (f.group_size in (0, 64, 128), "antiquant_group_size 64 or 128"),
        (not f.group_size or f.k % f.group_size == 0, "k that is a multiple of the group"),
        (not f.group_size or f.n % 64 == 0, "n that is a multiple of 64"),
    )
    _need(contract, f, "an int32 FRACTAL_NZ weight", needs, "use layout ND")
    if f.scaling == "group" and not f.trans_x:
        warn(
            f"{contract.op}: the document asks for a transposed x with an int32 FRACTAL_NZ weight "
            f"scaled per group, but its inner_precise and the kernels for m <= 16 take x as it "
            f"is; it is taken",
            UserWarning,
            stacklevel=4,
        )


def _check_310p(contract: Contract, f: CallTraits) -> None:
    contract.require(
        f.scaling == "channel" or f.n == 1,
        f"antiquant_scale must have one number for each of {f.n} columns on "
        f"{contract.spec.series}, not one for all; repeat it",
    )
    contract.require(
        not f.has_quant,
        f"quant_scale must be None on {contract.spec.series}; quantise the output with "
        f"npu_quantize",
    )
    contract.require(
        f.scaling != "tensor" or f.m * f.k <= MAX_PER_TENSOR,
        f"m x k must be at most {MAX_PER_TENSOR} with one scale for all on "
        f"{contract.spec.series}, not {f.m * f.k}; split x",
    )


def _describe(f: CallTraits) -> str:
    """The traits that a refused combination is about, in a few words."""
    words = [f"m = {f.m}, k = {f.k}, n = {f.n}"]
    words.append("x transposed" if f.trans_x else "x not transposed")
    layout = "FRACTAL_NZ" if f.is_nz else "ND"
    words.append(f"{f.weight} {layout} weight {'' if f.trans_weight else 'not '}transposed")
    words.append(f"per {f.scaling}" + f" of {f.group_size}" * (f.scaling == "group"))
    return ", ".join(words) + ", int8 output" * f.has_quant
