"""What the kernels of npu_dynamic_quant do, instruction by instruction."""

from __future__ import annotations

from collections import Counter

import pytest

from npusim import TensorSpec, devices, ops
from npusim.isa import Load, MicroOp, ScalarLoad, Store
from npusim.kernel.program import Program


def program(rows: int, columns: int, dtype: str = "bfloat16", *, smooth: bool = False) -> Program:
    """What the first core runs on Atlas A2."""
    operator, spec = ops.load("npu_dynamic_quant"), devices.load("ascend910b2")
    more = {"smooth_scales": TensorSpec((columns,), dtype)} if smooth else {}
    problem = operator.check(spec, TensorSpec((rows, columns), dtype), **more)
    blocks: tuple[object, ...] = operator.build(spec, problem, operator.tile(spec, problem))
    found = getattr(blocks[0], "program", None)
    assert isinstance(found, Program)
    return found


def counts(ops: tuple[MicroOp, ...]) -> Counter[str]:
    return Counter(type(op).__name__ for op in ops if op.pipe in ("vector", "scalar"))


def body(whole: Program, number: int = 1) -> tuple[MicroOp, ...]:
    """The micro-ops of a piece, by default one in which every buffer was used before."""
    return whole.calls[number].body.ops


# ops-nn@e5c3fa9 quant/dynamic_quant/op_kernel, by what one piece of a core takes.
@pytest.mark.parametrize(
    ("shape", "smooth", "expected"),
    [
        # Seven rows of 2048 an instruction, but for the fold.
        ((2048, 2048), False, {"Cast": 4, "Unary": 1, "Fold": 7, "WholeReduce": 1, "Binary": 3,
                               "Broadcast": 1, "Copy": 7}),
        # An Or with zeros copies the smooth scales to a row: to eight of them, of up to 254 blocks.
        ((2048, 2048), True, {"Cast": 4, "Unary": 1, "Fold": 6, "WholeReduce": 1, "Binary": 4 + 6,
                              "Broadcast": 1, "Copy": 6, "Duplicate": 1}),
        ((2048, 1408), True, {"Cast": 4, "Unary": 1, "Fold": 9, "WholeReduce": 1, "Binary": 4 + 2,
                              "Broadcast": 1, "Copy": 9, "Duplicate": 1}),
        # A row that is no multiple of 64: its end joins the fold, and a copy.
        ((2048, 2056), False, {"Cast": 4, "Unary": 1, "Fold": 7, "WholeReduce": 1, "Binary": 3 + 7,
                               "Broadcast": 1, "Copy": 14}),
        # A piece of one row: the scalar unit reads its factor.
        ((8192, 8192), False, {"Cast": 4, "Unary": 1, "Fold": 1, "WholeReduce": 1, "Binary": 3,
                               "Duplicate": 1, "ScalarLoad": 1}),
        # Four rows, int32 on the way to int8.
        ((384, 4096), False, {"Cast": 4, "Unary": 1, "Fold": 4, "WholeReduce": 1, "Binary": 2,
                              "BinaryScalar": 1, "Duplicate": 1, "Broadcast": 1, "Copy": 4}),
        # One row of 16384.
        ((96, 16384), False, {"Cast": 4, "Unary": 1, "Fold": 1, "WholeReduce": 1, "Binary": 1,
                              "BinaryScalar": 1, "ScalarLoad": 1, "ScalarAlu": 1,
                              "ScalarStore": 1}),
    ],
    ids=str,
)  # fmt: skip
def test_the_instructions_of_a_piece(
    shape: tuple[int, int], smooth: bool, expected: dict[str, int]
) -> None:
    found = counts(body(program(*shape, smooth=smooth)))
    for name in ("SetFlag", "WaitFlag", "Barrier"):
        del found[name]
    assert found == expected


@pytest.mark.parametrize(("dtype", "casts"), [("float16", 5), ("bfloat16", 4)])
def test_db_has_one_instruction_a_row_and_no_scalar_trip(dtype: str, casts: int) -> None:
    whole = program(1023, 1023, dtype)
    # Behind the constants two loads, and the work on what the first of them brought.
    first, second, piece = (body(whole, number) for number in (1, 2, 3))
    found = counts(piece)
    rows = next(op for op in first if isinstance(op, Load)).src.bursts
    assert rows == 17
    assert any(isinstance(op, Load) for op in second)
    assert not any(isinstance(op, Load) for op in piece)
    # Max, div, mul with the factor, mul for the scale.
    wanted = {"Cast": casts, "Unary": 1, "Fold": 1, "WholeReduce": 1, "Broadcast": 1, "Binary": 4}
    assert {name: found[name] for name in wanted} == {k: n * rows for k, n in wanted.items()}
    assert not any(op.pipe == "scalar" for op in piece if type(op).__name__.startswith("Scalar"))


def test_large_loads_ahead_and_twice() -> None:
    whole = program(96, 25000)
    first, last = body(whole, 0), body(whole, 1)
    loads = [i for i, op in enumerate(first) if isinstance(op, Load)]
    reads = [i for i, op in enumerate(first) if isinstance(op, ScalarLoad)]
    # Three parts, loaded twice, and the first of the next row; the next one is always asked for
    # before the scalar unit waits.
    assert len(loads) == 7
    assert [sum(load < read for load in loads) for read in reads] == [2, 3, 4]
    assert sum(isinstance(op, Load) for op in last) == 5
    # The parts; behind those of the last row the scales of both.
    stores = [[op for op in row if isinstance(op, Store)] for row in (first, last)]
    assert list(map(len, stores)) == [3, 4]
    assert stores[1][-1].dst.nbytes == 2 * 4
