"""The msd kernels with scales for groups of k, tile by tile, against whole arrays."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from op_calls import BF16, Array
from weight_calls import (
    F32,
    HALF,
    OP,
    Kind,
    assert_bits,
    build,
    check,
    played,
    reference,
    tile,
    weight_call,
)

from npusim import TensorSpec, devices, run
from npusim.ops.npu_weight_quant_batchmatmul.templates.msd_group import MsdGroupPlan
from npusim.ops.npu_weight_quant_batchmatmul.templates.msd_per_group import PerGroupPlan, steps

A2 = devices.load("ascend910b2")
BOTH = ("msd_group", "msd")
Call = dict[str, Any]
pytestmark = pytest.mark.filterwarnings(
    "ignore:npu_weight_quant_batchmatmul. the document asks:UserWarning"
)


def call_of(
    m: int,
    k: int,
    n: int,
    size: int,
    *,
    kind: Any = HALF,
    weight: str = "int4",
    parts: str = "ob",
    seed: int = 0,
) -> Call:
    """*weight*: int4, NZ (of int4) or int8; *parts*: o for offsets, b for a bias."""
    kinds = "int8" if weight == "int8" else "int4", "NZ" if weight == "NZ" else "ND"
    how = Kind(kind, *kinds, size, offset="o" in parts, bias="b" in parts)
    call = weight_call(np.random.default_rng(seed), m, k, n, how)
    return {name: value for name, value in call.items() if value is not None}


def expected_of(call: Call, device: str = "ascend910b2") -> Array:
    with np.errstate(all="ignore"):
        return reference(**call, spec=devices.load(device))


def same(call: Call, template: str, device: str = "ascend910b2", **how: Any) -> Array:
    """The output, which is that of whole arrays."""
    call = call | {"template": template}
    found = run(OP, **call, device=device, timing=False, **how)
    assert isinstance(found.plan, MsdGroupPlan if template == "msd_group" else PerGroupPlan)
    assert_bits(found.output, expected_of(call, device))
    assert isinstance(found.output, np.ndarray)
    return found.output


@pytest.mark.sample(4)
@pytest.mark.parametrize("template", BOTH)
@pytest.mark.parametrize("inner_precise", [0, 1])
@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("kind", [HALF, BF16])
def test_int4(template: str, inner_precise: int, size: int, kind: Any) -> None:
    call = call_of(size // 8, 3 * size, 1216, size, kind=kind)
    same(call | {"inner_precise": inner_precise}, template)
    small = call_of(3, 2 * size, 128, size, kind=kind)
    same(small | {"inner_precise": inner_precise}, template, byte_exact=True)


@pytest.mark.parametrize("kind", [HALF, BF16])
def test_int8_in_two_digits(kind: Any) -> None:
    call = call_of(8, 640, 1216, 64, kind=kind, weight="int8") | {"inner_precise": 1}
    precise = call | {"inner_precise": 0}
    assert_bits(same(call, "msd_group"), same(precise, "msd_group"))
    small = call_of(2, 128, 64, 64, kind=kind, weight="int8")
    same(small, "msd_group", byte_exact=True)


@pytest.mark.parametrize("template", BOTH)
@pytest.mark.parametrize("byte_exact", [False, True])
def test_weights_of_layout_nz(template: str, byte_exact: bool) -> None:
    same(call_of(2, 256, 192, 64, weight="NZ"), template, byte_exact=byte_exact)


@pytest.mark.sample(3)
@pytest.mark.parametrize("template", BOTH)
@pytest.mark.parametrize("parts", ["", "o", "b", "ob"])
def test_offset_and_bias_may_be_missing(template: str, parts: str) -> None:
    same(call_of(2, 1152, 64, 64, parts=parts), template)


@pytest.mark.sample(2)
@pytest.mark.parametrize("template", BOTH)
@pytest.mark.parametrize(
    ("m", "k", "n", "size"),
    [
        (1, 128, 64, 64),
        (16, 256, 64, 128),  # more rows than vector cores
        (1, 2112, 64, 64),  # packs with a last one of one group
        (7, 1664, 1088, 128),  # strips of two widths
        (3, 128, 2112, 64),  # several cube cores along n, the last with one vector core
        (1, 13952, 64, 64),  # as much of k as a vector core takes
    ],
)
def test_how_the_work_is_cut(template: str, m: int, k: int, n: int, size: int) -> None:
    same(call_of(m, k, n, size), template)


@pytest.mark.parametrize(("template", "n"), [("msd_group", 49152), ("msd", 12352)])
def test_many_columns(template: str, n: int) -> None:
    same(call_of(1, 128, n, 64), template)


@pytest.mark.sample(1)
@pytest.mark.parametrize("k", [14016, 26624])
def test_msd_takes_what_is_too_long_for_msd_group(k: int) -> None:
    call = call_of(2, k, 64, 64)
    assert check(A2, **call).choice.form == "per_group"
    same(call, "msd")


def test_a_deterministic_call_rounds_otherwise() -> None:
    call = call_of(4, 2048, 256, 64)
    found = run(OP, **call, deterministic=True, device=A2, timing=False)
    assert found.template == "msd"
    assert isinstance(found.output, np.ndarray)
    assert_bits(found.output, expected_of(call | {"deterministic": True}))
    assert not np.array_equal(found.output, same(call, "msd_group"))


@pytest.mark.sample(2)
@pytest.mark.parametrize("template", BOTH)
@pytest.mark.parametrize("kind", [HALF, BF16])
@pytest.mark.parametrize("inner_precise", [0, 1])
def test_special_numbers(template: str, kind: Any, inner_precise: int) -> None:
    call = call_of(8, 256, 128, 64, kind=kind) | {"inner_precise": inner_precise}
    x = call["x"]
    x[0], x[1] = 0.0, -0.0
    x[2, 5], x[3, 70], x[4, 200] = np.inf, -np.inf, np.nan
    x[5], x[6] = 6e-8, 65504.0
    x[7] = 0.0
    x[7, 3] = -1.0
    call["antiquant_scale"][1, :4] = [np.inf, np.nan, 0.0, 65504.0]
    call["antiquant_offset"][2, 4:7] = [np.inf, np.nan, 0.0]
    call["bias"][7:9] = [np.inf, np.nan]
    for part in ((), ("antiquant_offset",), ("bias",)):
        same({name: x for name, x in call.items() if name not in part}, template)


@pytest.mark.sample(1)
@pytest.mark.parametrize("inner_precise", [0, 1])
def test_both_kernels_agree_where_one_core_has_all_of_k(inner_precise: int) -> None:
    call = call_of(2, 256, 26624, 64, parts="b") | {"inner_precise": inner_precise}
    plan = tile(A2, check(A2, **call))
    assert isinstance(plan, MsdGroupPlan)
    assert plan.cores_k == 1
    assert_bits(same(call, "msd_group"), same(call, "msd"))


@pytest.mark.parametrize(
    ("template", "weight"), [("msd_group", "int4"), ("msd_group", "int8"), ("msd", "int4")]
)
def test_digits_come_close_to_the_exact_product(template: str, weight: str) -> None:
    call = call_of(4, 512, 128, 64, weight=weight)
    y = same(call, template).astype(F32)
    custom = expected_of(call | {"template": "custom"}).astype(F32)
    assert 0 < np.abs(y - custom).max() < 2e-3 * np.abs(custom).max()


@draws(15)
@given(
    size=st.sampled_from((64, 128)),
    m=st.integers(1, 16),
    group_count=st.integers(2, 20),
    n=st.integers(1, 40).map(lambda x: 64 * x),
    kind=st.sampled_from((HALF, BF16)),
    weight=st.sampled_from(("int4", "NZ", "int8")),
    parts=st.sampled_from(("", "o", "b", "ob")),
    inner_precise=st.integers(0, 1),
    template=st.sampled_from(BOTH),
    device=st.sampled_from(("ascend910b2", "ascend910b4", "ascend910_9391")),
    seed=st.integers(0, 2**32),
)
def test_any_call(
    size: int,
    m: int,
    group_count: int,
    n: int,
    kind: Any,
    weight: str,
    parts: str,
    inner_precise: int,
    template: str,
    device: str,
    seed: int,
) -> None:
    if weight == "int8":
        size, template = 64, "msd_group"
    m = min(m, size // 8)
    call = call_of(m, size * group_count, n, size, kind=kind, weight=weight, parts=parts, seed=seed)
    byte_exact = m * size * group_count * n < 2**18
    call |= {"inner_precise": inner_precise}
    same(call, template, device, byte_exact=byte_exact)


# ---- the ring of msd per_group ----


@pytest.mark.sample(2)
@pytest.mark.parametrize("half", [1, 2, 3])
@pytest.mark.parametrize("m", [1, 5])
def test_the_ring_is_filled_again_and_again(
    half: int, m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = call_of(m, 1472, 448, 64) | {"template": "msd"}
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
    assert_bits(raw, expected_of(call))


# ---- tilings ----


def specs_of(m: int, k: int, n: int, size: int, weight: str = "int4", x: str = "float16") -> Call:
    is_int4 = weight == "int4"
    return {
        "x": TensorSpec((m, k), x),
        "weight": TensorSpec((k, n // 8 if is_int4 else n), "int32" if is_int4 else "int8"),
        "antiquant_scale": TensorSpec((k // size, n), x),
        "antiquant_group_size": size,
    }


@pytest.mark.parametrize(
    ("m", "k", "n", "size", "weight", "x", "device", "template", "cores"),
    [
        (1, 11008, 4096, 128, "int4", "float16", "ascend910b2", "msd_group", 22),
        (1, 4096, 22016, 128, "int4", "float16", "ascend910b2", "msd_group", 22),
        (1, 12288, 1792, 64, "int8", "bfloat16", "ascend910b4", "msd_group", 20),
        (1, 65472, 65472, 64, "int4", "float16", "ascend910b2", "msd", 24),
    ],
)
def test_blocks_that_the_vendor_launches(
    m: int, k: int, n: int, size: int, weight: str, x: str, device: str, template: str, cores: int
) -> None:
    """ops-nn@e5c3fa9 tests/ut/op_host/test_weight_quant_batch_matmul_v2_msd{,_group}_tiling.cpp."""
    spec = devices.load(device)
    plan = tile(spec, check(spec, **specs_of(m, k, n, size, weight, x)))
    assert (plan.template, plan.block_dim, plan.is_mix) == (template, cores, True)


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
    call = specs_of(m, k, n, size, weight) | {"template": template}
    call["antiquant_offset"] = call["antiquant_scale"]
    call["bias"] = TensorSpec((n,), "float16")
    for inner_precise in (0, 1):
        p = check(A2, **call, inner_precise=inner_precise)
        plan = tile(A2, p)
        assert len(build(A2, p, plan)) == 3 * plan.block_dim


def test_digits_of_x_are_cut_as_k_asks() -> None:
    cut = {}
    for k, n in ((1024, 64), (4096, 128), (12288, 8192), (12352, 8192), (65472, 8192)):
        plan = tile(A2, check(A2, **specs_of(1, k, n, 64), template="msd"))
        assert isinstance(plan, PerGroupPlan)
        cut[k] = plan.digits_k
    assert cut == {1024: 1024, 4096: 1024, 12288: 12288, 12352: 7168, 65472: 11264}
