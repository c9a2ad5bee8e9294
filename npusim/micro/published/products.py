"""Products of fp16 matrices: two examples of the vendor, and its tuning guide.

What their pages leave open is assumed:

* A tile that is not given is 128 x 256 x 64, which the guide recommends.
* Norm holds one piece of an operand in L1, as the profiles of the first example show; MDL holds two
  of four steps of k each. A page that names neither uses Norm, the API's default, except those on
  the L2, whose times single pieces cannot reach.
* An x2 of one row of tiles is (k, n), the API's default: as (n, k), single pieces of k would be
  loaded in rows of 128 bytes, half as slow again as Norm was measured (m0845).
* A grid that is not given splits the tiles evenly, into rectangles as square as possible.
* The output is split into the fewest parts for which the L2 holds a part and its operands.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

from npusim.data.dtypes import FLOAT32
from npusim.kernel.matmul import BaseTile
from npusim.micro.product import Plan, Shape, product
from npusim.micro.published.rows import Row, Table

__all__ = ["PRODUCTS"]

NORM, MDL = BaseTile(128, 256, 64, depth_a=1, depth_b=1), BaseTile(128, 256, 64, 4, 4)
DEEP = BaseTile(128, 256, 64, 8, 4)
"""L1 is full: 16 and 8 steps of k in two pieces each."""
SMALL = BaseTile(64, 64, 256, depth_a=1, depth_b=1)

WHOLE = Plan(tile=DEEP, grid=(4, 6))
QUARTERS = replace(WHOLE, l2_tiles=(2, 2))
"""67 MB of each operand and 34 MB of output at a time, instead of 403."""
LITTLE = Plan(tile=replace(NORM, m=16, n=16), transposed_b=False)
UNIT_FLAG = replace(QUARTERS, unit_flag=True)
SPREAD = Plan(tile=MDL, grid=(1, 24), transposed_b=False)
NARROW = replace(SPREAD, tile=replace(MDL, n=128))
PLAIN = replace(SPREAD, tile=NORM)
TWICE = Plan(tile=MDL, grid=(12, 2))
SHARED = Plan(tile=MDL, grid=(6, 4))
"""Four cores load the same rows of x1, six the same of x2."""
CUBE: Shape = (8192, 8192, 8192)
LONG, THIN, TALL = (128, 30720, 1024), (128, 30720, 64), (30720, 4096, 1024)


def _row(
    span: Literal["task", "core"],
    id_: str,
    variant: str,
    measured_us: float,
    shape: Shape,
    plan: Plan,
    reads_tiling: bool = True,
) -> Row:
    write = partial(product, shape=shape, plan=plan)
    return Row(id_, variant, measured_us, write, span, reads_tiling)


_task, _core = partial(_row, "task"), partial(_row, "core")

# mirror-cann/asc-devkit@82b89a1, examples/01_simd_cpp_api/05_best_practices: Task Duration. Case 0,
# tiles of 64 x 64 x 64 on one core, would be 30 million micro-ops; the sizes of the big packets of
# case 4 are not published. The scenarios of the basic API are assumed to be the same kernel.
EXAMPLES = Table(
    "Product of 8192 x 8192 x 8192 fp16 (asc-devkit, 01_matrix_compute/matmul_high_performance, "
    "matmul_basic_api_high_performance)",
    "ascend910b1",
    "cold",
    (
        _task("m0699", "1 core, L1 of one piece", 249467.08, CUBE, Plan(tile=NORM)),
        _task("m0706", "2 x 12 cores", 12541.22, CUBE, Plan(tile=NORM, grid=(2, 12))),
        _task("m0713", "4 x 6 cores", 12283.84, CUBE, Plan(tile=NORM, grid=(4, 6))),
        _task("m0720", "big packets, 4 and 4 steps", 5039.86, CUBE, Plan(tile=MDL, grid=(4, 6))),
        _task("m0727", "8 and 4 steps", 4156.76, CUBE, WHOLE),
        _task("m0734", "and quarters for the L2", 4088.36, CUBE, QUARTERS),
        _task("m0741", "and a constant tiling", 4053.44, CUBE, QUARTERS, False),
        _task(
            "m0748", "and the unit flag", 4012.44, CUBE, replace(QUARTERS, unit_flag=True), False
        ),
        _task("m0755", "basic API", 4121.16, CUBE, WHOLE, False),
        _task("m0762", "basic API, quarters for the L2", 4081.64, CUBE, QUARTERS, False),
    ),
)

# mirror-cann/asc-devkit@82b89a1, docs/zh/guide, the pages on the Matmul API. Loads ahead of need
# (m0854) are what queues in L1 do here anyway. Left out: a B that two vector cores share (m0859),
# whose schedule is not known well enough; split k (m0850), whose cores add to an output that
# another kernel has cleared; ND to Nz by vector cores (m0856).
GUIDE = Table(
    "Products of fp16 (asc-devkit, docs/zh/guide)",
    "ascend910b1",
    "cold",
    (
        _task(
            "m0838",
            "4096 x 5120 x 4096 to fp32, 4 cores",
            12045.0,
            (4096, 5120, 4096),
            Plan(tile=SMALL, grid=(2, 2), dtype=FLOAT32),
        ),
        _task(
            "m0839",
            "4096 x 5120 x 4096 to fp32, 20 cores",
            2532.0,
            (4096, 5120, 4096),
            Plan(tile=SMALL, grid=(4, 5), dtype=FLOAT32),
        ),
        _core("m0843", "128 x 30720 x 64", 10.62, THIN, PLAIN),
        _core("m0844", "128 x 30720 x 64, constant tiling", 7.87, THIN, PLAIN, False),
        _core("m0845", "128 x 30720 x 1024, Norm", 83.68, LONG, PLAIN),
        _core("m0846", "128 x 30720 x 1024, MDL", 53.4, LONG, SPREAD),
        _core("m0847", "30720 x 4096 x 1024", 867.0, TALL, TWICE),
        _core("m0848", "and halves for the L2", 805.6, TALL, replace(TWICE, l2_tiles=(2, 1))),
        _core("m0849", "16 x 16 x 1024", 19.6, (16, 16, 1024), LITTLE),
        _core("m0851", "128 x 30720 x 64, 20 cores", 37.39, THIN, replace(PLAIN, grid=(1, 20))),
        _core(
            "m0852",
            "and the unit flag",
            34.66,
            THIN,
            replace(PLAIN, grid=(1, 20), unit_flag=True),
        ),
        _core("m0853", "128 x 24576 x 512", 30.88, (128, 24576, 512), NARROW),
        _core("m0854", "and loads ahead of need", 28.5, (128, 24576, 512), NARROW),
        _core(
            "m0855",
            "1024 x 4095 x 1024, rows of 8190 B",
            149.04,
            (1024, 4095, 1024),
            Plan(tile=NORM, grid=(4, 6), transposed_b=False),
        ),
        _task("m0857", "768 x 2048 x 6144", 98.72, (768, 2048, 6144), SHARED),
        _task(
            "m0858",
            "and staggered in k",
            85.68,
            (768, 2048, 6144),
            replace(SHARED, staggered=True),
        ),
    ),
)
PRODUCTS = (EXAMPLES, GUIDE)
