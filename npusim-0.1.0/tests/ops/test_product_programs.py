"""Products of any size: tiles fit into the buffers, and no two cores write the same bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from chips import every
from matrix_calls import CHIPS, SPLIT

from npusim import TensorSpec, chip, devices, ops

MOST = 8000
FEW, MANY = 10, 40


def size(rng: np.random.Generator, most: int) -> int:
    """Small and large ones alike, a third of them whole fractals."""
    extent = int(np.exp(rng.uniform(0, np.log(most))))
    return extent if rng.integers(3) else -(-extent // 32) * 32


def matrix(rng: np.random.Generator, rows: int, columns: int, dtype: str) -> TensorSpec:
    batch = ((), (), (3,))[rng.integers(3)]
    if rng.integers(2):
        return TensorSpec((*batch, columns, rows), dtype).T
    return TensorSpec((*batch, rows, columns), dtype)


def drawn(rng: np.random.Generator, op: str, is_split: bool, most: int) -> dict[str, Any]:
    m, k, n = (size(rng, most) for _ in range(3))
    if op == "matmul":
        dtype = "bfloat16" if is_split and rng.integers(2) else "float16"
        bias = TensorSpec((n,), "float32") if rng.integers(2) else None
        x1, x2 = matrix(rng, m, k, dtype), matrix(rng, k, n, dtype)
        return {"x1": x1, "x2": x2, "bias": bias}
    targets = ("int8", "float16", "bfloat16", "int32") if is_split else ("int8", "float16")
    target = targets[rng.integers(len(targets))]
    call: dict[str, Any] = {
        "x1": matrix(rng, m, k, "int8"),
        "x2": matrix(rng, k, n, "int8"),
        "scale": TensorSpec(((1,), (n,))[rng.integers(2)], "float32"),
        "bias": TensorSpec((n,), "int32") if rng.integers(2) else None,
        "output_dtype": target,
    }
    if target in targets[1:3] and is_split and rng.integers(2):
        call["pertoken_scale"] = TensorSpec((m,), "float32")
    return call


def check_programs(name: str, seed: int, most: int) -> None:
    rng = np.random.default_rng([CHIPS.index(name), seed])
    spec, op = devices.load(name), ("matmul", "npu_quant_matmul")[rng.integers(2)]
    operator = ops.load(op)
    problem = operator.check(spec, **drawn(rng, op, name in SPLIT, most))
    plan = operator.tile(spec, problem)
    blocks = operator.build(spec, problem, plan)
    orders = chip.verify(blocks, spec, flags_may_stay_up=True)
    assert set(orders) == {block.program for block in blocks}


@pytest.mark.sample(2)
@pytest.mark.parametrize("device", every(CHIPS))
def test_any_size_gives_programs_that_hold(device: str, subtests: pytest.Subtests) -> None:
    for seed in range(FEW):
        with subtests.test(seed=seed):
            check_programs(device, seed, 3000)


@pytest.mark.nightly
@pytest.mark.parametrize("device", CHIPS)
def test_any_large_size_gives_programs_that_hold(device: str, subtests: pytest.Subtests) -> None:
    for seed in range(FEW, MANY):
        with subtests.test(seed=seed):
            check_programs(device, seed, MOST)
