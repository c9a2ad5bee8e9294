"""pse, dropout, prefixes and slices of npu_fusion_attention, both ways, against float64."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from engine_times import assert_equal_traces, needs_compiled

from npusim import Code, OpError, TensorSpec, ops, run
from npusim.ops._oracle import Given
from npusim.timing.engines import Engine

BF16 = ml_dtypes.bfloat16
STENCIL = np.triu(np.ones((2048, 2048), np.uint8), 1)
SCALE, KEEP = 0.125, 0.75
NAMES = ("query", "key", "value", "dy")
Array = Any


class Added(NamedTuple):
    """What a call adds, and what it means in float64."""

    arguments: dict[str, Any]
    bias: Array = 0.0
    is_scaled: bool = False
    factor: Array = 1.0
    """Zero, or one over the probability, for each score."""


def added(kind: str, shape: tuple[int, int, int, int], dtype: Any, drops: bool) -> Added:
    """pse of *kind* for scores of *shape* `(requests, heads, tokens, keys)`."""
    rng, (requests, count, tokens, keys) = np.random.default_rng(4), shape
    found = Added({})
    if kind in ("slopes", "roots"):
        own = rng.random((requests, count)).astype(np.float32)
        away = abs(np.arange(keys) + 3.0 - np.arange(tokens)[:, None])
        away = np.sqrt(away) if kind == "roots" else away
        given = {"pse": own, "pse_type": 2 + (kind == "roots"), "kv_start_idx": [5]}
        found = Added(given | {"q_start_idx": [2]}, -own[..., None, None].astype(float) * away)
    elif kind:
        of_kind = {
            "scores": shape, "scaled": shape, "shared": (1, *shape[1:]),
            "keys": (requests, count, 1, keys),
        }[kind]  # fmt: skip
        pse = rng.standard_normal(of_kind).astype(dtype)
        is_scaled = kind == "scaled"
        found = Added({"pse": pse, "pse_type": int(is_scaled)}, pse.astype(float), is_scaled)
    if not drops:
        return found
    kept = rng.random(shape) < KEEP
    bits = np.packbits(kept.reshape(-1), bitorder="little")
    given = found.arguments | {"keep_prob": KEEP, "dropout_mask": bits}
    return found._replace(arguments=given, factor=kept / KEEP)


class Exact(NamedTuple):
    """Results in float64, `(requests, heads, tokens or keys, columns)`."""

    output: Array
    largest: Array
    total: Array
    gradients: tuple[Array, Array, Array]


def exact(tensors: list[Array], more: Added, hidden: Array) -> Exact:
    q, k, v, dy = (x.astype(np.float64) for x in tensors)
    group, shape = q.shape[1] // k.shape[1], k.shape
    k, v = (np.repeat(x, group, 1) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2)
    scores = (scores + more.bias) * SCALE if more.is_scaled else scores * SCALE + more.bias
    scores = np.where(hidden, -np.inf, scores)
    largest = scores.max(-1, keepdims=True)
    p = np.exp(scores - largest)
    total = p.sum(-1, keepdims=True)
    p = p / total
    output = (p * more.factor) @ v
    dp = dy @ v.swapaxes(-1, -2) * more.factor
    ds = p * (dp - (dy * output).sum(-1, keepdims=True))

    def of_keys(x: Array) -> Array:
        return x.reshape(shape[0], shape[1], group, *x.shape[2:]).sum(2)

    of_key = of_keys(ds.swapaxes(-1, -2) @ q * SCALE)
    of_value = of_keys((p * more.factor).swapaxes(-1, -2) @ dy)
    return Exact(output, largest, total, (ds @ k * SCALE, of_key, of_value))


def in_layout(x: Array, layout: str) -> Array:
    return np.ascontiguousarray(x.swapaxes(1, 2)) if layout == "BSND" else x


def is_as_the_oracle_says(name: str, made: Any, given: dict[str, Any]) -> None:
    operator = ops.load(name)
    every = {each.name: each.default for each in operator.parameters} | given
    found: Any = operator.oracle(Given(operator.name, every))
    for one, other in zip(made.outputs.values(), found, strict=True):
        assert one.tobytes() == other.tobytes()


def both_ways(
    tensors: list[Array], more: Added, layout: str, hidden: Array = False, **others: Any
) -> None:
    """Forward and backward of `(requests, heads, tokens, columns)` give what is exact."""
    q, k, v, dy = (in_layout(x, layout) for x in tensors)
    expected = exact(tensors, more, hidden)
    step = 2.0 ** -(8 if q.dtype == np.float16 else 5)
    given: dict[str, Any] = {"query": q, "key": k, "value": v, "head_num": tensors[0].shape[1]}
    given |= {"input_layout": layout, "scale": SCALE, **more.arguments, **others}
    forward: Any = run("npu_fusion_attention_v2", device="Atlas A2", **given)
    is_as_the_oracle_says("npu_fusion_attention_v2", forward, given)
    output, largest, total = forward.outputs.values()
    found = in_layout(output.astype(np.float64), layout)
    np.testing.assert_allclose(found, expected.output, rtol=step, atol=step)
    np.testing.assert_allclose(largest, np.repeat(expected.largest, 8, -1), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(total, np.repeat(expected.total, 8, -1), rtol=1e-5)
    given |= {"dy": dy, "attention_in": output, "softmax_max": largest, "softmax_sum": total}
    given["scale_value"] = given.pop("scale")
    backward: Any = run("npu_fusion_attention_grad_v2", device="Atlas A2", **given)
    is_as_the_oracle_says("npu_fusion_attention_grad_v2", backward, given)
    for one, right in zip(backward.outputs.values(), expected.gradients, strict=True):
        found = in_layout(one.astype(np.float64), layout)
        np.testing.assert_allclose(found, right, rtol=step, atol=4 * step)


def tensors_of(shape: tuple[int, int, int, int], kv_heads: int, size: int, dtype: Any) -> Any:
    rng, (requests, count, tokens, keys) = np.random.default_rng(6), shape
    shapes = [(count, tokens), (kv_heads, keys), (kv_heads, keys), (count, tokens)]
    return [rng.standard_normal((requests, *each, size)).astype(dtype) for each in shapes]


@pytest.mark.parametrize(("kind", "drops"), [
    ("scores", False), ("scaled", True), ("shared", False), ("keys", True), ("", True),
])  # fmt: skip
@pytest.mark.parametrize(("shape", "kv_heads", "dtype", "layout"), [
    ((2, 2, 20, 1100), 1, np.float16, "BNSD"), ((1, 4, 70, 264), 2, BF16, "BSND"),
    ((2, 1, 9, 43), 1, np.float16, "BNSD"),
])  # fmt: skip
def test_pse_and_dropout_as_they_are_given(
    kind: str, drops: bool, shape: Any, kv_heads: int, dtype: Any, layout: str
) -> None:
    both_ways(tensors_of(shape, kv_heads, 64, dtype), added(kind, shape, dtype, drops), layout)


@pytest.mark.parametrize(
    ("kind", "length"),
    [("slopes", 70), ("roots", 300), pytest.param("slopes", 1040, marks=pytest.mark.nightly)],
)
def test_a_bias_that_the_kernel_makes_from_slopes(kind: str, length: int) -> None:
    shape = (2 - (length > 1000), 2, length, length)
    more = added(kind, shape, np.float16, drops=length == 300)
    both_ways(tensors_of(shape, 2, 16, np.float16), more, "BNSD")


def test_bias_and_dropout_with_a_mask_and_matrices_in_fractals() -> None:
    shape = (1, 2, 48, 80)
    hidden = np.arange(80) > np.arange(48)[:, None]
    more = added("scores", shape, np.float16, drops=True)
    given = {"atten_mask": STENCIL, "sparse_mode": 2}
    both_ways(tensors_of(shape, 2, 64, np.float16), more, "BNSD", hidden, **given)


def packed_both_ways(
    each: list[Any], mores: list[Added], given: dict[str, Any], hidden: list[Array]
) -> None:
    """The same in TND, for *each* request, with what it adds and what it hides; *given* are the
    arguments of both but for lengths."""
    lengths = [(x[0].shape[2], x[1].shape[2]) for x in each]
    sums = [np.cumsum(x).tolist() for x in zip(*lengths, strict=True)]
    dy = given.pop("dy")
    given |= {"head_num": 2, "input_layout": "TND", "actual_seq_qlen": sums[0]}
    given |= {"actual_seq_kvlen": sums[1]}
    forward: Any = run("npu_fusion_attention_v2", device="Atlas A2", scale=SCALE, **given)
    is_as_the_oracle_says("npu_fusion_attention_v2", forward, given | {"scale": SCALE})
    output, largest, total = forward.outputs.values()
    given |= {"dy": dy, "attention_in": output, "softmax_max": largest, "softmax_sum": total}
    given["scale_value"] = SCALE
    backward: Any = run("npu_fusion_attention_grad_v2", device="Atlas A2", **given)
    is_as_the_oracle_says("npu_fusion_attention_grad_v2", backward, given)
    found = [output, *backward.outputs.values()]
    row = key = 0
    for tensors, more, own, (count, seen) in zip(each, mores, hidden, lengths, strict=True):
        expected = exact(tensors, more, own)
        here, there = slice(row, row + count), slice(key, key + seen)
        places, wanted = (here, here, there, there), (expected.output, *expected.gradients)
        for one, place, right in zip(found, places, wanted, strict=True):
            mine = one[place].swapaxes(0, 1).astype(np.float64)
            np.testing.assert_allclose(mine, right[0], rtol=2**-8, atol=2**-6)
        row, key = row + count, key + seen


@pytest.mark.sample(3)
@pytest.mark.parametrize("keys", [(16, 40), (11, 40)])
@pytest.mark.parametrize("kind", ["scores", "keys", "slopes"])
def test_requests_behind_each_other(keys: tuple[int, int], kind: str) -> None:
    """In TND pse and the mask are those of one request behind the other."""
    rng, tokens = np.random.default_rng(8), keys if kind == "slopes" else (5, 17)
    shapes = [(1, 2, *x) for x in zip(tokens, keys, strict=True)]
    each = [tensors_of(shape, 2, 64, np.float16) for shape in shapes]
    rows = [[y[0].swapaxes(0, 1) for y in x] for x in zip(*each, strict=True)]
    mores = [added(kind, shape, np.float16, True) for shape in shapes]
    kept = [rng.random(shape) < KEEP for shape in shapes]
    flat = np.concatenate([x.reshape(-1) for x in kept])
    pse = [x.arguments["pse"] for x in mores]
    if kind != "slopes":
        pse = [x.reshape(-1) for x in pse]
    given: dict[str, Any] = dict(zip(NAMES, map(np.concatenate, rows), strict=True))
    given |= mores[0].arguments | {"pse": np.concatenate(pse)}
    given |= {"dropout_mask": np.packbits(flat, bitorder="little")}
    mores = [x._replace(factor=y / KEEP) for x, y in zip(mores, kept, strict=True)]
    packed_both_ways(each, mores, given, [False] * 2)


@pytest.mark.sample(4)
@pytest.mark.parametrize("mode", [5, 6])
@pytest.mark.parametrize(("tokens", "keys", "prefixes"), [
    (70, 70, (0, 40)), (40, 1100, (1070, 1100)), (90, 24, (3, 24)), (300, 300, (9, 129)),
])  # fmt: skip
def test_prefixes_are_seen_by_all_tokens(
    mode: int, tokens: int, keys: int, prefixes: tuple[int, int]
) -> None:
    shape = (2, 2, tokens, keys)
    causal = np.arange(keys) > np.arange(tokens)[:, None] + keys - tokens
    each = [causal & (np.arange(keys) >= prefix) for prefix in prefixes]
    hidden = np.stack(each)[:, None]
    rectangle = np.tile(np.arange(2048) >= 1024, (1024, 1)).astype(np.uint8)
    mask = hidden if mode == 5 else np.concatenate([STENCIL, rectangle])
    given = {"atten_mask": mask, "sparse_mode": mode, "prefix": list(prefixes)}
    both_ways(tensors_of(shape, 1, 64, np.float16), Added({}), "BSND", hidden, **given)


@pytest.mark.parametrize(("mode", "moved"), [(7, -9), (7, 0), (8, 25), (8, -20)])
def test_slices_of_requests_have_another_diagonal(mode: int, moved: int) -> None:
    tokens, keys = ((11, 20), (30, 40)) if mode == 7 else ((20, 20), (40, 15))
    each = [tensors_of((1, 2, *x), 2, 64, np.float16) for x in zip(tokens, keys, strict=True)]
    rows = [[y[0].swapaxes(0, 1) for y in x] for x in zip(*each, strict=True)]
    given: dict[str, Any] = dict(zip(NAMES, map(np.concatenate, rows), strict=True))
    hidden = []
    for number, (count, seen) in enumerate(zip(tokens, keys, strict=True)):
        has_band = number == (1 if mode == 7 else 0)
        last = seen - count if mode == 7 or has_band else 0
        away = np.arange(seen) - np.arange(count)[:, None]
        hidden.append(away > last + moved * has_band)
    given |= {"atten_mask": STENCIL, "sparse_mode": mode, "next_tokens": moved}
    packed_both_ways(each, [Added({})] * 2, given, hidden)


@needs_compiled
@pytest.mark.parametrize("name", ["npu_fusion_attention_v2", "npu_fusion_attention_grad_v2"])
@pytest.mark.parametrize("keys", [1100, 1096])
def test_both_engines_give_one_time(name: str, keys: int) -> None:
    query, key = (TensorSpec((1, 2, n, 64), "float16") for n in (40, keys))
    sums = TensorSpec((1, 2, 40, 8), "float32")
    given: dict[str, Any] = {"query": query, "key": key, "value": key, "head_num": 2}
    given |= {"input_layout": "BNSD"}
    given |= {"pse": TensorSpec((1, 2, 40, keys), "float16"), "keep_prob": 0.5}
    given |= {"dropout_mask": TensorSpec((2 * 40 * keys // 8,), "uint8")}
    if "grad" in name:
        given |= dict.fromkeys(("dy", "attention_in"), query)
        given |= dict.fromkeys(("softmax_max", "softmax_sum"), sums)
    engines: tuple[Engine, ...] = ("simpy", "compiled")
    one, other = (
        run(name, device="Atlas A2", values=False, engine=engine, **given).trace
        for engine in engines
    )
    assert one is not None
    assert other is not None
    assert_equal_traces(one, other)


X = TensorSpec((2, 2, 8, 16), "float16")
CALL: dict[str, Any] = dict.fromkeys(("query", "key", "value"), X) | {
    "head_num": 2, "input_layout": "BNSD",
}  # fmt: skip
REFUSED: list[tuple[dict[str, Any], str, Code]] = [
    ({"pse_type": 4}, "pse_type must be 0 to 3, not 4; pass one of these", Code.INVALID_PARAMETER),
    ({"pse_type": 2}, "pse must be given with pse_type 2, not None; pass it, or leave out "
     "pse_type", Code.INVALID_PARAMETER),
    ({"pse": X}, "pse must have shape (2, 2, 8, 8), (1, 2, 8, 8), (2, 2, 1, 8) or (1, 2, 1, 8), "
     "not (2, 2, 8, 16); pass a row of keys for each token of each head", Code.INVALID_PARAMETER),
    ({"pse": TensorSpec((2,), "float16"), "pse_type": 2}, "pse must be float32 with pse_type 2, "
     "not float16; cast it", Code.INVALID_PARAMETER),
    ({"pse": TensorSpec((3,), "float32"), "pse_type": 3}, "pse must have shape (2,) or (2, 2) with "
     "pse_type 3, not (3,); pass the slopes of heads", Code.INVALID_PARAMETER),
    ({"pse": TensorSpec((2,), "float32"), "pse_type": 2}
     | dict.fromkeys(("key", "value"), TensorSpec((2, 2, 9, 16), "float16")), "requests must have "
     "as many keys as tokens with pse_type 2, not [9, 9] and [8, 8]; pass the bias itself with "
     "pse_type 0", Code.INVALID_PARAMETER),
    ({"keep_prob": 0.5}, "dropout_mask must be given with keep_prob 0.5, not None: another kernel "
     "draws it; pass what npu_dropout_gen_mask gives", Code.UNSUPPORTED),
    ({"keep_prob": 0.5, "dropout_mask": TensorSpec((31,), "uint8")}, "dropout_mask must have a bit "
     "for each score, 32 bytes, not 31; pass what npu_dropout_gen_mask gives",
     Code.INVALID_PARAMETER),
    ({"atten_mask": TensorSpec((2048, 2048), "uint8"), "sparse_mode": 6}, "atten_mask must have "
     "shape (3072, 2048) with sparse_mode 6, not (2048, 2048); pass "
     "numpy.triu(numpy.ones((2048, 2048)), 1) above 1024 rows, zeros on the left and ones on the "
     "right", Code.INVALID_PARAMETER),
    ({"atten_mask": TensorSpec((8, 8), "uint8"), "sparse_mode": 5}, "prefix must have an entry for "
     "each of 2 requests with sparse_mode 5, not be None; pass the keys that all of its tokens see",
     Code.INVALID_PARAMETER),
    ({"atten_mask": TensorSpec((8, 8), "uint8"), "sparse_mode": 5, "prefix": [8, 9]}, "prefix must "
     "be 0 to 8 for 8 tokens and 8 keys, not 9; pass an entry of this range",
     Code.INVALID_PARAMETER),
    ({"atten_mask": TensorSpec((2048, 2048), "uint8"), "sparse_mode": 7}, "input_layout must be "
     "TND with sparse_mode 7, not BNSD; pass it so", Code.INVALID_PARAMETER),
]  # fmt: skip


@pytest.mark.parametrize(("given", "text", "code"), REFUSED)
def test_what_does_not_fit_is_refused(given: dict[str, Any], text: str, code: Code) -> None:
    message = f"^npu_fusion_attention_v2: {re.escape(text)} \\[{code.value}\\]$"
    with pytest.raises(OpError, match=message):
        run("npu_fusion_attention_v2", device="Atlas A2", **CALL | given)
