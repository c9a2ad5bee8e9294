"""nz_splitk and split_k of npu_weight_quant_batchmatmul, tile by tile, against whole arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from op_calls import BF16, SPECIAL, assert_same
from weight_calls import HALF, OP, Kind, assert_bits, build, check, reference, tile, weight_call

from npusim import TensorSpec, chip, devices, run
from npusim.devices.schema import DeviceSpec
from npusim.ops.npu_weight_quant_batchmatmul.templates.shared_k import SharedKPlan

A2 = devices.load("ascend910b2")


def with_cores(count: int) -> DeviceSpec:
    """An Atlas A2 of *count* cube cores."""
    cores = A2.cores
    aic = cores["aic"].model_copy(update={"count": count})
    aiv = cores["aiv"].model_copy(update={"count": 2 * count})
    return A2.model_copy(update={"cores": cores | {"aic": aic, "aiv": aiv}})


SMALL = with_cores(3)


def fractal_call(
    rng: np.random.Generator, m: int, k: int, n: int, kind: Any, more: str, weight: str = "int8"
) -> dict[str, Any]:
    """Arguments for nz_splitk; *more* names what is given: offset, bias."""
    how = Kind(kind, weight, "NZT", offset="offset" in more, bias="bias" in more)
    return weight_call(rng, m, k, n, how) | {"template": "nz_splitk"}


def grouped_call(rng: np.random.Generator, m: int, k: int, n: int) -> dict[str, Any]:
    """Arguments for split_k."""
    return weight_call(rng, m, k, n, Kind(BF16, size=64, offset=True)) | {"template": "split_k"}


def assert_as_the_reference(
    call: dict[str, Any], spec: DeviceSpec, *, modes: tuple[bool, ...] = (False,)
) -> None:
    """The reference's bits come out; *modes* are those of `byte_exact`."""
    expected = reference(**call, spec=spec)
    for byte_exact in modes:
        output = run(OP, **call, device=spec, timing=False, byte_exact=byte_exact).output
        assert_bits(output, expected)


def plan_of(call: dict[str, Any], spec: DeviceSpec = A2) -> SharedKPlan:
    plan = tile(spec, check(spec, **call))
    assert isinstance(plan, SharedKPlan)
    return plan


# ---- values ----


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("m", "k", "n", "kind", "more"),
    [
        (5, 64, 64, HALF, ""),
        (70, 100, 130, HALF, "offset"),
        (70, 40, 50, HALF, "bias"),
        (129, 1100, 77, HALF, "offset bias"),
        (16, 600, 300, BF16, ""),
        (33, 2100, 77, BF16, "offset bias"),
        (300, 1030, 70, BF16, "offset"),
        (1, 3, 2, BF16, ""),
    ],
)
def test_fractals(rng: np.random.Generator, m: int, k: int, n: int, kind: Any, more: str) -> None:
    call = fractal_call(rng, m, k, n, kind, more)
    assert_as_the_reference(call, SMALL, modes=(False, True))


@pytest.mark.sample(1)
@pytest.mark.parametrize(("kind", "more"), [(HALF, "offset"), (BF16, "offset bias")])
def test_fractals_of_int4(rng: np.random.Generator, kind: Any, more: str) -> None:
    call = fractal_call(rng, 70, 1096, 90, kind, more, "int4")
    assert_as_the_reference(call, SMALL)


@pytest.mark.parametrize(
    ("m", "k", "n"), [(5, 128, 64), (32, 192, 1088), (17, 640, 128), (1, 128, 4160), (24, 320, 640)]
)
def test_groups(rng: np.random.Generator, m: int, k: int, n: int) -> None:
    assert_as_the_reference(grouped_call(rng, m, k, n), SMALL, modes=(False, True))


def test_x_that_does_not_stay(rng: np.random.Generator) -> None:
    call = grouped_call(rng, 32, 6144, 64)
    one = with_cores(1)
    assert not plan_of(call, one).tiles.is_resident
    assert_as_the_reference(call, one)


@pytest.mark.sample(1)
@pytest.mark.parametrize("device", ["ascend910b4", "ascend910_9391"])
def test_whole_chips(rng: np.random.Generator, device: str) -> None:
    spec = devices.load(device)
    assert_as_the_reference(fractal_call(rng, 20, 3104, 300, BF16, "offset bias"), spec)
    assert_as_the_reference(grouped_call(rng, 24, 960, 1216), spec)


@draws(12)
@given(data=st.data())
def test_any_shape(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), "seed"))
    spec = with_cores(data.draw(st.integers(1, 5), "cores"))
    if data.draw(st.booleans(), "groups"):
        k, n = (64 * data.draw(st.integers(least, 18)) for least in (2, 1))
        call = grouped_call(rng, data.draw(st.integers(1, 32), "m"), k, n)
    else:
        m, k, n = (data.draw(st.integers(2, most)) for most in (270, 2600, 300))
        more = data.draw(st.sampled_from(["", "offset", "bias", "offset bias"]), "more")
        call = fractal_call(rng, m, k, n, data.draw(st.sampled_from([HALF, BF16])), more)
    assert_as_the_reference(call, spec)


def test_special_numbers(rng: np.random.Generator) -> None:
    with np.errstate(over="ignore"):
        for kind in (HALF, BF16):
            call = fractal_call(rng, 40, 1100, 130, kind, "offset bias")
            for name in ("x", "antiquant_scale", "antiquant_offset", "bias"):
                numbers = call[name].reshape(-1)
                at = rng.choice(numbers.size, 26 if name == "x" else 5, replace=False)
                numbers[at] = rng.permutation(SPECIAL)[: at.size].astype(numbers.dtype)
            call["x"][3] = 0
            assert_as_the_reference(call, SMALL)
        call = grouped_call(rng, 9, 192, 128)
        call["x"][2, :3] = np.inf, np.nan, 3e38
        call["x"][3] = 0
        call["antiquant_offset"][1, :26] = SPECIAL.astype(BF16)
        call["antiquant_scale"][2, 30:56] = SPECIAL.astype(BF16)
        assert_as_the_reference(call, SMALL)


def test_one_core_along_k_gives_what_custom_gives(rng: np.random.Generator) -> None:
    call = fractal_call(rng, 70, 900, 130, HALF, "offset")
    alone = run(OP, **call, device=SMALL, timing=False).output
    assert isinstance(alone, np.ndarray)
    assert_same(alone, reference(**call | {"template": "custom"}, spec=SMALL))


# ---- how the work is split ----


def fractal_shapes(m: int, k: int, n: int, dtype: str = "float16") -> dict[str, Any]:
    return {
        "x": TensorSpec((m, k), dtype),
        "weight": TensorSpec((n, k), "int8", "FRACTAL_NZ").T,
        "antiquant_scale": TensorSpec((n,), dtype),
        "template": "nz_splitk",
    }


def test_the_split_of_fractals() -> None:
    plan = plan_of(fractal_shapes(96, 8192, 7392, "bfloat16"))
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
    numbers = TensorSpec((k // 64, n), "bfloat16")
    call = {
        "x": TensorSpec((m, k), "bfloat16"),
        "weight": TensorSpec((k, n), "int8"),
        "antiquant_scale": numbers,
        "antiquant_offset": numbers,
        "antiquant_group_size": 64,
        "template": "split_k",
    }
    plan = plan_of(call)
    assert (plan.cores_k, plan.cores_n) == cores
    assert plan.tiles.is_resident


def test_large_calls_are_legal() -> None:
    for call in (fractal_shapes(96, 65535, 514), fractal_shapes(2000, 700, 4000, "bfloat16")):
        problem = check(A2, **call)
        chip.verify(build(A2, problem, tile(A2, problem)), A2, flags_may_stay_up=True)
