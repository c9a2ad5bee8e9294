"""npu_convert_weight_to_int4pack: nibbles in numpy, no time, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from op_calls import LINES, NEW, Array, Row, assert_same, constraints

from npusim import Tensor, TensorSpec, run

OP = "npu_convert_weight_to_int4pack"
ALL = np.arange(-8, 8, dtype=np.int32).reshape(2, 8)


def packed(weight: Array) -> Array:
    """Element by element, in whole numbers of Python."""
    rows, columns = weight.shape
    words = [
        sum((int(weight[row, column + t]) & 0xF) << 4 * t for t in range(8))
        for row in range(rows)
        for column in range(0, columns, 8)
    ]
    return np.array(words, np.uint32).view(np.int32).reshape(rows, columns // 8)


@pytest.mark.parametrize("series", NEW)
def test_all_sixteen_numbers(series: str) -> None:
    """op-plugin, ConvertWeightToINT4PackKernelNpuOpApi.cpp: the first in the lowest nibble."""
    output = run(OP, ALL, device=LINES[series]).output
    assert_same(output, np.array([[-19088744], [1985229328]], np.int32))
    assert [hex(word) for word in np.asarray(output).view(np.uint32).flat] == [
        "0xfedcba98", "0x76543210",
    ]  # fmt: skip


def test_numbers_beyond_int4_lose_their_upper_bits(rng: np.random.Generator) -> None:
    limits = np.iinfo(np.int32)
    weight = rng.integers(limits.min, limits.max, (7, 40), np.int32, endpoint=True)
    assert_same(run(OP, weight, device="ascend910b2").output, packed(weight))
    assert_same(run(OP, weight & 0xF, device="ascend910b2").output, packed(weight))


def test_a_weight_in_fractals_comes_back_in_fractals(rng: np.random.Generator) -> None:
    weight = rng.integers(-8, 8, (20, 136), np.int32)
    output = run(OP, Tensor.of(weight, "FRACTAL_NZ"), device="ascend910b2").output
    assert isinstance(output, Tensor)
    assert output.spec == TensorSpec((20, 17), "int32", "FRACTAL_NZ")
    # 64 int4 are a row of a fractal.
    assert output.storage.shape == (3, 2, 16, 8)
    assert_same(output.numpy(), packed(weight))
    assert not output.storage[0, 1, 4:].any()
    assert not output.storage[2, :, :, 1:].any()


def test_nothing_runs_on_the_chip() -> None:
    for inner_k_tiles in (0, 2):
        result = run(OP, ALL, inner_k_tiles, device="ascend910_9391")
        assert (result.plan, result.trace) == (None, None)
        assert (result.time_us, result.cycles, result.launch_us) == (0.0, 0, 0.0)
        assert_same(result.output, packed(ALL))


def test_a_spec_gives_a_spec() -> None:
    for layout in ("ND", "FRACTAL_NZ"):
        spec = TensorSpec((128, 256), "int32", layout)
        output = run(OP, spec, device="ascend910b2").output
        assert output == TensorSpec((128, 32), "int32", layout)
    assert run(OP, ALL, device="ascend910b2", values=False).output == TensorSpec((2, 1), "int32")


def test_an_empty_weight_stays_empty() -> None:
    assert_same(
        run(OP, np.zeros((0, 8), np.int32), device="ascend910b2").output, np.zeros((0, 1), np.int32)
    )


ROWS = [
    Row(
        {"weight": TensorSpec((8, 12), "int32")},
        "the last dimension of weight must be a multiple of 8, not 12; pad it",
        {"weight": TensorSpec((8, 16), "int32")},
    ),
    *(
        Row(
            {"weight": wrong},
            "weight must be contiguous, not a view with gaps or a transpose; make it so",
            {"weight": ALL},
        )
        for wrong in (ALL.repeat(4, 0).T, ALL[:, ::-1], TensorSpec((8, 8), "int32").T)
    ),
]
test_each_constraint = constraints(OP, {"weight": ALL}, ROWS)
