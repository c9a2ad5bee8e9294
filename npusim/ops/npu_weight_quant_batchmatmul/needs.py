"""What each kernel cannot do without.

The vendor's predicates mix these needs with policy. Which are needs is our reading of what the
kernels load, where they keep it, and what they write (ops-nn@e5c3fa9 matmul/
weight_quant_batch_matmul_v2/op_kernel and op_host/op_tiling).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from npusim.data.integers import align_up
from npusim.ops.npu_weight_quant_batchmatmul.traits import CallTraits, Chip, k_step

__all__ = ["Template", "unmet"]

Template = Literal["split_k", "msd_group", "msd", "nz_splitk", "custom", "fixpipe", "weight_nz"]
"""In the order in which they are tried; 310P has weight_nz only, A2 and A3 all the others."""


def unmet(template: Template, f: CallTraits, chip: Chip) -> Iterator[str]:
    """The needs of *template* that the call does not fulfil, in words."""
    if template == "weight_nz":
        rows = [(f.is_nz and f.trans_weight, "weight is FRACTAL_NZ and transposed")]
    elif template == "fixpipe":
        rows = _fixpipe_needs(f)
    else:
        rows = [(not f.is_packed, "antiquant_scale is a float")]
        if template != "custom":
            rows += [
                (not f.trans_x, "x is not transposed"),
                (not f.has_quant, "quant_scale is None"),
            ]
        if template not in ("custom", "msd"):
            rows.append((not f.deterministic, "deterministic is False, for it adds atomically"))
        rows += _OWN_NEEDS[template](f, chip)
    return (text for holds, text in rows if not holds)


Needs = list[tuple[bool, str]]


def _split_k_needs(f: CallTraits, _: Chip) -> Needs:
    return [
        (f.x == "bfloat16", "x is bfloat16"),
        (f.weight == "int8", "weight is int8"),
        (not f.is_nz, "weight is ND"),
        (not f.trans_weight, "weight is not transposed"),
        (f.scaling == "group" and f.group_size == 64, "antiquant_group_size is 64"),
        (f.has_offset, "antiquant_offset is given"),
        (not f.has_bias, "bias is None"),
        # 1024 columns of m fp32 rows fill the accumulator, L0C.
        (f.m <= 32, "m <= 32"),
        (f.k % 64 == 0 and f.n % 64 == 0, "k and n are multiples of 64"),
    ]


def _msd_group_needs(f: CallTraits, chip: Chip) -> Needs:
    sizes = (64,) if f.weight == "int8" else (64, 128)
    texts = " or ".join(map(str, sizes))
    rows = [
        (not f.trans_weight, "weight is not transposed"),
        (f.group_size in sizes, f"antiquant_group_size is {texts} for {f.weight}"),
        (f.m <= f.group_size / 8, f"m <= antiquant_group_size / 8 = {f.group_size / 8:g}"),
        (f.k <= 13952, "k <= 13952"),
        (f.n <= 2048 * chip.aic, f"n <= 2048 x {chip.aic} cube cores"),
        (f.group_size > 0 and f.k % f.group_size == 0, "k is a multiple of antiquant_group_size"),
        (f.n % 64 == 0, "n is a multiple of 64"),
    ]
    if all(holds for holds, _ in rows):
        # A of one core's whole k, and a double-buffered 2048 x group tile of B; the vendor asks
        # for int4 only, since the shapes that are listed for int8 all fit.
        a = align_up(4 * f.m, 32) // 2 if f.weight == "int4" else align_up(2 * f.m, 32)
        b = 2048 * f.group_size * (1 if f.weight == "int4" else 2)
        l1 = k_step(f, chip.aic) * a + b
        rows.append((l1 <= chip.l1_bytes, f"its {l1} bytes fit into L1, {chip.l1_bytes}"))
    return rows


def _msd_needs(f: CallTraits, _: Chip) -> Needs:
    if f.scaling == "channel":
        rows = [(f.k % 32 == 0 and f.n % 32 == 0, "k and n are multiples of 32")]
        if f.weight == "int4":
            rows += [
                (f.trans_weight, "weight is transposed"),
                (not f.is_nz, "weight is ND"),
            ]
        return rows
    return [
        (f.scaling == "group", "scales are per channel or per group"),
        (f.weight == "int4", "weight is int4"),
        (not f.trans_weight, "weight is not transposed"),
        (f.group_size in (64, 128), "antiquant_group_size is 64 or 128"),
        (f.m <= f.group_size / 8, f"m <= antiquant_group_size / 8 = {f.group_size / 8:g}"),
        (f.group_size > 0 and f.k % f.group_size == 0, "k is a multiple of antiquant_group_size"),
        (f.n % 64 == 0, "n is a multiple of 64"),
    ]


def _nz_splitk_needs(f: CallTraits, _: Chip) -> Needs:
    return [
        (f.scaling == "channel", "scales are per channel"),
        (f.is_nz and f.trans_weight, "weight is FRACTAL_NZ and transposed"),
    ]


def _custom_needs(f: CallTraits, _: Chip) -> Needs:
    if not (f.is_nz and f.scaling == "group"):
        return []
    return [
        (f.group_size in (64, 128), "antiquant_group_size is 64 or 128"),
        (f.k % f.group_size == 0, "k is a multiple of antiquant_group_size"),
        (f.k % 64 == 0 or f.n % 64 == 0, "k or n is a multiple of 64"),
        (not f.trans_weight, "weight is not transposed"),
    ]


def _fixpipe_needs(f: CallTraits) -> Needs:
    return [
        (f.is_packed, "antiquant_scale is int64"),
        (f.x == "float16" and not f.has_quant, "x and output are float16"),
        (f.weight == "int8" and f.trans_weight, "weight is int8 and transposed"),
        (not f.trans_x, "x is not transposed"),
        (f.scaling == "channel", "scales are per channel"),
        (f.m <= 96, "m <= 96"),
        (f.k % 64 == 0 and f.n % 64 == 0, "k and n are multiples of 64"),
    ]


_OWN_NEEDS: dict[str, Callable[[CallTraits, Chip], Needs]] = {
    "split_k": _split_k_needs,
    "msd_group": _msd_group_needs,
    "msd": _msd_needs,
    "nz_splitk": _nz_splitk_needs,
    "custom": _custom_needs,
}
