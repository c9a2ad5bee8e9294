"""The properties of a call and of a chip that decide the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from npusim.devices.schema import DeviceSpec


@dataclass(frozen=True, slots=True)
class CallTraits:
    """The properties of a call that matter for the choice: x1 `(m, k)`, x2 `(k, n)`."""

    m: int
    k: int
    n: int
    element: str = "float16"
    """float16, bfloat16 or float32."""
    matrices: int = 1
    """Number of matrices in the output."""
    trans_x1: bool = False
    """Whether x1 is stored as (k, m)."""
    trans_x2: bool = False
    """Whether x2 is stored as (n, k)."""
    is_nz: bool = False
    """Whether x2 is FRACTAL_NZ."""
    has_bias: bool = False
    is_wide: bool = False
    """Whether sums of 16-bit elements are output as float32."""

    @property
    def is_single(self) -> bool:
        """Whether the matrices are of float32."""
        return self.element == "float32"


@dataclass(frozen=True, slots=True)
class Chip:
    """The properties of a device that matter for the choice."""

    arch: str = "2201"
    aic: int = 24
    l1_bytes: int = 524288

    @staticmethod
    def of(spec: DeviceSpec | None) -> Chip:
        """Those of *spec*; None is an Atlas A2 with 24 cube cores."""
        if spec is None:
            return Chip()
        if spec.arch == "2002":
            return Chip("2002")
        core = spec.cores["aic"]
        return Chip(spec.arch, core.count, core.l1_bytes or 0)


# ---- operands that vector cores convert to FRACTAL_NZ before MatMulV3 multiplies them ----
#
# mte2 also converts rows to NZ on their way into L1, slowly if they are ragged or have an
# unfavourable pitch for the banks of memory (ops-nn@e5c3fa9 mat_mul_v3, matmul_v3_base_tiling.cpp).

Side = Literal["x1", "x2"]
WHOLE_BYTES = 256
SHORT_ROWS_BYTES = (32, 64, 96, 128, 160, 192, 224, 256, 384)
"""Rows that mte2 converts well."""
LONGEST_ROW = 65535
"""Largest row pitch of mte2 in elements."""
MANY_ROWS = 8192
"""From this many on narrow rows are converted by vector cores."""


def turned(f: CallTraits, chip: Chip) -> tuple[Side, ...]:
    """The operands that are converted, in this order; none in FRACTAL_NZ.

    For float32 only those with a row pitch too large for mte2.
    """
    inner_a, outer_a = (f.m, f.k) if f.trans_x1 else (f.k, f.m)
    inner_b, outer_b = (f.k, f.n) if f.trans_x2 else (f.n, f.k)
    found: list[Side] = []
    if f.is_single:
        sides: tuple[tuple[Side, int], ...] = (("x1", inner_a), ("x2", inner_b))
        return tuple(side for side, inner in sides if inner > LONGEST_ROW)
    if _is_slow(inner_a, outer_a):
        found.append("x1")
    if not f.is_nz and (_is_slow(inner_b, outer_b) or conflicts(f, chip)):
        found.append("x2")
    return tuple(found)


def _is_slow(inner: int, outer: int) -> bool:
    """Whether mte2 is slow to convert *outer* rows of *inner* 16-bit elements."""
    row_bytes = 2 * inner
    if row_bytes in SHORT_ROWS_BYTES:
        # 32 bytes are one block; the other sizes still count as narrow.
        return row_bytes > 32 and _is_narrow(inner, outer)
    return row_bytes % WHOLE_BYTES != 0 or inner > LONGEST_ROW or _is_narrow(inner, outer)


def _is_narrow(inner: int, outer: int) -> bool:
    row_bytes = 2 * inner
    if outer <= MANY_ROWS or inner <= 1 or row_bytes == 32:
        return False
    return (
        row_bytes <= 192
        or (row_bytes <= 384 and inner % 2 == 0)
        or (row_bytes <= 512 and inner % 4 == 0)
    )


def conflicts(f: CallTraits, chip: Chip) -> bool:
    """Whether rows of x2 fall into the same banks of memory, in the two cases that are listed."""
    if f.trans_x2:
        return f.k == 16384 and 4096 <= f.m <= 4480 and f.n >= 7168 and chip.aic == 24
    many_rows = f.m >= 4096 if chip.aic == 24 else f.m > 4096
    return f.n % 16384 == 0 and many_rows and f.k >= 6656
