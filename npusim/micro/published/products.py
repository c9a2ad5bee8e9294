"""Products of fp16 matrices: two examples of the vendor's, and its tuning guide.

What their pages leave open is assumed:

* A tile that is not named is 128 x 256 x 64, which the guide advises.
* Norm keeps one piece of an operand in L1, as the profiles of the first example show; MDL keeps two
  of four steps of k each.
* A grid that is not named splits the tiles evenly, into rectangles as square as may be.
* The output is split into as few parts as let the L2 hold a part and the operands that it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from npusim.data.dtypes import FLOAT32
from npusim.devices.schema import DeviceSpec
from npusim.kernel.cube import BaseTile
from npusim.kernel.launch import Kernel
from npusim.micro.product import Plan, product
from npusim.micro.published.rows import Row, Table

__all__ = ["PRODUCTS"]

NORM, MDL = BaseTile(128, 256, 64, depth_a=1, depth_b=1), BaseTile(128, 256, 64, 4, 4)
DEEP = BaseTile(128, 256, 64, 8, 4)
"""L1 is full: 16 and 8 steps of k in two pieces each."""
SMALL = BaseTile(64, 64, 256, depth_a=1, depth_b=1)


def _product(m: int, n: int, k: int, plan: Plan) -> Callable[[DeviceSpec], Kernel]:
    return lambda s: product(s, (m, n, k), plan)


def _cubed(plan: Plan) -> Callable[[DeviceSpec], Kernel]:
    return _product(8192, 8192, 8192, plan)


WHOLE = Plan(tile=DEEP, grid=(4, 6))
QUARTERS = replace(WHOLE, l2_tiles=(2, 2))
"""67 MB of each operand and 34 MB of output at a time, not 403."""

# mirror-cann/asc-devkit@82b89a1, examples/01_simd_cpp_api/05_best_practices: Task Duration. Case 0,
# tiles of 64 x 64 x 64 on one core, would be 30 million micro-ops; the sizes of the big packets of
# case 4 are not published. The scenarios of the basic API are taken as the same kernel.
EXAMPLES = Table(
    "Product of 8192 x 8192 x 8192 fp16 (asc-devkit, 01_matrix_compute/matmul_high_performance, "
    "matmul_basic_api_high_performance)",
    "ascend910b1",
    "cold",
    (
        Row("m0699", "1 core, L1 of one piece", 249467.08, _cubed(Plan(tile=NORM)), "task", True),
        Row("m0706", "2 x 12 cores", 12541.22, _cubed(Plan(tile=NORM, grid=(2, 12))), "task", True),
        Row("m0713", "4 x 6 cores", 12283.84, _cubed(Plan(tile=NORM, grid=(4, 6))), "task", True),
        Row(
            "m0720",
            "big packets, 4 and 4 steps twice",
            5039.86,
            _cubed(Plan(tile=MDL, grid=(4, 6))),
            "task",
            True,
        ),
        Row("m0727", "8 and 4 steps twice", 4156.76, _cubed(WHOLE), "task", True),
        Row("m0734", "and quarters for the L2", 4088.36, _cubed(QUARTERS), "task", True),
        Row("m0741", "and a constant tiling", 4053.44, _cubed(QUARTERS)),
        Row("m0748", "and the unit flag", 4012.44, _cubed(replace(QUARTERS, unit_flag=True))),
        Row("m0755", "basic API", 4121.16, _cubed(WHOLE)),
        Row("m0762", "basic API, quarters for the L2", 4081.64, _cubed(QUARTERS)),
    ),
)

# mirror-cann/asc-devkit@82b89a1, docs/zh/guide, the pages on the Matmul API. Left out: MDL without
# loads ahead (m0853) and a B that two vector cores share (m0859), of whose schedules too little is
# told; split k (m0850), whose cores add to an output that another kernel has cleared; ND to Nz by
# vector cores (m0856).
LONG, THIN, TALL = (128, 30720, 1024), (128, 30720, 64), (30720, 4096, 1024)
TWICE = Plan(tile=MDL, grid=(12, 2))
SHARED = Plan(tile=MDL, grid=(6, 4))
GUIDE = Table(
    "Products of fp16 (asc-devkit, docs/zh/guide)",
    "ascend910b1",
    "cold",
    (
        Row(
            "m0838",
            "4096 x 5120 x 4096 to fp32, 4 cores",
            12045.0,
            _product(4096, 5120, 4096, Plan(tile=SMALL, grid=(2, 2), dtype=FLOAT32)),
            "task",
            True,
        ),
        Row(
            "m0839",
            "4096 x 5120 x 4096 to fp32, 20 cores",
            2532.0,
            _product(4096, 5120, 4096, Plan(tile=SMALL, grid=(4, 5), dtype=FLOAT32)),
            "task",
            True,
        ),
        Row(
            "m0843",
            "128 x 30720 x 64",
            10.62,
            _product(*THIN, Plan(tile=MDL, grid=(1, 24))),
            "core",
            True,
        ),
        Row(
            "m0844",
            "128 x 30720 x 64, constant tiling",
            7.87,
            _product(*THIN, Plan(tile=MDL, grid=(1, 24))),
            "core",
        ),
        Row(
            "m0845",
            "128 x 30720 x 1024, Norm",
            83.68,
            _product(*LONG, Plan(tile=NORM, grid=(1, 24))),
            "core",
            True,
        ),
        Row(
            "m0846",
            "128 x 30720 x 1024, MDL",
            53.4,
            _product(*LONG, Plan(tile=MDL, grid=(1, 24))),
            "core",
            True,
        ),
        Row(
            "m0847", "30720 x 4096 x 1024", 867.0, _product(30720, 4096, 1024, TWICE), "core", True
        ),
        Row(
            "m0848",
            "30720 x 4096 x 1024, halves for the L2",
            805.6,
            _product(*TALL, replace(TWICE, l2_tiles=(2, 1))),
            "core",
            True,
        ),
        Row(
            "m0849",
            "16 x 16 x 1024, 1 core",
            19.6,
            _product(16, 16, 1024, Plan(tile=replace(NORM, m=16, n=16))),
            "core",
            True,
        ),
        Row(
            "m0851",
            "128 x 30720 x 64, 20 cores",
            37.39,
            _product(*THIN, Plan(tile=MDL, grid=(1, 20))),
            "core",
            True,
        ),
        Row(
            "m0852",
            "128 x 30720 x 64, 20 cores, unit flag",
            34.66,
            _product(*THIN, Plan(tile=MDL, grid=(1, 20), unit_flag=True)),
            "core",
            True,
        ),
        Row(
            "m0854",
            "128 x 24576 x 512, loads ahead",
            28.5,
            _product(128, 24576, 512, Plan(tile=replace(MDL, n=128), grid=(1, 24))),
            "core",
            True,
        ),
        Row(
            "m0855",
            "1024 x 4095 x 1024, rows of 8190 B",
            149.04,
            _product(1024, 4095, 1024, Plan(tile=MDL, grid=(4, 6), transposed_b=False)),
            "core",
            True,
        ),
        Row(
            "m0857",
            "768 x 2048 x 6144, all from k = 0 on",
            98.72,
            _product(768, 2048, 6144, SHARED),
            "task",
            True,
        ),
        Row(
            "m0858",
            "768 x 2048 x 6144, staggered",
            85.68,
            _product(768, 2048, 6144, replace(SHARED, staggered=True)),
            "task",
            True,
        ),
    ),
)
PRODUCTS = (EXAMPLES, GUIDE)
