"""What each kernel cannot do without.

The vendor's predicates mix these needs with policy; which are needs is our reading of what the
kernels load, where they keep it, and what they write (ops-nn@e5c3fa9 matmul/mat_mul_v3).
"""

from __future__ import annotations

from collections.abc import Iterator

from npusim.ops.matmul.k_split import MOST_ROWS
from npusim.ops.matmul.nz_pass import LONGEST_ROW, turned
from npusim.ops.matmul.traits import CallTraits, Chip

__all__ = ["unmet"]

WIDE = ("bl1_full_load", "nd2nz", "base")
"""Kernels that store float32 sums as they are; that the others do not is assumed."""
SINGLE = ("nd2nz", "base")
"""Kernels that multiply float32; that MatMulV2 and those which cut k do not is assumed."""
MOST_K = 256
"""All of which is in one load, of x1 and of x2."""


def unmet(template: str, f: CallTraits, chip: Chip) -> Iterator[str]:
    """The needs of *template* that the call does not fulfil, in words."""
    rows: list[tuple[bool, str]] = []
    if template not in WIDE:
        rows.append((not f.is_wide, "output_dtype is that of x1"))
    if template not in SINGLE:
        rows.append((not f.is_single, "x1 is float16 or bfloat16"))
    if template not in ("v2", "base"):
        rows.append((f.matrices == 1, "x2 is one matrix, and x1 is one or lies as (..., m, k)"))
    if template == "nd2nz":
        text = "rows of x1 or x2 in ND are ragged: no multiples of 256 bytes"
        if f.is_single:
            text = f"rows of x1 or x2 have more than {LONGEST_ROW} numbers"
        rows.append((bool(turned(f, chip)), text))
    if template == "al1_split_k":
        rows += [
            (f.m <= MOST_ROWS, f"m <= {MOST_ROWS}"),
            (not f.trans_x1, "x1 is not transposed"),
        ]
    if template in ("bl1_full_load", "bl1_aligned_output"):
        rows.append((f.k <= MOST_K, f"k <= {MOST_K}"))
    if template == "bl1_aligned_output":
        rows.append((f.n < 256, "n < 256"))
    return (text for holds, text in rows if not holds)
