"""Which rows a core gets, and what room its kernel has.

No row is shared by cores, and none waits for another one.
"""

from __future__ import annotations

from npusim.data.dtypes import DType
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES

__all__ = [
    "CORES",
    "KEPT_BYTES",
    "UB_BYTES",
    "core_count",
    "rows_of_core",
    "ub_bytes_of",
    "whole_blocks",
]

CORES, UB_BYTES = 48, 196_352
"""Vector cores of Ascend910B2, and what their kernels may use of the unified buffer: 192 KiB less
256 bytes (platform_ascendc.cpp of the toolkit)."""

KEPT_BYTES = 1024
"""The vendor's tiling leaves this much of it alone, but for the dynamic quantisation."""


def core_count(spec: DeviceSpec) -> int:
    """Cores that the tiling counts on; the vector cores beside 310P's AI cores take no part.

    Assumed of 310P, as of other kernels there (asc-devkit, GetCoreNumAiv.md).
    """
    return spec.cores[spec.vector_kinds[0]].count


def ub_bytes_of(spec: DeviceSpec) -> int:
    """Bytes of the unified buffer that the tiling sees."""
    return spec.cores[spec.vector_kinds[0]].usable_bytes("ub")


def rows_of_core(rows: int, cores: int, unit: int = 1) -> tuple[int, ...]:
    """Rows of each core that is started: the same of all but the last, a multiple of *unit*.

    >>> rows_of_core(100, 48)[-2:], len(rows_of_core(100, 48))
    ((3, 1), 34)
    """
    each = align_up(ceil_div(rows, cores), unit)
    full, left = divmod(rows, each)
    return (each,) * full + ((left,) if left else ())


def whole_blocks(columns: int, element: DType) -> int:
    """*columns* of *element*, filled up to whole blocks of 32 bytes.

    >>> from npusim.data.dtypes import FLOAT16
    >>> whole_blocks(100, FLOAT16)
    112
    """
    return align_up(columns, BLOCK_BYTES * 8 // element.bits)
