"""Runs of micro-ops give what the micro-ops give one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st

from npusim import devices
from npusim.data.dtypes import FLOAT16, FLOAT32, DType
from npusim.isa import Binary, Cast, Copy, Local, MicroOp
from npusim.values.buffers import Buffers
from npusim.values.runs import Accumulated, Swept, with_runs
from npusim.values.semantics import State, run

SPEC = devices.load("ascend910b2")
CORE = SPEC.cores[SPEC.vector_kinds[0]]
BYTES = 1 << 14
"""Of the unified buffer that are looked at, and have numbers."""


def state(seed: int, lanes: int | None) -> State:
    buffers = Buffers(CORE, lanes=lanes)
    rng = np.random.default_rng(seed)
    shape = (*buffers.lead, BYTES // 4)
    # Of both types: halves of these bits are numbers of fp16, too.
    numbers = (rng.normal(size=shape) * 2.0 ** rng.integers(-9, 9, shape)).astype(np.float32)
    buffers.raw("ub")[..., :BYTES] = numbers.view(np.uint8)
    return State(buffers, {})


def assert_same(ops: list[MicroOp], seed: int = 0) -> None:
    for lanes in (None, 1, 3):
        plain, joined = state(seed, lanes), state(seed, lanes)
        run(ops, plain)
        run(with_runs(ops), joined)
        assert plain.buffers.raw("ub").tobytes() == joined.buffers.raw("ub").tobytes()


def at(block: int, count: int, dtype: DType = FLOAT32, **strides: Any) -> Local:
    return replace(Local("ub", block * 32, dtype, count), **strides)


@draws(200)
@given(data=st.data(), seed=st.integers(0, 9))
def test_any_micro_ops_that_go_on_by_the_same_steps(data: st.DataObject, seed: int) -> None:
    """Overlaps of every kind: most are not a run, and none may give anything else."""
    dtype = data.draw(st.sampled_from([FLOAT32, FLOAT16]))
    lanes = 32 * 8 // dtype.bits
    blocks, times = data.draw(st.integers(1, 5)), data.draw(st.integers(2, 12))
    count = blocks * lanes - data.draw(st.integers(0, lanes - 1))
    first = [data.draw(st.integers(100, 130)) for _ in range(3)]
    steps = [data.draw(st.sampled_from([0, 0, 1, 3, 5, 8, -5])) for _ in range(3)]
    if data.draw(st.booleans()):
        # In place.
        first[0], steps[0] = first[2], steps[2]
    ops: list[MicroOp] = []
    name = data.draw(st.sampled_from(["add", "sub", "mul", "max", "min", "copy"]))
    for index in range(times):
        a, b, dst = (at(x + y * index, count, dtype) for x, y in zip(first, steps, strict=True))
        ops.append(Copy(dst, a) if name == "copy" else Binary(name, dst, a, b))
    assert_same(ops, seed)


def test_rows_are_added_in_order() -> None:
    ops: list[MicroOp] = [
        Binary("add", at(0, 40), at(0, 40), at(8 + 5 * index, 40)) for index in range(60)
    ]
    assert with_runs(ops) == [Accumulated(ops[0], 60, 160)]
    for seed in range(5):
        assert_same(ops, seed)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16])
def test_each_row_meets_the_same_one(dtype: DType) -> None:
    ops: list[MicroOp] = [
        Binary("sub", at(8 + 5 * index, 33, dtype), at(8 + 5 * index, 33, dtype), at(0, 33, dtype))
        for index in range(9)
    ]
    found = with_runs(ops)
    assert found == [Swept(ops[0], 9, (160, 0, 160))]
    assert_same(ops)


def test_strided_copies_are_one() -> None:
    # Eight strips of eight rows: blocks of a strip below each other.
    ops: list[MicroOp] = [
        Copy(at(100 + 8 * strip, 128, FLOAT16), at(strip, 128, FLOAT16, block_stride=8))
        for strip in range(8)
    ]
    assert with_runs(ops) == [Swept(ops[0], 8, (32, 256))]
    assert_same(ops)


NO_RUN: dict[str, list[MicroOp]] = {
    "three": [Copy(at(8 + index, 8), at(40 + index, 8)) for index in range(3)],
    "each reads what the one before wrote": [
        Copy(at(9 + index, 8), at(8 + index, 8)) for index in range(8)
    ],
    "all write to the same place": [Copy(at(8, 8), at(40 + index, 8)) for index in range(8)],
    "a total of one column": [
        Binary("add", at(0, 1), at(0, 1), at(8 + index, 1)) for index in range(8)
    ],
    "a total that is among the rows": [
        Binary("add", at(12, 8), at(12, 8), at(8 + index, 8)) for index in range(8)
    ],
    "a total of fp16, rounded each time": [
        Binary("add", at(0, 16, FLOAT16), at(0, 16, FLOAT16), at(8 + index, 16, FLOAT16))
        for index in range(8)
    ],
    "products that are multiplied": [
        Binary("mul", at(0, 8), at(0, 8), at(8 + index, 8)) for index in range(8)
    ],
    "within blocks": [
        Binary("add", *(Local("ub", 4 * index + 32 * x, FLOAT32, 1) for x in range(3)))
        for index in range(8)
    ],
    "casts": [Cast(at(8 + index, 8, FLOAT16), at(40 + index, 8)) for index in range(8)],
}


@pytest.mark.parametrize("name", NO_RUN)
def test_what_is_no_run(name: str) -> None:
    ops = NO_RUN[name]
    assert with_runs(ops) == ops
    assert_same(ops)


def test_another_operation_between_them_ends_a_run() -> None:
    adds: list[MicroOp] = [
        Binary("add", at(0, 8), at(0, 8), at(8 + index, 8)) for index in range(5)
    ]
    ops = [*adds, Binary("max", at(0, 8), at(0, 8), at(13, 8)), *adds]
    assert with_runs(ops) == [Accumulated(adds[0], 5, 32), ops[5], Accumulated(adds[0], 5, 32)]
    assert_same(ops)
