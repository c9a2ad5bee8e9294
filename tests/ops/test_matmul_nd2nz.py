"""nd2nz of matmul: vector cores turn ragged operands into FRACTAL_NZ, the products are base's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matrix_calls import assert_same_bits, halves
from op_calls import BF16
from test_matmul_split_k import HALF, SMALL, assert_as_the_reference, operands

from npusim import TensorSpec, devices, ops, run
from npusim.ops.matmul.templates.nd2nz import RowTile, TurningPlan
from npusim.ops.matmul.traits import CallTraits, Chip, turned

MATMUL = ops.load("matmul")
BOTH = ("x1", "x2")


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("m", "k", "n", "kind", "words", "sides"),
    [
        (5, 100, 40, HALF, "", BOTH),
        (1, 33, 7, HALF, "bias", BOTH),
        (200, 110, 300, BF16, "tB bias", BOTH),
        (130, 160, 260, HALF, "tA special", BOTH),
        (17, 128, 1111, HALF, "", ("x2",)),
        # Rows of x1 come in two tiles across, and x2 is NZ already.
        (33, 2100, 70, HALF, "nz", ("x1",)),
    ],
)
def test_values_are_those_of_base(
    rng: np.random.Generator, m: int, k: int, n: int, kind: Any, words: str, sides: Any
) -> None:
    args = operands(rng, m, k, n, kind, words)
    result = assert_as_the_reference(*args, template="nd2nz", timing=False)
    plain = run("matmul", *args, template="base", device=SMALL, timing=False)
    assert_same_bits(np.asarray(result.output), np.asarray(plain.output))
    assert isinstance(result.plan, TurningPlan)
    assert tuple(result.plan.turned) == sides


def test_every_mode(rng: np.random.Generator) -> None:
    args = halves(rng, (300, 72)), halves(rng, (72, 100))
    whole = assert_as_the_reference(*args, template="nd2nz")
    exact = assert_as_the_reference(*args, template="nd2nz", byte_exact=True, every_core=True)
    assert whole.time_us == exact.time_us


@pytest.mark.parametrize(
    ("shape", "tiles"),
    [
        # Rows of 2048 bytes at most: whole, and as many as 48 vector cores share evenly. Of x2
        # 63 tiles of 6144 or 4096 bytes leave 15, 42 of 48 rows of 2048 bytes the most, 42.
        ((1000, 1000, 1040), {"x1": RowTile(32, 1008), "x2": RowTile(48, 1024)}),
        ((40000, 264, 128), {"x1": RowTile(176, 272)}),
        # Wider ones: the first width whose tiles are a multiple of the vector cores, ...
        ((768, 1040, 1024), {"x1": RowTile(16, 3072)}),
        # ... else that with the most left over: 32 tiles of all widths, the first of them.
        ((512, 1040, 1024), {"x1": RowTile(16, 3072)}),
        # Rows of x2 that fall into the same banks.
        ((4096, 6656, 16384), {"x2": RowTile(96, 512)}),
    ],
)
def test_tiles_of_the_pass(shape: tuple[int, int, int], tiles: Any) -> None:
    spec, (m, k, n) = devices.load("ascend910b2"), shape
    call = TensorSpec((m, k), "float16"), TensorSpec((k, n), "float16")
    plan = MATMUL.tile(spec, MATMUL.check(spec, *call, template="nd2nz"))
    assert isinstance(plan, TurningPlan)
    assert plan.turned == tiles


def test_banks_conflict_in_two_cases() -> None:
    strided = {"trans_x2": True}
    assert turned(CallTraits(4480, 16384, 7168, **strided), Chip()) == ("x2",)
    assert turned(CallTraits(4480, 16384, 7168, **strided), Chip(aic=20)) == ()
    assert turned(CallTraits(4096, 6656, 16384), Chip(aic=20)) == ()
    assert turned(CallTraits(4097, 6656, 16384), Chip(aic=20)) == ("x2",)
