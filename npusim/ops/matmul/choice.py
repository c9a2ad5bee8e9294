"""The vendor's kernel that runs a call, and why.

=====================  =============================================================================
template               what it does
=====================  =============================================================================
bl1_aligned_output     MatMulV3: x2 stays in L1, vector cores write the ragged rows of the output
al1_split_k            MatMulV3: few rows, with long chunks of k in L1, summed in memory
bl1_full_load          MatMulV3: x2 stays in L1
single_core_split_k    MatMulV3: each core sums chunks of k in global memory, in fp32
deterministic_split_k  MatMulV3: cores share k, vector cores add their sums in core order
v2                     MatMulV2: blocks of the output, all of k summed in L0C
nd2nz                  MatMulV3: base, after vector cores have converted operands to FRACTAL_NZ
base                   MatMulV3's base kernel: the same with other tiles
=====================  =============================================================================

Sources: ops-nn@e5c3fa9 matmul/mat_mul_v3, matmul_v3_base_tiling.cpp for the predicates,
op_api/matmul_util.cpp and aclnn_matmul.cpp for MatMulV2 or MatMulV3, a decision that a closed
library makes for most shapes; whether a product has enough k to be split is computed first and
passed to it. Its decisions are assumed from the kernels of the measured products: an x2 stored as
(n, k) in ND goes to MatMulV2, unless it is listed in public or has enough k, and so does FRACTAL_NZ
if one of m, k and n is below 1024 (production lists of vllm-ascend on Atlas A3 have MatMulV2 at 608
and 768, and MatMulV3 from 1600 on), and several matrices of ND (the same lists have BatchMatMulV2
for (64, 256, 192) by (64, 192, 512) and (16, 5, 128) by (16, 128, 512), and products of 128 batches
with k of 512 are as fast as their loads, which MatMulV3 would issue late); everything else goes to
MatMulV3, and on chips of 20 cores also large x2 in ND, in either order (a profile of training on a
910B4 has MatMulV3 from 1024 on; Ascend/msinsight@4e16fca1, test/st/level2). So do products with
float32 output, by the published rule; that its kernels which split k are then not used is assumed.
That it runs float32 matrices is assumed, too: for MatMulV2 no tiles are known.

The vendor's predicates mix a kernel's requirements with policy. Which are requirements (`unmet`) is
our reading of what the kernels load, where they store it, and what they write.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from npusim.data.integers import ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.ops._kernel_choice import require_able, require_named
from npusim.ops.matmul import k_split
from npusim.ops.matmul.traits import LONGEST_ROW, SHORT_ROWS_BYTES, CallTraits, Chip, turned

Template = Literal[
    "bl1_aligned_output",
    "al1_split_k",
    "bl1_full_load",
    "single_core_split_k",
    "deterministic_split_k",
    "v2",
    "nd2nz",
    "base",
]
"""Names as callers use them, in the vendor's order of priority."""

LARGE = 1024
"""m, k and n from which on MatMulV3 runs an x2 in FRACTAL_NZ."""
FEW_CORES = 20
"""Cube cores of a chip that uses MatMulV3 for such large products even if x2 is (n, k)."""
WIDE = ("bl1_full_load", "nd2nz", "base")
"""Kernels that store float32 sums unrounded; that the others do not is assumed."""
SINGLE = ("nd2nz", "base")
"""Kernels that multiply float32; that MatMulV2 and those which split k do not is assumed."""
MOST_K = 256
"""k that fits into one load, of x1 and of x2."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A template, and a sentence that says why."""

    template: Template
    reason: str


def choose(traits: CallTraits, spec: DeviceSpec | None = None, template: object = None) -> Choice:
    """Choose as the vendor does, or use *template*; raises OpError if it cannot run."""
    chip = Chip.of(spec)
    names: tuple[Template, ...] = ("base",) if chip.arch == "2002" else get_args(Template)
    require_named("matmul", template, names, arch=chip.arch)
    for name in names:
        if name == template:
            require_able("matmul", name, unmet(name, traits, chip))
            return Choice(name, "asked for")
    able = (name for name in names if not any(unmet(name, traits, chip)))
    reasons = ((name, _reason(name, traits, chip)) for name in able)
    return next(Choice(name, reason) for name, reason in reasons if reason is not None)


def unmet(template: str, f: CallTraits, chip: Chip) -> Iterator[str]:
    """The requirements of *template* that the call does not meet, in words."""
    ragged = "rows of x1 or x2 in ND are ragged: no multiples of 256 bytes"
    if f.is_single:
        ragged = f"rows of x1 or x2 have more than {LONGEST_ROW} elements"
    few_k = ("bl1_full_load", "bl1_aligned_output")
    rows = (
        (template not in WIDE, not f.is_wide, "output_dtype is that of x1"),
        (template not in SINGLE, not f.is_single, "x1 is float16 or bfloat16"),
        (
            template not in ("v2", "base"),
            f.matrices == 1,
            "x2 is one matrix, and x1 is one or lies as (..., m, k)",
        ),
        (template == "nd2nz", bool(turned(f, chip)), ragged),
        (template == "al1_split_k", f.m <= k_split.MOST_ROWS, f"m <= {k_split.MOST_ROWS}"),
        (template == "al1_split_k", not f.trans_x1, "x1 is not transposed"),
        (template in few_k, f.k <= MOST_K, f"k <= {MOST_K}"),
        (template == "bl1_aligned_output", f.n < 256, "n < 256"),
    )
    return (text for matters, holds, text in rows if matters and not holds)


# ---- the vendor's preferences ----


def _reason(template: Template, f: CallTraits, chip: Chip) -> str | None:
    """Why the vendor uses *template*, if no earlier one was chosen; or None."""
    is_deep = _is_deep(f)
    is_known = _is_listed(f) or _is_large(f, chip)
    is_of_v2 = f.trans_x2 and not (f.is_nz or is_deep or f.is_wide or is_known)
    match template:
        case "v2":
            return _reason_for_v2(f, chip)
        case "base" if chip.arch == "2002":
            return "the only kernel of Atlas inference"
        case "base" if f.is_wide or f.is_single:
            return "the output is float32"
        case "base":
            if f.trans_x2 and not f.is_nz:
                return f"none of m, k and n is below {LARGE}, on {chip.aic} cores"
            return "x2 is FRACTAL_NZ" if f.is_nz else "x2 lies as (k, n)"
        case _ if is_of_v2:
            return None
        case "bl1_aligned_output" if _is_bound_by_stores(f, chip):
            return f"m = {f.m} is long, k = {f.k} <= 256, and rows of n = {f.n} are ragged"
        case "bl1_full_load" if _is_tall(f, chip):
            return f"m = {f.m} is long, k = {f.k} <= 256, and n = {f.n} is narrow"
        case "al1_split_k" if _is_long_and_wide(f):
            return f"m = {f.m} <= 256, and k = {f.k} and n = {f.n} are long"
        case "single_core_split_k" if _adds_in_memory(f, is_deep) and _fills_cores(f, chip):
            return f"k = {f.k} is cut, and the cores share m = {f.m} and n = {f.n}"
        case "deterministic_split_k" if is_deep and _leaves_cores(f, chip):
            return f"k = {f.k} is long, and m = {f.m} and n = {f.n} occupy few cores"
        case "nd2nz":
            return f"rows of {' and '.join(turned(f, chip))} are turned faster by vector cores"
    return None


def _reason_for_v2(f: CallTraits, chip: Chip) -> str | None:
    if f.is_wide or _is_large(f, chip):
        return None
    least = min(f.m, f.k, f.n)
    if f.is_nz:
        small = f"x2 is FRACTAL_NZ, and the least of m, k and n, {least}, is below {LARGE}"
        return small if least < LARGE else None
    if f.matrices > 1:
        return "x2 is several matrices in ND"
    return "x2 lies as (n, k)" if f.trans_x2 else None


def _is_deep(f: CallTraits) -> bool:
    """Whether aclnn requests a kernel that can split k (matmul_util.cpp, supportSplitK)."""
    largest = max(f.m, f.n)
    is_large = f.m * f.n * f.k >= 8 * 10**9 or largest >= 50 * min(f.m, f.n)
    is_half = f.element == "float16" and f.k >= 8 * largest and not (f.is_nz and is_large)
    return is_half or (f.k >= 27392 and f.k >= 2 * largest)


def _is_bound_by_stores(f: CallTraits, chip: Chip) -> bool:
    """Whether bl1_aligned_output is preferred.

    That it and bl1_full_load read x1 unconverted, even where base would convert it, is assumed.
    """
    return (
        f.n < 256
        and f.n % 128 != 0
        and 128 % f.n != 0
        and f.k <= 256
        and (f.k % 128 == 0 or f.k < 128)
        and f.m >= 512 * chip.aic
        and not f.trans_x1
        and not (f.n < 16 and f.k < 16)
    )


def _is_tall(f: CallTraits, chip: Chip) -> bool:
    """Whether bl1_full_load is preferred: n is one of the listed sizes in bytes, as elements."""
    is_long = f.m > 16 * max(f.k, f.n) and f.k <= 256
    return is_long and f.n in SHORT_ROWS_BYTES and "x2" not in turned(f, chip)


def _is_listed(f: CallTraits) -> bool:
    """Whether aclnn_matmul.cpp itself selects MatMulV3: few rows, long k and n."""
    return (
        not (f.is_nz or f.trans_x1)
        and f.m <= 256
        and 9216 <= f.k <= 20480
        and 9216 < f.n <= 32768
        and f.k % 128 == f.n % 128 == 0
    )


def _is_large(f: CallTraits, chip: Chip) -> bool:
    """Whether a chip of fewer cores uses MatMulV3 for a product whose x2 is (n, k)."""
    is_turned = f.trans_x2 and not (f.trans_x1 or f.is_nz)
    return is_turned and chip.aic <= FEW_CORES and min(f.m, f.k, f.n) >= LARGE


def _is_long_and_wide(f: CallTraits) -> bool:
    """Whether al1_split_k is preferred."""
    is_whole = not f.is_nz and f.k % 128 == 0 and f.n % 128 == 0
    is_long = 9216 <= f.k <= 20480 and 6144 <= f.n < 65536
    is_wide = 6144 <= f.k < 65536 and 6144 <= f.n < 16384
    return is_whole and (is_long or is_wide)


def _adds_in_memory(f: CallTraits, is_deep: bool) -> bool:
    """Whether single_core_split_k is preferred: k is long.

    k = 1536 with m or n = 384 is left out, since its rectangles are refused again. Large outputs
    also use it if no L2 tiles are found; but the usual tiles of 4 x 6 blocks count as found, as the
    vendor's tiling of 4096 cubed in 8 x 3 of them shows, so no output is large enough.
    """
    is_turned = f.trans_x1 and not f.trans_x2 and f.k >= 11000 and 0 in (f.m % 8192, f.n % 8192)
    is_strided = f.trans_x2 and f.k % 16384 == 0 and all(1280 <= x <= 8192 for x in (f.m, f.n))
    return is_deep and (f.k >= 27392 or is_turned or is_strided)


def _fills_cores(f: CallTraits, chip: Chip) -> bool:
    """Whether the rectangles of single_core_split_k occupy the cores."""
    cut = k_split.rectangles(f, chip)
    area, most = f.m * f.n, cut.rows * cut.columns * chip.aic
    if cut.columns < 512 or 10 * area < 7 * most:
        return False
    is_middling = f.n % k_split.BASE == 0 and 896 <= f.n <= 2048
    return not is_middling or (cut.columns > 640 and 100 * area >= 85 * most)


def _leaves_cores(f: CallTraits, chip: Chip) -> bool:
    """Whether deterministic_split_k is preferred; the exceptions for k >= 27392 are left out."""
    blocks = ceil_div(f.m, k_split.BASE) * ceil_div(f.n, k_split.BASE)
    is_plain_by_turned = not f.trans_x1 and f.trans_x2
    is_turned_by_plain = f.trans_x1 and not f.trans_x2
    return (
        f.k >= 27392
        or (f.k >= 24 * k_split.STRIP and 2 * blocks < chip.aic and not is_plain_by_turned)
        or (is_turned_by_plain and max(f.m, f.n) <= 256 and 1000 <= f.k <= 4608)
    )
