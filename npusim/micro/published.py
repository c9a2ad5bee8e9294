"""Kernels whose times are published, as far as the publication says what they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import NamedTuple

from npusim.chip import L2State
from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8, INT32
from npusim.devices.schema import DeviceSpec
from npusim.kernel.cube import BaseTile
from npusim.kernel.launch import Kernel
from npusim.micro import broadcast
from npusim.micro.add import add
from npusim.micro.copies import To, read, read_alike
from npusim.micro.elementwise import cast, maximum
from npusim.micro.product import product
from npusim.micro.reorder import reorder

__all__ = ["TABLES", "Row", "Table", "find"]


class Row(NamedTuple):
    """A kernel and the time published of it."""

    id: str
    """Its row among the measured times; empty for kernels that are named by their shape."""
    variant: str
    measured_us: float
    write: Callable[[DeviceSpec], Kernel]


class Table(NamedTuple):
    """Rows of one source, measured on one chip."""

    title: str
    device: str
    l2: L2State
    rows: tuple[Row, ...]


SQUARE = 8192 * 8192
WHOLE, ODD, SMALL = (12288, 12288), (12288, 12287), (6144, 512)

# mirror-cann/asc-devkit@82b89a1, examples/01_simd_cpp_api/05_best_practices: Task Duration.
ADD = Table(
    "Add of 8192 x 8192 fp16 (asc-devkit, 00_vector_compute/add_high_performance)",
    "ascend910b1",
    "repeat",
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
    "repeat",
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
    "repeat",
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


# The example switches the L2 off for these four (CACHE_MODE_DISABLE in data_copy_ub.h and
# data_copy_l1.h). Where a staggered core starts is assumed.
ALIKE = Table(
    "All cores read the same 6144 x 512 fp16, past the L2 (asc-devkit, 04_memory_access/data_copy)",
    "ascend910b1",
    "repeat",
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
    "repeat",
    (
        Row(
            "m0828", "columns 144 blocks apart", 151.42, lambda s: reorder(s, 8192, 8192, 144, 144)
        ),
        Row("m0833", "columns 145 blocks apart", 144.0, lambda s: reorder(s, 8192, 8192, 144, 145)),
    ),
)


def _product(tile: BaseTile, cores_m: int, cores_n: int) -> Callable[[DeviceSpec], Kernel]:
    return lambda s: product(s, (8192, 8192, 8192), tile, (cores_m, cores_n))


# Its case 0, tiles of 64 x 64 x 64 on one core, would be 30 million micro-ops. Cases 6 to 8 (L2
# tiles, tiling known to the compiler, the flag between cube and fixpipe) and the sizes of the big
# packets of case 4 are not published.
PRODUCT = Table(
    "Product of 8192 x 8192 x 8192 fp16 (asc-devkit, 01_matrix_compute/matmul_high_performance)",
    "ascend910b1",
    "repeat",
    (
        Row(
            "m0699",
            "1 core, L1 of one piece",
            249467.08,
            _product(BaseTile(128, 256, 64, depth_a=1, depth_b=1), 1, 1),
        ),
        Row(
            "m0706",
            "2 x 12 cores",
            12541.22,
            _product(BaseTile(128, 256, 64, depth_a=1, depth_b=1), 2, 12),
        ),
        Row(
            "m0713",
            "4 x 6 cores",
            12283.84,
            _product(BaseTile(128, 256, 64, depth_a=1, depth_b=1), 4, 6),
        ),
        Row(
            "m0720",
            "big packets, 4 and 4 pieces twice",
            5039.86,
            _product(BaseTile(128, 256, 64, 4, 4), 4, 6),
        ),
        Row("m0727", "8 and 4 pieces twice", 4156.76, _product(BaseTile(128, 256, 64, 8, 4), 4, 6)),
    ),
)


def _casts() -> Iterator[Row]:
    measured = {
        (1, 8): 1.13,
        (3, 128): 1.19,
        (256,): 1.32,
        (4096,): 1.76,
        (114, 128): 3.65,
        (256, 128): 5.87,
        (1, 154880): 7.43,
        (16, 154880): 9.47,
    }
    for shape, took in measured.items():
        count = prod(shape)
        yield Row("", _times(shape), took, partial(cast, count=count, src=BFLOAT16, dst=FLOAT32))


def _maxima() -> Iterator[Row]:
    measured = {
        (4096, 4096): (BFLOAT16, 66.02),
        (8192, 16384): (INT8, 316.83),
        (1023, 1023): (FLOAT16, 5.7),
        (1009, 1021): (FLOAT32, 9.16),
        (1537, 769): (BFLOAT16, 7.44),
        (363, 367, 373): (FLOAT16, 188.04),
        (1000007,): (FLOAT32, 8.82),
        (3, 7, 11, 13, 1013): (FLOAT32, 20.62),
    }
    for shape, (dtype, took) in measured.items():
        write = partial(maximum, count=prod(shape), dtype=dtype)
        yield Row("", f"{_times(shape)} {dtype.name}", took, write)


def _broadcast_maxima() -> Iterator[Row]:
    measured = {
        ((2, 3, 5, 1024, 256), (1024, 1)): (INT32, 39.06),
        ((255, 8193), (8193,)): (FLOAT16, 9.74),
        ((2, 3, 17, 1024, 101), (1024, 1)): (FLOAT32, 133.06),
        ((2049, 513), (513,)): (FLOAT32, 10.78),
    }
    for (shape, other), (dtype, took) in measured.items():
        write = partial(broadcast.maximum, shape=shape, other=other, dtype=dtype)
        yield Row("", f"{_times(shape)} and {_times(other)} {dtype.name}", took, write)


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape)


# hudingyi688/aiconfigurator-npu@11bc0ae docs/profiler_alignment/groundtruth/by_op_family.csv:
# median Task Duration; the source does not say what bfloat16 is cast to.
CASTS = Table(
    "Cast of bfloat16 to float32 (aiconfigurator-npu)", "Atlas A3", "repeat", (*_casts(),)
)
# hicann/cann-bench@d59d44c tasks/metadata/910b2.json: Task Duration. int64 is left out: how the
# vendor's kernel compares it is closed.
MAXIMA = Table("Maximum (cann-bench)", "ascend910b2", "repeat", (*_maxima(), *_broadcast_maxima()))

TABLES = (ADD, TO_UB, TO_L1, ALIKE, REORDER, CASTS, MAXIMA, PRODUCT)


def find(row: str) -> tuple[Table, Row] | None:
    """The table and the row of that id, if it is here."""
    for table in TABLES:
        for found in table.rows:
            if found.id == row:
                return table, found
    return None
