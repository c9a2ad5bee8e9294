"""npu_grouped_matmul: what runs gives the bits of the reference, and that those of others.

Sources: vectors worked out in the order of the vendor's kernel (ops-transformer@c29bc10
gmm/grouped_matmul/op_kernel/grouped_matmul_quant_mixcore.h); the rest is held against plain numpy.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from op_calls import assert_all_same, assert_as_reference
from op_calls import floats as hostile

from npusim import Tensor, TensorSpec, ops, run
from npusim.ops import npu_trans_quant_param
from npusim.run.result import without_values

OP = "npu_grouped_matmul"
DEVICES = ("ascend910b2", "ascend910_9391")
BF16 = ml_dtypes.bfloat16
Array = NDArray[Any]
K, N = 96, 288
ENDS = np.array([40, 40, 150])
M = 150


def floats(seed: int, *shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def small(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).integers(-128, 128, shape).astype(np.int8)


def turned(weight: Array) -> Array:
    """The same numbers as a transposed view."""
    return np.ascontiguousarray(weight.swapaxes(-1, -2)).swapaxes(-1, -2)


def assert_runs(device: str, /, **call: Any) -> None:
    """The run gives what the reference computes."""
    assert_as_reference(OP, device=device, **call)


# ---- vectors ----

X = np.array([[1, -2, 3, 4], [100, 7, -9, 2], [-128, 127, 5, -6]], np.int8)
W = np.array(
    [[[1, 2], [3, -4], [-5, 6], [7, 8]], [[9, -9], [10, 11], [-12, 13], [14, 15]]], np.int8
)
SCALES = np.array([[0.0123, 0.4], [0.007, 0.03]], np.float32)
TOKENS = np.array([0.5, 0.013, 0.021], np.float32)
TWO = {"group_list": np.array([1, 2]), "group_list_type": 1, "group_type": 0, "split_item": 3}
VECTORS: dict[str, Array] = {
    "int32": np.array([[8, 60], [1106, -910], [-26, 2524]], np.int32),
    "float16": np.array(
        [
            [0.0491943359375, 12],
            [0.10064697265625, -0.35498046875],
            [-0.00382232666015625, 1.58984375],
        ],
        np.float16,
    ),
    "bfloat16": np.array(
        [[0.04931640625, 12], [0.1005859375, -0.35546875], [-0.003814697265625, 1.59375]], BF16
    ),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("output", VECTORS)
def test_int8_in_the_order_of_the_vendor_s_kernel(output: str, device: str) -> None:
    scale = {"float16": SCALES, "bfloat16": SCALES.astype(BF16)}.get(output)
    tokens = None if scale is None else TOKENS
    found = run(
        OP, X, W, scale=scale, per_token_scale=tokens, output_dtype=output, device=device, **TWO
    )
    assert_all_same(found.output, VECTORS[output])


def test_a_zero_loses_its_sign_before_the_scales_of_rows() -> None:
    x, w = np.zeros((1, 32), np.int8), np.zeros((1, 32, 16), np.int8)
    call = {"scale": np.full((1, 16), -1, np.float32), "output_dtype": "float16"}
    call |= {"group_list": np.array([1]), "group_type": 0, "split_item": 3}
    for tokens, negative in ((None, True), (np.ones(1, np.float32), False)):
        y = ops.load(OP).reference(x, w, per_token_scale=tokens, **call)
        assert np.signbit(y).all() == negative
        assert_runs("ascend910b2", x=x, weight=w, per_token_scale=tokens, **call)


# ---- floats ----

KINDS = {
    "float16": (np.float16, np.float16),
    "bfloat16": (BF16, np.float32),
    "float32": (np.float32, np.float32),
}
LISTS = (
    (np.array([40, 40, 150]), 0),
    (np.array([0, 110, 40]), 1),
    (np.array([20, 20, 60]), 0),
)


@pytest.mark.sample(5)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weight", ["(k, n)", "turned", "fractals", "turned fractals", "list"])
def test_rows_of_floats_in_groups(weight: str, kind: str, device: str) -> None:
    dtype, biased = KINDS[kind]
    if kind == "float32" and "fractals" in weight:
        pytest.skip("float32 comes in ND only")
    whole = floats(2, 3, K, N, dtype=dtype)
    bias: Any = floats(3, 3, N, dtype=biased)
    forms: dict[str, Any] = {
        "(k, n)": whole,
        "turned": turned(whole),
        "fractals": Tensor.of(whole, "FRACTAL_NZ"),
        "turned fractals": Tensor.of(whole, "FRACTAL_NZ", transposed=True),
        "list": list(whole),
    }
    for number, (groups, form) in enumerate(LISTS):
        given = None if number else list(bias) if weight == "list" else bias
        assert_runs(
            device,
            x=floats(1, M, K, dtype=dtype),
            weight=forms[weight],
            bias=given,
            group_list=groups,
            group_list_type=form,
            group_type=0,
            split_item=2,
        )


@draws(12)
@given(
    sizes=st.sampled_from([(1, 16, 16), (60, 96, 288), (300, 40, 272), (33, 300, 48)]),
    form=st.sampled_from(["(k, n)", "turned", "fractals"]),
    is_biased=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_310p_multiplies_halves(
    sizes: tuple[int, int, int], form: str, is_biased: bool, seed: int
) -> None:
    """Infinities and NaN too: this chip saturates."""
    (m, k, n), rng = sizes, np.random.default_rng(seed)
    if form == "fractals":
        k = 16 * (k // 16)
    w = hostile(rng, (3, k, n), np.float16)
    weight = {"(k, n)": w, "turned": turned(w), "fractals": Tensor.of(w, "FRACTAL_NZ")}[form]
    call = {
        "x": hostile(rng, (m, k), np.float16),
        "weight": weight,
        "bias": hostile(rng, (3, n), np.float16) if is_biased else None,
        "group_list": np.sort(rng.integers(0, m, 3, endpoint=True)),
        "group_type": 0,
        "split_item": 3,
    }
    assert assert_as_reference(OP, device="ascend310p3", **call).template == "coupled"


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_for_each_x(kind: str) -> None:
    dtype, biased = KINDS[kind]
    sizes = ((5, 64, 20), (33, 80, 300), (140, 16, 33))
    xs = [floats(1, m, k, dtype=dtype) for m, k, _ in sizes]
    ws = [floats(2, k, n, dtype=dtype) for _, k, n in sizes]
    bias = [floats(3, n, dtype=biased) for *_, n in sizes]
    for weights in (ws, list(map(turned, ws))):
        assert_runs("ascend910b2", x=xs, weight=weights, bias=bias, group_type=-1, split_item=0)
    cube = [floats(1, 2, 5, 64, dtype=dtype), floats(1, 3, 1, 80, dtype=dtype)]
    assert_runs("ascend910b2", x=cube, weight=ws[:2], group_type=-1, split_item=1)


def test_several_x_of_one_output() -> None:
    xs = [floats(1, m, K, dtype=np.float16) for m in (5, 33, 140)]
    ws = list(floats(2, 3, K, N, dtype=np.float16))
    assert_runs("ascend910b2", x=xs, weight=ws, group_type=0, split_item=3)
    ends = np.array([5, 38, 178])
    assert_runs("ascend910b2", x=xs, weight=ws, group_list=ends, group_type=0, split_item=3)


@pytest.mark.sample(2)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_groups_along_k(kind: str, device: str) -> None:
    dtype, _ = KINDS[kind]
    x, w = floats(1, K, M, dtype=dtype).T, floats(2, K, N, dtype=dtype)
    # The second group has nothing: its output is zero.
    ends = np.array([32, 32, 80, 96])
    assert_runs(device, x=x, weight=w, group_list=ends, group_type=2, split_item=3)
    several = [w[:32].copy(), w[:48, :20].copy()]
    assert_runs(device, x=x, weight=several, group_type=2, split_item=1)


def test_a_list_of_integers_is_the_other_overload() -> None:
    x, ws = floats(1, M, K, dtype=np.float16), list(floats(2, 3, K, N, dtype=np.float16))
    for split in (0, 3):
        assert_runs("ascend910b2", x=x, weight=ws, group_list=ENDS.tolist(), split_item=split)
    assert_runs("ascend910b2", x=[x, x], weight=ws[:2], split_item=0, group_list=[M, 2 * M])


def test_one_tensor_is_a_list_of_it() -> None:
    x, w = floats(1, M, K, dtype=np.float16), floats(2, 3, K, N, dtype=np.float16)
    call = {"group_list": ENDS, "group_type": 0, "split_item": 3, "device": "ascend910b2"}
    alone, several = run(OP, x, w, **call), run(OP, [x], [w], **call)
    assert_all_same(alone.output, several.output)
    assert alone.time_us == several.time_us


# ---- int8 ----

QUANT = {"x": small(1, M, K), "group_list": ENDS, "group_type": 0, "split_item": 3}
BIAS = np.random.default_rng(4).integers(-1000, 1000, (3, N)).astype(np.int32)
FACTORS = floats(5, 3, N) / 100
ROW_FACTORS = np.random.default_rng(6).random(M, np.float32)


def weights(seed: int = 2) -> dict[str, Any]:
    whole = small(seed, 3, K, N)
    return {
        "(k, n)": whole,
        "turned": turned(whole),
        "fractals": Tensor.of(whole, "FRACTAL_NZ"),
        "turned fractals": Tensor.of(whole, "FRACTAL_NZ", transposed=True),
    }


def words(scale: Array, offset: Array | None = None) -> Array:
    return npu_trans_quant_param.reference(scale, offset)


@pytest.mark.parametrize("device", DEVICES)
def test_int8_by_words_of_the_fixpipe(device: str) -> None:
    offsets = np.random.default_rng(8).integers(-20, 20, N).astype(np.float32)
    scale = np.stack([words(row, offsets) for row in FACTORS])
    for weight in (weights()["(k, n)"], weights()["turned"]):
        for bias in (None, BIAS):
            for kind in (np.int64, np.uint64):
                assert_runs(device, weight=weight, scale=scale.view(kind), bias=bias, **QUANT)
    several = list(weights()["(k, n)"])
    assert_runs(device, weight=several, scale=list(scale), bias=list(BIAS), **QUANT)
    one = words(FACTORS[:, :1].copy())
    for shape in ((3, 1), (3,)):
        assert_runs(device, weight=weights()["(k, n)"], scale=one.reshape(shape), **QUANT)


@pytest.mark.parametrize("weight", weights())
def test_int32_as_it_is(weight: str) -> None:
    assert_runs("ascend910b2", weight=weights()[weight], bias=BIAS, output_dtype="int32", **QUANT)


@pytest.mark.sample(5)
@pytest.mark.parametrize("act_type", [0, 1, 2, 4, 5])
@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("output", ["float16", "bfloat16"])
def test_int8_to_floats(output: str, tokens: bool, act_type: int) -> None:
    scale = FACTORS.astype(BF16) if output == "bfloat16" else FACTORS
    form = sorted(weights())[act_type % 4]
    assert_runs(
        DEVICES[act_type % 2],
        weight=weights()[form],
        scale=scale,
        per_token_scale=ROW_FACTORS if tokens else None,
        bias=BIAS if act_type % 2 else None,
        act_type=act_type,
        output_dtype=output,
        **QUANT,
    )


@pytest.mark.parametrize("scale", [np.float32, BF16])
def test_a_bfloat16_bias_is_added_behind_the_scales(scale: Any) -> None:
    assert_runs(
        "ascend910b2",
        weight=weights()["fractals"],
        scale=FACTORS.astype(scale),
        per_token_scale=ROW_FACTORS,
        bias=FACTORS.astype(BF16),
        act_type=5,
        output_dtype="bfloat16",
        **QUANT,
    )


def test_both_vector_cores_take_turns_with_the_rows() -> None:
    call = QUANT | {"weight": weights()["(k, n)"], "scale": FACTORS}
    call |= {"per_token_scale": ROW_FACTORS, "output_dtype": "float16"}
    found = run(OP, device="ascend910b2", tuning_config=[M], **call)
    assert len(found.counters) == 3 * 24
    assert_runs("ascend910b2", tuning_config=[M], **call)
    assert len(run(OP, device="ascend910b2", **call).counters) == 2 * 24


def test_pairs_end_with_the_first_expert_without_rows() -> None:
    pairs = np.array([[2, 100], [0, 20], [1, 0]])
    call = QUANT | {"group_list": pairs, "group_list_type": 2, "weight": weights()["(k, n)"]}
    call |= {"per_token_scale": ROW_FACTORS, "scale": FACTORS, "output_dtype": "float16"}
    found = run(OP, device="ascend910b2", **call)
    assert_runs("ascend910b2", **call)
    assert not np.asarray(found.output)[120:].any()


@pytest.mark.parametrize(
    "pairs", [[[1, 5], [0, 15], [2, -1]], [[1, 0], [0, 15], [2, 5]], [[2, 3], [0, 30], [1, 117]]]
)
def test_pairs_may_end_at_once_or_never(pairs: Any) -> None:
    call = QUANT | {"group_list": np.array(pairs), "group_list_type": 2, "output_dtype": "int32"}
    assert_runs("ascend910b2", weight=weights()["(k, n)"], **call)


def test_groups_may_all_be_empty() -> None:
    rows, none = floats(1, M, K, dtype=np.float16), np.array([0, 0, 0])
    whole = floats(2, 3, K, N, dtype=np.float16)
    assert_runs("ascend910b2", x=rows, weight=whole, group_list=none, group_type=0, split_item=3)
    for ends in ([0, 0, M], [0, 0, 0]):
        assert_runs("ascend910b2", x=rows, weight=list(whole), group_list=ends, split_item=0)
    along = {"x": floats(1, K, M, dtype=np.float16).T, "weight": whole[0], "group_type": 2}
    assert_runs("ascend910b2", **along, group_list=none, split_item=3)


def test_int8_by_a_weight_for_each_x() -> None:
    sizes = ((5, 64, 40), (7, 96, 300))
    assert_runs(
        "ascend910b2",
        x=[small(1, m, k) for m, k, _ in sizes],
        weight=[small(2, k, n) for _, k, n in sizes],
        scale=[words(floats(3, n) / 100) for *_, n in sizes],
        group_type=-1,
        split_item=0,
    )


# ---- what decides the time ----


def test_without_values_groups_share_evenly() -> None:
    call: dict[str, Any] = {"x": TensorSpec((96, K), "float16"), "group_type": 0, "split_item": 3}
    call |= {"weight": TensorSpec((3, K, N), "float16"), "device": "ascend910b2"}
    assumed = run(OP, group_list=TensorSpec((3,), "int64"), **call)
    told = run(OP, group_list=np.array([32, 64, 96]), **call)
    assert assumed.time_us == told.time_us
    assert told.reason == "float16 x, float16 weight and float16 output"
    assert assumed.reason == (
        "float16 x, float16 weight and float16 output; group_list has no values, so every group is "
        "assumed to have an equal share"
    )


def test_the_list_decides_the_time() -> None:
    call: dict[str, Any] = {"x": TensorSpec((512, 512), "float16"), "group_type": 0}
    call |= {"weight": TensorSpec((4, 512, 256), "float16"), "split_item": 3, "group_list_type": 1}
    one, even = (
        run(OP, group_list=np.array(rows), device="ascend910b2", **call).time_us
        for rows in ([512, 0, 0, 0], [128] * 4)
    )
    assert one != even


def test_arguments_stay_as_they_were_given() -> None:
    x, ws = floats(1, 8, 32, dtype=np.float16), list(floats(2, 2, 32, 16, dtype=np.float16))
    call = {"group_list": np.array([3, 8]), "group_type": 0, "split_item": 3}
    found = run(OP, [x], ws, device="ascend910b2", **call)
    assert found.arguments["weight"] == [TensorSpec((32, 16), "float16")] * 2
    assert without_values([x]) == [TensorSpec((8, 32), "float16")]
    json = found.to_json()["arguments"]["weight"]
    assert json == [{"shape": [32, 16], "dtype": "float16", "layout": "ND"}] * 2


# ---- any shapes, hostile numbers ----

COUNTS = st.lists(st.sampled_from([0, 1, 15, 17, 130]), min_size=1, max_size=4).filter(any)


@draws(20)
@given(
    device=st.sampled_from(DEVICES),
    kind=st.sampled_from(sorted(KINDS)),
    counts=COUNTS,
    k=st.sampled_from([1, 16, 33, 100, 520]),
    n=st.sampled_from([1, 15, 64, 260]),
    is_turned=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_hostile_floats_of_any_shape(
    device: str, kind: str, counts: list[int], k: int, n: int, is_turned: bool, seed: int
) -> None:
    dtype, biased = KINDS[kind]
    rng = np.random.default_rng(seed)
    x, w = (hostile(rng, shape, dtype) for shape in ((sum(counts), k), (len(counts), k, n)))
    assert_runs(
        device,
        x=x,
        weight=turned(w) if is_turned else w,
        bias=hostile(rng, (len(counts), n), biased) if seed % 2 else None,
        group_list=np.array(counts),
        group_list_type=1,
        group_type=0,
        split_item=3,
    )


@draws(20)
@given(
    device=st.sampled_from(DEVICES),
    output=st.sampled_from(["int8", "float16", "bfloat16"]),
    counts=COUNTS,
    k=st.sampled_from([1, 32, 100, 1030]),
    n=st.sampled_from([1, 32, 70, 520]),
    act_type=st.sampled_from([0, 1, 2, 4, 5]),
    seed=st.integers(0, 2**32 - 1),
)
def test_hostile_scales_of_any_shape(
    device: str, output: str, counts: list[int], k: int, n: int, act_type: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    shape = len(counts), n
    call: dict[str, Any] = {"x": small(seed, sum(counts), k), "output_dtype": output}
    if output == "int8":
        call["scale"] = words(hostile(rng, shape, np.float32))
    else:
        kind = np.float32 if output == "float16" else BF16
        tokens = hostile(rng, (sum(counts),), np.float32) if seed % 3 else None
        call |= {"scale": hostile(rng, shape, kind), "act_type": act_type}
        call["per_token_scale"] = tokens
    assert_runs(
        device,
        **call,
        weight=small(seed + 1, len(counts), k, n),
        bias=rng.integers(-(2**31), 2**31, shape).astype(np.int32) if seed % 2 else None,
        group_list=np.cumsum(counts),
        group_type=0,
        split_item=3,
    )
