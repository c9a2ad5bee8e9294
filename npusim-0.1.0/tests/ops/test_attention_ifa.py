"""IFA: attention to keys and values of int8, bit for bit, and what it refuses."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from attention_calls import (
    A2,
    A3,
    OP,
    reference,
    values,
)
from attention_layouts import by_request, float64_rows, layout_call
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from op_calls import BF16, NEW, Row, assert_all_same, constraints

from npusim import Code, OpError, TensorSpec, run

F16 = np.float16
KINDS = ("tensor", "channel", "token")
Array = NDArray[Any]


def scales_of(rng: np.random.Generator, call: dict[str, Any], kind: str, room: int) -> Array:
    """Scales of keys and of values, `(2, ...)`, as *call* has to have them."""
    heads, requests = call["num_key_value_heads"], call["query"].shape[0]
    columns = call["query"].shape[-1]
    if call["input_layout"] == "BSH":
        columns //= call["num_heads"]
    of_columns = {"BSH": (heads * columns,), "BSND": (heads, columns), "BNSD": (heads, 1, columns)}
    shape = {"tensor": (), "token": (requests, room), "channel": of_columns[call["input_layout"]]}
    dtype = np.float32 if kind == "token" else call["query"].dtype
    return rng.uniform(0.01, 0.03, (2, *shape[kind])).astype(dtype)


def int8_call(
    seed: int,
    layout: str,
    keys: tuple[int, ...],
    heads: tuple[int, int],
    columns: int,
    dtype: Any,
    kinds: tuple[str, str],
    **more: Any,
) -> tuple[dict[str, Any], list[tuple[Array, Array, Array]]]:
    """A call with a token for each request, and query, key and value of each in float64."""
    rng = np.random.default_rng(seed)
    lengths = (1,) * len(keys), keys
    call, every = layout_call(rng, layout, lengths, heads, columns, dtype, **more)
    for name in ("key", "value"):
        call[name] = whole(call[name])
    room = max(keys)
    if "block_table" in call:
        room = call["block_table"].shape[1] * call["block_size"]
    scales = [scales_of(rng, call, kind, room)[x] for x, kind in enumerate(kinds)]
    for name, kind, scale in zip(("key", "value"), kinds, scales, strict=True):
        call[f"{name}_antiquant_scale"] = np.atleast_1d(scale)
        call[f"{name}_antiquant_mode"] = int(kind == "token")
    real = []
    for request, (q, k, v) in enumerate(every):
        both = []
        for x, kind, scale in zip((k, v), kinds, scales, strict=True):
            wide = np.asarray(scale, np.float64)
            if kind == "channel":
                wide = wide.reshape(heads[1], 1, columns)
            elif kind == "token":
                wide = wide[request, : x.shape[1], None]
            both.append(whole(x).astype(np.float64) * wide)
        real.append((q.astype(np.float64), *both))
    return call, real


def whole(x: Array) -> Array:
    return np.clip(np.rint(x.astype(np.float32) * 50), -128, 127).astype(np.int8)


def assert_near_float64(call: dict[str, Any], real: Any, output: Array, dtype: Any) -> None:
    found = by_request(output, call["input_layout"], [1] * len(real), call["num_heads"])
    for own, (q, k, v) in zip(found, real, strict=True):
        if k.shape[1]:
            truth, _ = float64_rows(q, k, v, np.zeros((1, k.shape[1]), np.bool_), call["scale"])
            tolerance = 1e-3 if dtype is F16 else 1e-2
            limit = tolerance * max(1.0, float(np.abs(truth).max()))
            assert np.abs(own.astype(np.float64) - truth).max() <= limit


# ---- values ----


@draws(12)
@given(
    layout=st.sampled_from(["BSH", "BSND", "BNSD"]),
    keys=st.sampled_from([(1,), (700, 0, 130), (300, 33), (1100,)]),
    heads=st.sampled_from([(1, 1), (2, 1), (3, 3), (6, 2), (40, 1)]),
    columns=st.sampled_from([32, 64, 96, 128, 288]),
    dtype=st.sampled_from([F16, BF16]),
    device=st.sampled_from([A2, A3]),
    kinds=st.sampled_from([*zip(KINDS, KINDS, strict=True), ("tensor", "token")]),
    block_size=st.sampled_from([0, 32, 128]),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_tiled_run_equals_the_reference(
    layout: str,
    keys: tuple[int, ...],
    heads: tuple[int, int],
    columns: int,
    dtype: Any,
    device: str,
    kinds: tuple[str, str],
    block_size: int,
    seed: int,
) -> None:
    more = {"block_size": block_size, "heads_first": layout == "BNSD"} if block_size else {}
    call, real = int8_call(seed, layout, keys, heads, columns, dtype, kinds, **more)
    found = values(call, device)
    assert_all_same(found, reference(call, device))
    assert_near_float64(call, real, found[0], dtype)


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("layout", "heads"), [("BSND", (4, 1)), ("BNSD", (3, 3))])
def test_rows_that_cores_share_equal_the_reference(
    layout: str, heads: tuple[int, int], kind: str
) -> None:
    call, real = int8_call(3, layout, (9000,), heads, 64, F16, (kind, kind))
    found = run(OP, **call, device=A2, timing=False)
    assert found.plan is not None
    assert found.plan.pieces > 1
    assert_all_same(found.output, reference(call))
    assert_near_float64(call, real, found.output[0], F16)


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["channel", "token"])
@pytest.mark.filterwarnings("ignore:.* by the document at most 64 query heads:UserWarning")
@pytest.mark.parametrize(("heads", "keys"), [((64, 1), 2100), ((128, 1), 300)])
def test_many_heads_may_share_keys(heads: tuple[int, int], keys: int, kind: str) -> None:
    call, real = int8_call(1, "BSH", (keys, 30), heads, 64, BF16, (kind, kind))
    found = values(call)
    assert_all_same(found, reference(call))
    assert_near_float64(call, real, found[0], BF16)


def test_two_digits_of_each_number_are_multiplied() -> None:
    """One key of ones, so that its value comes back: 100 x 2 in the digits of a weight of 1."""
    query = np.full((1, 1, 32), 3.0, F16)
    key, value = np.ones((1, 1, 32), np.int8), np.full((1, 1, 32), 100, np.int8)
    scale = np.repeat(np.array([[1], [2]], F16), 32, axis=1)
    (output, lse) = values(
        {"query": query, "key": key, "value": value, "antiquant_scale": scale, "num_heads": 1}
    )
    assert output.tolist() == np.full((1, 1, 32), 200.0).tolist()
    assert lse.tolist() == [0]


@pytest.mark.parametrize("special", [0.0, np.inf, np.nan, 65504.0])
def test_special_queries_equal_the_reference(special: float) -> None:
    call, _ = int8_call(1, "BSND", (300, 40), (4, 2), 64, F16, ("channel", "channel"))
    call["query"][0, 0, 1, 5] = special
    call["query"][1] = special
    assert_all_same(values(call), reference(call))


def test_scales_of_both_may_come_as_one() -> None:
    for kind in KINDS:
        call, _ = int8_call(1, "BNSD", (70, 9), (4, 2), 32, F16, (kind, kind))
        known = values(call)
        apart = [call.pop(f"{name}_antiquant_scale") for name in ("key", "value")]
        mode = max(call.pop(f"{name}_antiquant_mode") for name in ("key", "value"))
        both = np.stack(apart) if kind != "tensor" else np.concatenate(apart)
        one = {"antiquant_scale": both, "antiquant_mode": mode}
        assert_all_same(values(call | one), known)
        alone = {f"{name}_antiquant_mode": mode for name in ("key", "value")}
        alone |= {
            f"{name}_antiquant_scale": scale[None] if kind != "tensor" else scale
            for name, scale in zip(("key", "value"), apart, strict=True)
        }
        assert_all_same(values(call | alone), known)
        # Both forms: those of keys and of values count.
        assert_all_same(values(call | alone | {"antiquant_scale": both * 2}), known)


def test_columns_of_heads_may_come_without_an_axis_of_tokens() -> None:
    """As in the seventh example of the document: (1, heads, columns) for BNSD."""
    call, _ = int8_call(1, "BNSD", (70, 9), (4, 2), 32, F16, ("channel", "channel"))
    flat = {f"{x}_antiquant_scale": call[f"{x}_antiquant_scale"] for x in ("key", "value")}
    flat = {name: scale.reshape(1, 2, 32) for name, scale in flat.items()}
    assert_all_same(values(call | flat), values(call))


# ---- the split ----


def plan_of(requests: int, keys: int, block_size: int = 0) -> Any:
    heads, columns = 1, 128
    shape: tuple[int, ...] = requests, keys, columns
    more: dict[str, Any] = {}
    if block_size:
        pages = keys // block_size
        shape = requests * pages, block_size, columns
        more = {"block_table": TensorSpec((requests, pages), "int32"), "block_size": block_size}
        more |= {"actual_seq_lengths_kv": [keys] * requests}
    cache = TensorSpec(shape, "int8")
    return run(
        OP, TensorSpec((requests, 1, 4 * columns), "bfloat16"), cache, cache, num_heads=4,
        num_key_value_heads=heads, scale=0.1, device=A2, timing=False,
        antiquant_scale=TensorSpec((2,), "bfloat16"), **more,
    ).plan  # fmt: skip


def test_cores_share_rows_only_where_heads_take_up_to_half_of_them() -> None:
    assert plan_of(12, 16384).pieces > 0
    assert plan_of(13, 16384).pieces == 0
    assert plan_of(13, 16384).block_dim == 13
    assert plan_of(1, 16384, 128).pieces > 0
    assert plan_of(1, 1024, 128).pieces == 0


# ---- the contract ----

BASE, _ = int8_call(0, "BSND", (9, 9), (4, 2), 32, F16, ("channel", "channel"))
SCALE = BASE["key_antiquant_scale"]
ONE = {f"{x}_antiquant_scale": None for x in ("key", "value")}
PAGED, _ = int8_call(0, "BSND", (9, 9), (4, 2), 32, F16, ("tensor", "tensor"), block_size=32)
FRACTALS = PAGED | {"query": np.ones((2, 1, 4, 64), F16)}
FRACTALS |= {x: np.ones((4, 2, 2, 32, 32), np.int8) for x in ("key", "value")}
TOKENS = {f"{x}_antiquant_mode": 1 for x in ("key", "value")}

WRONG_SHAPES = {f"{x}_antiquant_scale": np.ones((2, 8), np.float32) for x in ("key", "value")}
TILING, LACKS = Code.TILING_ERROR, Code.UNSUPPORTED
FITS = (
    "scales must be one, or have the columns of heads, or with mode 1 the tokens of requests, not "
)

ROWS = [
    Row({"key_antiquant_scale": None}, "value_antiquant_scale must be None with no "
        "key_antiquant_scale on {series}, not given; leave it out", {}, NEW),
    Row({"key_antiquant_mode": 2}, "key_antiquant_mode must be 0, one scale or one for each "
        "column, or 1, one for each token, not 2: others are not simulated; choose one of these",
        {}, NEW, LACKS),
    Row({"key_antiquant_mode": 1, "key_antiquant_scale": np.ones((2, 9), np.float32)},
        "value_antiquant_mode must be 1 with key_antiquant_mode=1 on {series}, not 0; pass 1",
        TOKENS | {f"{x}_antiquant_scale": np.ones((2, 9), np.float32) for x in ("key", "value")},
        NEW),
    Row({"antiquant_scale": SCALE} | ONE, FITS + "antiquant_scale (2, 32) in place of (2,) or (2, "
        "2, 32); reshape it", {}, NEW, TILING),
    Row(TOKENS | WRONG_SHAPES, FITS + "key_antiquant_scale (2, 8) in place of (1, 2, 9) or (2, 9); "
        "reshape it", {}, NEW, TILING),
    Row({"template": "FIA"}, "template 'FIA' can run only if key and value have the type of query; "
        "leave it out to get the vendor's choice", {"template": "IFA"}, NEW),
    Row({"template": "FAI"}, "template 'FAI' can run only if key and value have the type of query; "
        "leave it out to get the vendor's choice", {}, NEW),
]  # fmt: skip


test_each_constraint = constraints(OP, BASE, ROWS)


def test_the_second_version_takes_no_int8() -> None:
    other = f"{OP}_v2"
    call = {"num_query_heads": 4, "num_key_value_heads": 2, "input_layout": "BSND"}
    call |= {name: BASE[name] for name in ("query", "key", "value")}
    message = "key must be float16 with query of float16 on Atlas A2, not int8; convert it"
    with pytest.raises(OpError, match=rf"^{other}: {re.escape(message)} \[\d+\]$"):
        run(other, **call, device=A2)
