"""The msd kernels with scales for groups of k: the ring of one, and how both are split."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from op_calls import assert_same
from weight_calls import OP, Kind, build, check, played, reference, tile, weight_call, weight_specs

from npusim import devices
from npusim.ops.npu_weight_quant_batchmatmul.templates.msd_per_group import PerGroupPlan, steps

A2 = devices.load("ascend910b2")
GROUPS = Kind(weight="int4", size=64, offset=True, bias=True)
pytestmark = pytest.mark.filterwarnings(
    "ignore:npu_weight_quant_batchmatmul. the document asks:UserWarning"
)


# ---- the ring of msd per_group ----


@pytest.mark.sample(2)
@pytest.mark.parametrize("half", [1, 2, 3])
@pytest.mark.parametrize("m", [1, 5])
def test_the_ring_is_filled_again_and_again(
    half: int, m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = weight_call(np.random.default_rng(0), m, 1472, 448, GROUPS) | {"template": "msd"}
    p = check(A2, **call)
    plan = tile(A2, p)
    assert isinstance(plan, PerGroupPlan)
    products_bytes = 2 * half * (4 * 3 * m * 4 * 128)
    plan = replace(
        plan,
        pack_groups=4,
        joint_groups=3,
        round_n=128,
        strip_n=64,
        strip_m=3,
        ring_slots=2 * half,
        digits_k=1024,
        workspaces=plan.workspaces | {"products": products_bytes},
    )
    every = list(steps(p, plan))
    assert sum(step.waits for step in every) == sum(step.releases for step in every) > 0
    raw = played(A2, p, plan)
    monkeypatch.setattr(import_module(f"npusim.ops.{OP}.oracle"), "PACK_DEPTH", 4 * 64)
    assert_same(raw, reference(**call, spec=A2))


# ---- tilings ----


@pytest.mark.parametrize(
    ("m", "k", "n", "size", "weight", "template"),
    [
        (8, 13952, 2048, 64, "int4", "msd_group"),
        (8, 13952, 2048, 64, "int8", "msd_group"),
        (16, 2048, 49152, 128, "int4", "msd_group"),
        (16, 256, 49152, 128, "int4", "msd"),
        (8, 65472, 64, 64, "int4", "msd"),
        (16, 256, 1024, 128, "int4", "msd"),
    ],
)
def test_the_largest_calls_fit_the_buffers(
    m: int, k: int, n: int, size: int, weight: str, template: str
) -> None:
    kind = Kind(weight=weight, size=size, offset=True, bias=True)
    call = weight_specs(m, k, n, kind, template=template)
    for inner_precise in (0, 1):
        p = check(A2, **call, inner_precise=inner_precise)
        plan = tile(A2, p)
        assert len(build(A2, p, plan)) == 3 * plan.block_dim


def test_digits_of_x_are_cut_as_k_asks() -> None:
    cut = {}
    for k, n in ((1024, 64), (4096, 128), (12288, 8192), (12352, 8192), (65472, 8192)):
        plan = tile(A2, check(A2, **weight_specs(1, k, n, GROUPS, template="msd")))
        assert isinstance(plan, PerGroupPlan)
        cut[k] = plan.digits_k
    assert cut == {1024: 1024, 4096: 1024, 12288: 12288, 12352: 7168, 65472: 11264}
