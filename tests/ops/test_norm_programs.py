"""What the kernels of the RMS norms do with a row, instruction by instruction.

Counts are those of ops-nn@e5c3fa9 norm/*/op_kernel: how often a template goes over all of a row.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from npusim import TensorSpec, devices, ops
from npusim.isa import Fold, Load, MicroOp, ScalarAlu, ScalarLoad, Store, WholeReduce
from npusim.kernel.program import Program

COLUMNS = 4096
SPEC = devices.load("ascend910b2")


def program(op: str, rows: int, dtype: str, **more: Any) -> Program:
    """What the first core runs on Atlas A2."""
    operator = ops.load(op)
    x, gamma = TensorSpec((rows, COLUMNS), dtype), TensorSpec((COLUMNS,), dtype)
    args: tuple[Any, ...] = (x, gamma) if op == "npu_rms_norm" else (x, x, gamma)
    if op == "npu_add_rms_norm_quant":
        args += TensorSpec((COLUMNS,), "float32"), TensorSpec((COLUMNS,), "int32")
    problem = operator.check(SPEC, *args, **more)
    blocks = operator.build(SPEC, problem, operator.tile(SPEC, problem))
    return blocks[0].program


def whole_rows(ops: tuple[MicroOp, ...]) -> Counter[str]:
    """Vector micro-ops that go over all of a row, and the sums by lanes, by name."""
    found: Counter[str] = Counter()
    for op in ops:
        dst = getattr(op, "dst", None)
        is_row = op.pipe == "vector" and getattr(dst, "count", 0) == COLUMNS
        if is_row or isinstance(op, Fold):
            found[str(op).split(" ")[0].partition(".")[0]] += 1
    return found


# (48 rows: one a core)
@pytest.mark.parametrize(
    ("op", "dtype", "template", "expected"),
    [
        # Seven times over a row of 16 bits, besides the sum; of fp32 three times.
        ("npu_rms_norm", "float16", "normal", {"cast": 3, "mul": 2, "muls": 1}),
        ("npu_rms_norm", "float32", "normal", {"mul": 2, "muls": 1}),
        ("npu_add_rms_norm", "bfloat16", "single_n",
         {"cast": 8, "add": 1, "mul": 2, "muls": 2, "fold": 1}),
        ("npu_add_rms_norm", "float16", "single_n",
         {"cast": 2, "add": 1, "mul": 2, "muls": 2, "fold": 1}),
        ("npu_add_rms_norm", "float32", "single_n", {"add": 1, "mul": 2, "muls": 2, "fold": 1}),
        # The sum is not read back once it is rounded.
        ("npu_add_rms_norm", "bfloat16", "normal",
         {"cast": 7, "add": 1, "mul": 2, "muls": 2, "fold": 1}),
        ("npu_add_rms_norm", "float16", "multi_n",
         {"cast": 2, "add": 1, "mul": 2, "muls": 1, "fold": 1}),
        # Scales and zero points are fp32 once for all rows; three casts narrow to int8.
        ("npu_add_rms_norm_quant", "float16", "normal",
         {"cast": 6 + 1, "add": 2, "mul": 2, "muls": 2, "div": 1, "fold": 1}),
    ],
)  # fmt: skip
def test_how_often_a_row_is_gone_over(
    op: str, dtype: str, template: str, expected: dict[str, int]
) -> None:
    found = program(op, 48, dtype, template=template)
    if template == "multi_n":
        # Numbers of rows are applied by strides, 64 columns an instruction.
        by_strides = sum(str(each).startswith("mul ") for each in found.ops)
        assert by_strides == 2 + COLUMNS // 64
    assert whole_rows(found.ops) == expected


@pytest.mark.parametrize(("masked", "trips"), [(False, 3), (True, 2)])
def test_trips_to_the_scalar_unit(masked: bool, trips: int) -> None:
    """One for 1 / root, and one for each output: the second without a mask as well."""
    more = {"output_mask": [True, False]} if masked else {}
    found = program("npu_add_rms_norm_dynamic_quant", 48, "float16", **more).ops
    assert sum(isinstance(op, ScalarLoad) for op in found) == trips
    divisions = [op for op in found if isinstance(op, ScalarAlu) and op.op == "f32_div"]
    assert len(divisions) == 2 * trips - 1


def test_split_d_loads_rows_twice_and_the_last_piece_first() -> None:
    operator = ops.load("npu_rms_norm")
    args = TensorSpec((2, 30000), "float16"), TensorSpec((30000,), "float16")
    problem = operator.check(SPEC, *args)
    plan = operator.tile(SPEC, problem)
    found = operator.build(SPEC, problem, plan)[0].program.ops
    loads = [(op.src.name, op.src.offset_bytes) for op in found if isinstance(op, Load)]
    first, second, third = 0, 2 * 10000, 4 * 10000
    assert loads == [
        *(("x", first), ("x", second), ("x", third)),
        *(("gamma", third), ("x", third)),
        *(("gamma", first), ("x", first)),
        *(("gamma", second), ("x", second)),
    ]


def test_roots_of_64_rows_are_stored_together() -> None:
    found = program("npu_rms_norm", 48 * 130, "bfloat16").ops
    stores = [op.dst.nbytes for op in found if isinstance(op, Store) and op.dst.name == "rstd"]
    assert stores == [4 * 64, 4 * 64, 4 * 2]
    assert sum(isinstance(op, WholeReduce) for op in found) == 130
