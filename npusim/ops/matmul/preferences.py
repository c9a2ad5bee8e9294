"""When the vendor prefers one of MatMulV3's special kernels to its base kernel.

Sources: ops-nn@e5c3fa9 matmul/mat_mul_v3, matmul_v3_base_tiling.cpp for the predicates, op_api/
matmul_util.cpp and aclnn_matmul.cpp for what reaches MatMulV3 at all. The latter hands most shapes
to a closed library; whether a product has k enough to be split is computed beforehand and handed
along. Assumed: beside those that are listed in public such products reach MatMulV3, and those whose
x2 does not lie as (n, k).
"""

from __future__ import annotations

from npusim.data.integers import ceil_div
from npusim.ops.matmul import k_split
from npusim.ops.matmul.nz_pass import SHORT_ROWS_BYTES, turned
from npusim.ops.matmul.traits import CallTraits, Chip

__all__ = ["preferred"]


def preferred(template: str, f: CallTraits, chip: Chip) -> str | None:
    """Why the vendor takes *template*, of which those before did not take the call; or None."""
    is_deep = _is_deep(f)
    if f.trans_x2 and not (f.is_nz or is_deep or f.is_wide or _is_listed(f)):
        return None
    match template:
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


def _is_deep(f: CallTraits) -> bool:
    """Whether aclnn asks for a kernel that can split k (matmul_util.cpp, supportSplitK)."""
    largest = max(f.m, f.n)
    is_large = f.m * f.n * f.k >= 8 * 10**9 or largest >= 50 * min(f.m, f.n)
    is_half = f.element == "float16" and f.k >= 8 * largest and not (f.is_nz and is_large)
    return is_half or (f.k >= 27392 and f.k >= 2 * largest)


def _is_bound_by_stores(f: CallTraits, chip: Chip) -> bool:
    """Whether bl1_aligned_output is wanted.

    That it and bl1_full_load take x1 as it lies, also where base would have it turned, is assumed.
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
    """Whether bl1_full_load is wanted: n is one of the listed numbers of bytes, as elements."""
    is_long = f.m > 16 * max(f.k, f.n) and f.k <= 256
    return is_long and f.n in SHORT_ROWS_BYTES and "x2" not in turned(f, chip)


def _is_listed(f: CallTraits) -> bool:
    """Whether aclnn_matmul.cpp itself sends the product to MatMulV3: few rows, long k and n."""
    return (
        not (f.is_nz or f.trans_x1)
        and f.m <= 256
        and 9216 <= f.k <= 20480
        and 9216 < f.n <= 32768
        and f.k % 128 == f.n % 128 == 0
    )


def _is_long_and_wide(f: CallTraits) -> bool:
    """Whether al1_split_k is wanted."""
    is_whole = not f.is_nz and f.k % 128 == 0 and f.n % 128 == 0
    is_long = 9216 <= f.k <= 20480 and 6144 <= f.n < 65536
    is_wide = 6144 <= f.k < 65536 and 6144 <= f.n < 16384
    return is_whole and (is_long or is_wide)


def _adds_in_memory(f: CallTraits, is_deep: bool) -> bool:
    """Whether single_core_split_k is wanted: k is long.

    Left out is k = 1536 with m or n = 384, whose rectangles are refused again. Large outputs take
    it too where no L2 tiles are found; but the usual tiles of 4 x 6 blocks count as found, as the
    vendor's tiling of 4096 cubed in 8 x 3 of them says, so that none is large enough.
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
    """Whether deterministic_split_k is wanted; the exceptions for k >= 27392 are left out."""
    blocks = ceil_div(f.m, k_split.BASE) * ceil_div(f.n, k_split.BASE)
    is_plain_by_turned = not f.trans_x1 and f.trans_x2
    is_turned_by_plain = f.trans_x1 and not f.trans_x2
    return (
        f.k >= 27392
        or (f.k >= 24 * k_split.STRIP and 2 * blocks < chip.aic and not is_plain_by_turned)
        or (is_turned_by_plain and max(f.m, f.n) <= 256 and 1000 <= f.k <= 4608)
    )
