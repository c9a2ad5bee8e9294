"""Copies into UB and L1, additions, and ND to Nz: the vendor's examples of memory access."""

from __future__ import annotations

from collections.abc import Callable

from npusim.devices.schema import DeviceSpec
from npusim.kernel.launch import Kernel
from npusim.micro.add import add
from npusim.micro.copies import To, read, read_alike
from npusim.micro.published.rows import Row, Table
from npusim.micro.reorder import reorder

__all__ = ["ADD", "ALIKE", "REORDER", "TO_L1", "TO_UB"]

WHOLE, ODD, SMALL = (12288, 12288), (12288, 12287), (6144, 512)
SQUARE = 8192 * 8192

# mirror-cann/asc-devkit@82b89a1, examples/01_simd_cpp_api/05_best_practices: Task Duration.
ADD = Table(
    "Add of 8192 x 8192 fp16 (asc-devkit, 00_vector_compute/add_high_performance)",
    "ascend910b1",
    "cold",
    (
        Row(
            "m0654",
            "1 core, scalar",
            1239689.1,
            lambda s: add(s, SQUARE, 4096, cores=1, scalar=True),
        ),
        Row("m0658", "1 core, tiles of 4096", 6909.6, lambda s: add(s, SQUARE, 4096, cores=1)),
        Row("m0663", "48 cores, tiles of 4096", 306.58, lambda s: add(s, SQUARE, 4096)),
        Row("m0669", "48 cores, tiles of 16384", 268.5, lambda s: add(s, SQUARE, 16384)),
        Row(
            "m0675",
            "and a double buffer",
            264.02,
            lambda s: add(s, SQUARE, 16384, double_buffered=True),
        ),
        Row(
            "m0680",
            "and inputs past the L2",
            187.68,
            lambda s: add(s, SQUARE, 16384, double_buffered=True, bypass=True),
        ),
        Row(
            "m0685",
            "and tiles of 16256, no bank conflict",
            184.52,
            lambda s: add(s, SQUARE, 16256, double_buffered=True, bypass=True),
        ),
    ),
)
TO_UB = Table(
    "Copies of 12288 x 12288 fp16 into UB (asc-devkit, 04_memory_access/data_copy)",
    "ascend910b1",
    "cold",
    (
        Row("m0813", "tiles of 1 x 64", 564.84, lambda s: read(s, WHOLE, (1, 64))),
        Row("m0814", "tiles of 64 x 64", 233.54, lambda s: read(s, WHOLE, (64, 64))),
        Row("m0815", "tiles of 64 x 1024", 215.82, lambda s: read(s, WHOLE, (64, 1024))),
        Row("m0816", "rows of 12287", 275.3, lambda s: read(s, ODD, (64, 1024))),
        Row("m0817", "four times", 828.06, lambda s: read(s, WHOLE, (64, 1024), times=4)),
        Row(
            "m0818",
            "each of 4 slices four times",
            365.74,
            lambda s: read(s, WHOLE, (64, 1024), times=4, slices=4),
        ),
    ),
)
TO_L1 = Table(
    "Copies of 12288 x 12288 fp16 into L1, ND to Nz (asc-devkit, 04_memory_access/data_copy)",
    "ascend910b1",
    "cold",
    (
        Row("m0821", "tiles of 64 x 64", 300.7, lambda s: read(s, WHOLE, (64, 64), "l1")),
        Row("m0822", "tiles of 64 x 256", 230.24, lambda s: read(s, WHOLE, (64, 256), "l1")),
        Row("m0823", "rows of 12287", 438.76, lambda s: read(s, ODD, (64, 256), "l1")),
        Row("m0824", "four times", 899.34, lambda s: read(s, WHOLE, (64, 256), "l1", times=4)),
        Row(
            "m0825",
            "each of 4 slices four times",
            414.96,
            lambda s: read(s, WHOLE, (64, 256), "l1", times=4, slices=4),
        ),
    ),
)


def _alike(to: To, tile: tuple[int, int], staggered: bool) -> Callable[[DeviceSpec], Kernel]:
    return lambda s: read_alike(s, SMALL, tile, to, staggered=staggered, bypass=True)


# The example disables the L2 for these four (CACHE_MODE_DISABLE in data_copy_ub.h and
# data_copy_l1.h). Where a staggered core starts is assumed.
ALIKE = Table(
    "All cores read the same 6144 x 512 fp16, past the L2 (asc-devkit, 04_memory_access/data_copy)",
    "ascend910b1",
    "cold",
    (
        Row("m0819", "into UB", 539.42, _alike("ub", (128, 64), False)),
        Row("m0820", "into UB, staggered", 328.88, _alike("ub", (128, 64), True)),
        Row("m0826", "into L1", 278.56, _alike("l1", (256, 64), False)),
        Row("m0827", "into L1, staggered", 221.34, _alike("l1", (256, 64), True)),
    ),
)
REORDER = Table(
    "ND to Nz of 8192 x 8192 fp16 by vector cores (asc-devkit, 04_memory_access/"
    "bank_conflict_nd2nz)",
    "ascend910b1",
    "cold",
    (
        Row(
            "m0828", "columns 144 blocks apart", 151.42, lambda s: reorder(s, 8192, 8192, 144, 144)
        ),
        Row("m0833", "columns 145 blocks apart", 144.0, lambda s: reorder(s, 8192, 8192, 144, 145)),
    ),
)
