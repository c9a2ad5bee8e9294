"""How nz_splitk and split_k of npu_weight_quant_batchmatmul share their work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from op_calls import BF16, assert_as_reference
from tiny import fewer_cores
from weight_calls import HALF, OP, Kind, build, check, tile, weight_call, weight_specs

from npusim import chip, devices
from npusim.devices.schema import DeviceSpec
from npusim.ops.npu_weight_quant_batchmatmul.templates.shared_k import SharedKPlan

A2 = devices.load("ascend910b2")
GROUPS = Kind(BF16, size=64, offset=True)


def plan_of(call: dict[str, Any], spec: DeviceSpec = A2) -> SharedKPlan:
    plan = tile(spec, check(spec, **call))
    assert isinstance(plan, SharedKPlan)
    return plan


def test_x_that_does_not_stay(rng: np.random.Generator) -> None:
    call = weight_call(rng, 32, 6144, 64, GROUPS) | {"template": "split_k"}
    one = fewer_cores("ascend910b2", aic=1, aiv=2)
    assert not plan_of(call, one).tiles.is_resident
    assert_as_reference(OP, device=one, **call)


def fractal_shapes(m: int, k: int, n: int, x: Any = HALF) -> dict[str, Any]:
    return weight_specs(m, k, n, Kind(x, layout="NZT"), template="nz_splitk")


def test_the_split_of_fractals() -> None:
    plan = plan_of(fractal_shapes(96, 8192, 7392, BF16))
    # 8192 is cut by 1024; 24 cores by 8 leave 3 for n: 2464 columns, in whole 64.
    assert (plan.cores_k, plan.core_k, plan.cores_n, plan.core_n) == (8, 1024, 3, 2496)
    assert (plan.block_dim, plan.is_added, plan.tiles.is_resident) == (24, True, True)
    assert plan.workspaces == {"ring": 24 * 4 * 2 * 128 * 512, "sums": 4 * 96 * 7392}
    plan = plan_of(fractal_shapes(256, 1024, 128))
    # 2 cores of 64 columns: the fixpipe makes the output, nobody has anything to add.
    assert (plan.cores_n, plan.block_n, plan.block_dim, plan.is_added) == (2, 64, 2, False)
    assert plan.workspaces == {"ring": 2 * 4 * 2 * 64 * 512}
    assert not plan.tiles.is_resident


@pytest.mark.parametrize(
    ("m", "k", "n", "cores"),
    [
        (24, 12288, 1792, (12, 2)),
        (24, 12288, 7808, (3, 8)),
        (24, 3904, 12288, (2, 12)),
        (24, 1536, 12288, (2, 12)),
        (32, 128, 65472, (1, 22)),
    ],
)
def test_the_split_of_groups(m: int, k: int, n: int, cores: tuple[int, int]) -> None:
    plan = plan_of(weight_specs(m, k, n, GROUPS, template="split_k"))
    assert (plan.cores_k, plan.cores_n) == cores
    assert plan.tiles.is_resident


def test_large_calls_are_legal() -> None:
    for call in (fractal_shapes(96, 65535, 514), fractal_shapes(2000, 700, 4000, BF16)):
        problem = check(A2, **call)
        chip.verify(build(A2, problem, tile(A2, problem)), A2, flags_may_stay_up=True)
