"""Micro-ops whose strides are too wide for an instruction become one for each repeat."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import tiny_spec

from npusim.check.rules import Place, check
from npusim.data.dtypes import FLOAT16, FLOAT32, DType
from npusim.isa import Binary, BlockReduce, Local, MicroOp
from npusim.kernel import in_reach
from npusim.kernel.program import Program
from npusim.values.buffers import Buffers
from npusim.values.semantics import State, run

CORE = tiny_spec().cores["aiv"]


def ub(offset_bytes: int, count: int, *strides: int, dtype: DType = FLOAT32) -> Local:
    return Local("ub", offset_bytes, dtype, count, *strides)


def played(*ops: MicroOp) -> np.ndarray:
    buffers = Buffers(CORE)
    raw = buffers.raw("ub")
    raw.view(np.float16)[:] = np.arange(raw.size // 2) % 512 / 8
    run(ops, State(buffers, {}))
    return raw.copy()


def test_what_an_instruction_can_do_stays_one() -> None:
    op = Binary("add", ub(0, 128, 1, 255), ub(0, 128), ub(512, 128, 0, 0))
    assert list(in_reach(op)) == [op]
    alone = Binary("add", ub(0, 64, 1, 300), ub(0, 64), ub(512, 64))
    assert list(in_reach(alone)) == [alone]


def test_each_repeat_is_separate() -> None:
    op = Binary("max", ub(0, 128, 1, 256), ub(0, 128, 2, 300), ub(512, 128))
    assert list(in_reach(op)) == [
        Binary("max", ub(0, 64), ub(0, 64, 2, 8), ub(512, 64)),
        Binary("max", ub(8192, 64), ub(9600, 64, 2, 8), ub(768, 64)),
    ]


@pytest.mark.parametrize(
    "op",
    [
        Binary("max", ub(0, 128, 1, 256), ub(32, 128, 1, 300), ub(512, 128)),
        Binary("mul", ub(0, 128, 1, 256), ub(512, 128, 0, 3), ub(1024, 128, 1, 0)),
        BlockReduce("sum", ub(12288, 16), ub(0, 128, 1, 256)),
        BlockReduce("max", ub(16000, 16, dtype=FLOAT16), ub(0, 256, 1, 270, dtype=FLOAT16)),
    ],
    ids=str,
)
def test_the_repeats_compute_what_the_whole_does(op: MicroOp) -> None:
    parts = list(in_reach(op))
    assert len(parts) == 2
    np.testing.assert_array_equal(played(*parts), played(op))


def test_the_repeats_are_accepted() -> None:
    op = BlockReduce("sum", ub(12288, 16), ub(0, 128, 1, 256))
    check(Program("kernel", tuple(in_reach(op))), Place(tiny_spec(), "aiv"))
