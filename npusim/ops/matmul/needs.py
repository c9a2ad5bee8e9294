"""What each kernel cannot do without.

The vendor's predicates mix these needs with policy; which are needs is our reading of what the
kernels load, where they keep it, and what they write (ops-nn@e5c3fa9 matmul/mat_mul_v3).
"""

from __future__ import annotations

from collections.abc import Iterator

from npusim.ops.matmul.traits import CallTraits

__all__ = ["unmet"]


def unmet(template: str, f: CallTraits) -> Iterator[str]:
    """The needs of *template* that the call does not fulfil, in words."""
    rows: list[tuple[bool, str]] = []
    if template not in ("v2", "base"):
        rows.append((f.matrices == 1, "x1 and x2 make one matrix"))
    return (text for holds, text in rows if not holds)
