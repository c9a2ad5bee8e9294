"""npu_fusion_attention_grad and its second version: gradients against float64, order, refusals."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from npusim import Code, OpError, TensorSpec, devices, ops, run
from npusim.ops._oracle import Given
from npusim.ops.npu_fusion_attention_grad.tiles import has_fractals, schedule

BF16 = ml_dtypes.bfloat16
STENCIL = np.triu(np.ones((2048, 2048), np.uint8), 1)
NAMES = ("query", "key", "value", "dy")
Array = Any


def heads(seed: int, *shape: int, dtype: Any = np.float16) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


class Exact(NamedTuple):
    """Gradients of query, key and value, `(..., heads, tokens, columns)`, in float64."""

    values: tuple[Array, ...]
    bounds: tuple[Array, ...]
    """How far off the kernel may be, which rounds p, its differences, what forward gave it, and
    what it gives, by half a unit in the last place each."""


def exact(given: dict[str, Array], scale: float, hidden: Array = False) -> Exact:
    unit = 2.0 ** -(11 if given["query"].dtype == np.float16 else 8)
    q, k, v, dy = (given[name].astype(np.float64) for name in NAMES)
    group = q.shape[-3] // k.shape[-3]
    k, v = (np.repeat(x, group, axis=-3) for x in (k, v))
    scores = np.where(hidden, -np.inf, q @ k.swapaxes(-1, -2) * scale)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    dp = dy @ v.swapaxes(-1, -2)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True))
    off = unit * (abs(ds) + p * (abs(dy) * abs(p @ v)).sum(-1, keepdims=True))
    shape = (*k.shape[:-3], k.shape[-3] // group, group, *k.shape[-2:])

    def each(of_scores: Array, of_values: Array, *factors: Array) -> tuple[Array, ...]:
        of_query, of_key, of_dy = factors
        of_keys = (of_scores.swapaxes(-1, -2) @ of_key * scale, of_values.swapaxes(-1, -2) @ of_dy)
        return of_scores @ of_query * scale, *(x.reshape(shape).sum(-3) for x in of_keys)

    values = each(ds, p, k, q, dy)
    bounds = each(off, unit * p, *map(abs, (k, q, dy)))
    return Exact(values, tuple(x + unit * abs(y) for x, y in zip(bounds, values, strict=True)))


def in_layout(x: Array, layout: str) -> Array:
    """*x* `(requests, heads, tokens, columns)` in *layout*."""
    order = {"BNSD": "bnsd", "BSND": "bsnd", "BSH": "bsnd", "SBH": "sbnd"}[layout]
    turned = np.ascontiguousarray(x.transpose(["bnsd".index(axis) for axis in order]))
    return turned.reshape(*turned.shape[:2], -1) if layout[-1] == "H" else turned


def arguments(given: dict[str, Array], count: int, layout: str, **more: Any) -> dict[str, Any]:
    """Those of backward: what forward has found is among them."""
    *forward, _ = given.values()
    made = run(
        "npu_fusion_attention", *forward, count, layout, scale=0.125, timing=False,
        device="Atlas A2", **more,
    )  # fmt: skip
    found = dict(
        zip(("attention_in", "softmax_max", "softmax_sum"), made.outputs.values(), strict=True)
    )
    return {
        **given,
        "head_num": count,
        "input_layout": layout,
        "scale_value": 0.125,
        **found,
        **more,
    }


def close(made: Any, expected: Exact) -> None:
    """Beyond the bounds only what sums in fp32 lose is allowed, and the last of fp16's bits."""
    for found, right, bound in zip(made.outputs.values(), *expected, strict=True):
        assert (abs(found.astype(np.float64) - right) <= 1.01 * bound + 1e-5).all()


def is_as_the_oracle_says(made: Any, given: dict[str, Any]) -> None:
    operator = ops.load("npu_fusion_attention_grad")
    every = {each.name: each.default for each in operator.parameters} | given
    found: Any = operator.oracle(Given(operator.name, every))
    for one, other in zip(made.outputs.values(), found, strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH", "SBH"])
@pytest.mark.parametrize(("queries", "keys", "kv_heads", "size", "dtype"), [
    ((2, 4, 33), 40, 2, 64, np.float16), ((1, 2, 20), 600, 2, 128, BF16),
    ((1, 1, 530), 17, 1, 16, BF16), ((1, 2, 40), 300, 1, 192, np.float16),
])  # fmt: skip
def test_gradients_of_all_layouts(
    queries: tuple[int, int, int], keys: int, kv_heads: int, size: int, dtype: Any, layout: str
) -> None:
    requests, count, tokens = queries
    shapes = [(count, tokens), (kv_heads, keys), (kv_heads, keys), (count, tokens)]
    tensors = {
        name: heads(seed, requests, *shape, size, dtype=dtype)
        for seed, (name, shape) in enumerate(zip(NAMES, shapes, strict=True))
    }
    turned = {name: in_layout(x, layout) for name, x in tensors.items()}
    given = arguments(turned, count, layout)
    made = run("npu_fusion_attention_grad", device="Atlas A2", **given)
    expected = exact(tensors, 0.125)
    close(made, Exact(*(tuple(in_layout(x, layout) for x in each) for each in expected)))
    is_as_the_oracle_says(made, given)


@pytest.mark.parametrize(("mode", "bounds"), [(2, None), (3, None), (4, (40, 9))])
@pytest.mark.parametrize(("tokens", "keys"), [(50, 50), (70, 700), (530, 540)])
def test_stencils_hide_by_mode(mode: int, bounds: Any, tokens: int, keys: int) -> None:
    tensors = {
        name: heads(mode, 1, 1, n, 64)
        for name, n in zip(NAMES, (tokens, keys, keys, tokens), strict=True)
    }
    away = np.arange(keys) - np.arange(tokens)[:, None]
    hidden = away > (0 if mode == 2 else keys - tokens)
    more: dict[str, Any] = {"atten_mask": STENCIL, "sparse_mode": mode}
    if bounds is not None:
        before, behind = bounds
        more |= {"pre_tockens": before, "next_tockens": behind}
        hidden = (away > keys - tokens + behind) | (away < keys - tokens - before)
    given = arguments(tensors, 1, "BNSD", **more)
    made = run("npu_fusion_attention_grad", device="Atlas A2", **given)
    close(made, exact(tensors, 0.125, hidden))
    is_as_the_oracle_says(made, given)


@pytest.mark.parametrize(
    ("tokens", "keys", "mode"), [(48, 80, 2), (48, 16, 2), (160, 592, 3), (544, 560, 4)]
)
def test_intermediate_matrices_may_lie_in_fractals(tokens: int, keys: int, mode: int) -> None:
    lengths = dict(zip(NAMES, (tokens, keys, keys, tokens), strict=True))
    tensors = {name: heads(seed, 1, 1, n, 16) for seed, (name, n) in enumerate(lengths.items())}
    more: dict[str, Any] = {"atten_mask": STENCIL, "sparse_mode": mode}
    away = np.arange(keys) - np.arange(tokens)[:, None] - (0 if mode == 2 else keys - tokens)
    hidden = away > 0
    if mode == 4:
        more |= {"pre_tockens": 30, "next_tockens": 11}
        hidden = (away > 11) | (away < -30)
    given = arguments(tensors, 1, "BNSD", **more)
    operator = ops.load("npu_fusion_attention_grad")
    problem: Any = operator.check(devices.load("Atlas A2"), **given)
    assert has_fractals(problem.attention)
    made = run("npu_fusion_attention_grad", device="Atlas A2", **given)
    close(made, exact(tensors, 0.125, hidden))
    is_as_the_oracle_says(made, given)


@pytest.mark.parametrize(("tokens", "keys", "dtype", "expected"), [
    (1024, 1024, "bfloat16", True), (1024, 1024, "float16", False), (512, 480, "bfloat16", True),
    (1024, 1032, "bfloat16", False), (384, 384, "bfloat16", False),
])  # fmt: skip
def test_the_choice_of_fractals(tokens: int, keys: int, dtype: str, expected: bool) -> None:
    given = specs(tokens, 1, 128, atten_mask=TensorSpec((2048, 2048), "uint8"), sparse_mode=2)
    given |= {
        name: TensorSpec((1, 1, tokens, 128), dtype) for name in ("query", "dy", "attention_in")
    }
    given |= {name: TensorSpec((1, 1, keys, 128), dtype) for name in ("key", "value")}
    problem: Any = ops.load("npu_fusion_attention_grad").check(devices.load("Atlas A2"), **given)
    assert has_fractals(problem.attention) is expected


def test_tokens_without_a_key_have_no_gradient() -> None:
    lengths = dict(zip(NAMES, (60, 20, 20, 60), strict=True))
    tensors = {name: heads(2, 1, 2, n, 64) for name, n in lengths.items()}
    given = arguments(tensors, 2, "BNSD", atten_mask=STENCIL, sparse_mode=3)
    made: Any = run("npu_fusion_attention_grad", device="Atlas A2", **given)
    of_query = made.outputs["output"]
    assert not of_query[:, :, :40].any()
    made.outputs["output"] = of_query[:, :, 40:]
    seen = {name: x[:, :, -20:] for name, x in tensors.items()}
    close(made, exact(seen, 0.125, np.arange(20) > np.arange(20)[:, None]))


def test_a_request_without_keys_has_no_gradient() -> None:
    sums = {"actual_seq_qlen": [5, 12], "actual_seq_kvlen": [9, 9]}
    q, k, v, dy = (heads(seed, n, 2, 64) for seed, n in enumerate((12, 9, 9, 12)))
    given = arguments(dict(zip(NAMES, (q, k, v, dy), strict=True)), 2, "TND", **sums)
    made: Any = run("npu_fusion_attention_grad", device="Atlas A2", **given)
    is_as_the_oracle_says(made, given)
    assert not made.outputs["output"][5:].any()
    own = {
        name: x[:n].swapaxes(0, 1)
        for name, x, n in zip(NAMES, (q, k, v, dy), (5, 9, 9, 5), strict=True)
    }
    of_query, *of_keys = made.outputs.values()
    for one, right, bound in zip((of_query[:5], *of_keys), *exact(own, 0.125), strict=True):
        assert (abs(one.swapaxes(0, 1).astype(np.float64) - right) <= 1.01 * bound + 1e-5).all()


def test_a_mask_is_taken_as_it_is() -> None:
    tensors = {
        name: heads(3, 2, 2, n, 64) for name, n in zip(NAMES, (40, 130, 130, 40), strict=True)
    }
    mask = np.random.default_rng(1).random((2, 1, 40, 130)) < 0.4
    given = arguments(tensors, 2, "BNSD", atten_mask=mask)
    made = run("npu_fusion_attention_grad", device="Atlas A2", **given)
    close(made, exact(tensors, 0.125, mask))
    is_as_the_oracle_says(made, given)


@pytest.mark.parametrize("softmax_layout", ["", "TND"])
def test_requests_behind_each_other(softmax_layout: str) -> None:
    lengths, keys = (5, 40, 0, 17), (9, 40, 4, 30)
    q, dy = (heads(seed, sum(lengths), 4, 64, dtype=BF16) for seed in (5, 6))
    k, v = (heads(seed, sum(keys), 2, 64, dtype=BF16) for seed in (7, 8))
    given = arguments(
        dict(zip(NAMES, (q, k, v, dy), strict=True)), 4, "TND", softmax_layout=softmax_layout,
        actual_seq_qlen=np.cumsum(lengths).tolist(), actual_seq_kvlen=np.cumsum(keys).tolist(),
        atten_mask=STENCIL, sparse_mode=3,
    )  # fmt: skip
    made: Any = run("npu_fusion_attention_grad", device="Atlas A2", **given)
    is_as_the_oracle_says(made, given)
    outputs = [x.astype(np.float64) for x in made.outputs.values()]
    row = key = 0
    for count, seen in zip(lengths, keys, strict=True):
        here, there = slice(row, row + count), slice(key, key + seen)
        parts = (q[here], k[there], v[there], dy[here])
        own = {name: x.swapaxes(0, 1) for name, x in zip(NAMES, parts, strict=True)}
        hidden = np.arange(seen) > np.arange(count)[:, None] + seen - count
        found = [x[at].swapaxes(0, 1) for x, at in zip(outputs, (here, there, there), strict=True)]
        for one, right, bound in zip(found, *exact(own, 0.125, hidden), strict=True):
            assert (abs(one - right) <= 1.01 * bound + 1e-5).all()
        row, key = row + count, key + seen


def test_the_second_version_is_the_same_by_other_names() -> None:
    tensors = {name: heads(9, 1, 2, 30, 32) for name in NAMES}
    bounds = {"pre_tockens": 4, "next_tockens": 3}
    given = arguments(tensors, 2, "BNSD", atten_mask=STENCIL, sparse_mode=4, **bounds)
    first: Any = run("npu_fusion_attention_grad", device="Atlas A2", **given)
    given |= {"pre_tokens": given.pop("pre_tockens"), "next_tokens": given.pop("next_tockens")}
    second: Any = run("npu_fusion_attention_grad_v2", device="Atlas A2", **given)
    for one, other in zip(first.outputs.values(), second.outputs.values(), strict=True):
        assert one.tobytes() == other.tobytes()


def specs(tokens: int, count: int, size: int, **more: Any) -> dict[str, Any]:
    """A call of shapes alone."""
    tensor, sums = (
        TensorSpec((1, count, tokens, n), kind) for n, kind in ((size, "float16"), (8, "float32"))
    )
    named = dict.fromkeys((*NAMES, "attention_in"), tensor)
    named |= dict.fromkeys(("softmax_max", "softmax_sum"), sums)
    return {**named, "head_num": count, "input_layout": "BNSD", **more}


def test_tiles_that_see_keys_are_dealt_to_the_cores_in_turn() -> None:
    spec, stencil = devices.load("ascend910b2"), TensorSpec((2048, 2048), "uint8")
    given = specs(1300, 4, 128, atten_mask=stencil, sparse_mode=2)
    problem = ops.load("npu_fusion_attention_grad").check(spec, **given)
    found = schedule(problem.attention, 5)  # type: ignore[attr-defined]
    assert [x.core for x in found[:6]] == [0, 1, 2, 3, 4, 0]
    # Three tiles of tokens for the first keys, then two, then one, of each head.
    places = [(x.head, x.key, x.token) for x in found[:7]]
    assert places == [
        (0, 0, 0), (0, 0, 512), (0, 0, 1024), (0, 512, 512), (0, 512, 1024), (0, 1024, 1024),
        (1, 0, 0),
    ]  # fmt: skip
    assert [x.is_last for x in found] == [False] * 19 + [True] * 5
    assert (found[5].tokens, found[5].keys) == (276, 276)


REFUSED: list[tuple[dict[str, Any], str, Code]] = [
    (dict.fromkeys(("key", "value"), TensorSpec((1, 2, 0, 16), "float16")), "a request must have "
     "tokens and keys, not none: such calls are not simulated; leave the call out",
     Code.UNSUPPORTED),
    ({"dy": TensorSpec((1, 2, 8, 32), "float16")}, "dy must have shape (1, 2, 8, 16), not "
     "(1, 2, 8, 32); pass that of npu_fusion_attention's output", Code.INVALID_PARAMETER),
    ({"softmax_sum": TensorSpec((1, 2, 8, 1), "float32")}, "softmax_sum must have shape "
     "(1, 2, 8, 8), not (1, 2, 8, 1); pass what npu_fusion_attention gave",
     Code.INVALID_PARAMETER),
    ({"keep_prob": 0.5}, "dropout_mask must be given with keep_prob 0.5, not None: another kernel "
     "draws it; pass what npu_dropout_gen_mask gives", Code.UNSUPPORTED),
    ({"sink": TensorSpec((2,), "float32")}, "sink must be None: a sink is not simulated in this "
     "kernel; leave it out", Code.UNSUPPORTED),
]  # fmt: skip


@pytest.mark.parametrize(("given", "text", "code"), REFUSED)
def test_what_does_not_fit_is_refused(given: dict[str, Any], text: str, code: Code) -> None:
    message = f"^npu_fusion_attention_grad: {re.escape(text)} \\[{code.value}\\]$"
    with pytest.raises(OpError, match=message):
        run("npu_fusion_attention_grad", device="Atlas A2", **specs(8, 2, 16) | given)
