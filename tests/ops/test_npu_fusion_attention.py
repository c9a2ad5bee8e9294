"""npu_fusion_attention and its second version: values, outputs for the gradient, refusals."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from npusim import Code, OpError, TensorSpec, run

BF16 = ml_dtypes.bfloat16
LOWEST = np.finfo(np.float32).min
STENCIL = np.triu(np.ones((2048, 2048), np.uint8), 1)
Array = Any


def heads(rng: np.random.Generator, *shape: int, dtype: Any = np.float16) -> Array:
    return rng.standard_normal(shape).astype(dtype)


def attend(q: Array, k: Array, v: Array, scale: float, hidden: Array = False) -> tuple[Array, ...]:
    """Of `(..., heads, tokens, columns)` in float64; hidden from all keys: the mean of values."""
    group = q.shape[-3] // k.shape[-3]
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, group, axis=-3) for x in (k, v))
    scores = np.where(hidden, LOWEST, q @ k.swapaxes(-1, -2) * scale)
    largest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - largest)
    total = weights.sum(-1, keepdims=True)
    return weights @ v / total, largest, total


def in_layout(x: Array, layout: str) -> Array:
    """*x* `(requests, heads, tokens, columns)` in *layout*."""
    order = {"BNSD": "bnsd", "BSND": "bsnd", "BSH": "bsnd", "SBH": "sbnd"}[layout]
    turned = np.ascontiguousarray(x.transpose(["bnsd".index(axis) for axis in order]))
    return turned.reshape(*turned.shape[:2], -1) if layout[-1] == "H" else turned


def close(made: Any, expected: tuple[Array, ...], layout: str = "BNSD") -> None:
    """Output, maxima and sums, eight of each, are those *expected*."""
    output, largest, total = made.outputs.values()
    step = 2.0 ** -(9 if output.dtype == np.float16 else 6)
    np.testing.assert_allclose(
        output.astype(np.float64), in_layout(expected[0], layout), rtol=step, atol=step
    )
    for found, one in ((largest, expected[1]), (total, expected[2])):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, np.repeat(one, 8, -1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH", "SBH"])
@pytest.mark.parametrize(("shape", "keys", "kv_heads", "dtype"), [
    ((2, 3, 70, 64), 1100, 3, np.float16), ((1, 4, 33, 128), 40, 2, BF16),
    ((3, 2, 1, 16), 2500, 1, np.float16), ((1, 1, 300, 48), 300, 1, BF16),
])  # fmt: skip
def test_all_layouts_attend_to_all_keys(
    shape: tuple[int, ...], keys: int, kv_heads: int, dtype: Any, layout: str
) -> None:
    rng = np.random.default_rng(keys)
    b, n, _, d = shape
    q, k, v = (
        heads(rng, b, count, length, d, dtype=dtype)
        for count, length in ((n, shape[2]), (kv_heads, keys), (kv_heads, keys))
    )
    given = (in_layout(x, layout) for x in (q, k, v))
    made = run("npu_fusion_attention", *given, n, layout, scale=d**-0.5, device="Atlas A2")
    close(made, attend(q, k, v, d**-0.5), layout)


def apart(tokens: int, keys: int) -> Array:
    return np.arange(keys) - np.arange(tokens)[:, None]


@pytest.mark.parametrize(("mode", "bounds"), [(2, None), (3, None), (4, (40, 9)), (4, (5, 0))])
@pytest.mark.parametrize(("tokens", "keys"), [(50, 50), (70, 1100), (33, 200)])
def test_stencils_hide_by_mode(mode: int, bounds: Any, tokens: int, keys: int) -> None:
    rng, away = np.random.default_rng(mode), apart(tokens, keys)
    q, k, v = (heads(rng, 2, 2, length, 64) for length in (tokens, keys, keys))
    hidden = away > (0 if mode == 2 else keys - tokens)
    given: dict[str, Any] = {}
    if bounds is not None:
        before, behind = bounds
        given = {"pre_tockens": before, "next_tockens": behind}
        hidden = (away > keys - tokens + behind) | (away < keys - tokens - before)
    made = run(
        "npu_fusion_attention", q, k, v, 2, "BNSD", atten_mask=STENCIL, sparse_mode=mode,
        scale=0.125, device="Atlas A2", **given,
    )  # fmt: skip
    close(made, attend(q, k, v, 0.125, hidden))


def test_a_mask_is_taken_as_it_is_and_rows_that_it_hides_are_the_mean_of_values() -> None:
    rng = np.random.default_rng(1)
    q, k, v = (heads(rng, 2, 2, length, 64) for length in (40, 130, 130))
    mask = rng.random((2, 1, 40, 130)) < 0.4
    mask[0, 0, 3] = True
    made = run(
        "npu_fusion_attention", q, k, v, 2, "BNSD", atten_mask=mask, scale=0.125,
        device="Atlas A2",
    )  # fmt: skip
    close(made, attend(q, k, v, 0.125, mask))
    total = made.outputs["softmax_sum"]
    assert (total[0, :, 3] == 130).all()

    emptied = run(
        "npu_fusion_attention", q, k, v, 2, "BNSD", atten_mask=mask, scale=0.125,
        inner_precise=2, device="Atlas A2",
    )  # fmt: skip
    output, largest, total = emptied.outputs.values()
    assert not output[0, :, 3].any()
    assert (total[0, :, 3] == -LOWEST).all()
    assert (largest[0, :, 3] == LOWEST).all()
    assert output[0, :, 2].tobytes() == made.outputs["output"][0, :, 2].tobytes()


def test_tokens_before_the_first_key_give_zeros_and_the_largest_sum() -> None:
    rng = np.random.default_rng(2)
    q, k, v = (heads(rng, 1, 2, length, 64) for length in (60, 20, 20))
    made = run(
        "npu_fusion_attention", q, k, v, 2, "BNSD", atten_mask=STENCIL, sparse_mode=3,
        scale=0.125, device="Atlas A2",
    )  # fmt: skip
    output, largest, total = made.outputs.values()
    assert not output[:, :, :40].any()
    assert (total[:, :, :40] == -LOWEST).all()
    assert (largest[:, :, :40] == LOWEST).all()
    expected = attend(q, k, v, 0.125, apart(60, 20) > -40)
    np.testing.assert_allclose(total[:, :, 40:, :1], expected[2][:, :, 40:], rtol=1e-5)


@pytest.mark.parametrize("softmax_layout", ["", "TND"])
def test_requests_behind_each_other(softmax_layout: str) -> None:
    rng, lengths, keys = np.random.default_rng(3), (5, 0, 40, 17), (9, 3, 40, 30)
    q = heads(rng, sum(lengths), 4, 64, dtype=BF16)
    k, v = (heads(rng, sum(keys), 2, 64, dtype=BF16) for _ in range(2))
    made = run(
        "npu_fusion_attention", q, k, v, 4, "TND", scale=0.125, softmax_layout=softmax_layout,
        actual_seq_qlen=np.cumsum(lengths).tolist(), actual_seq_kvlen=np.cumsum(keys).tolist(),
        device="Atlas A2",
    )  # fmt: skip
    output, _, total = made.outputs.values()
    assert total.shape == (62, 4, 8)
    flat, row, key = total.reshape(-1, 8), 0, 0
    for count, seen in zip(lengths, keys, strict=True):
        of_keys = (x[key : key + seen].swapaxes(0, 1) for x in (k, v))
        expected = attend(q[row : row + count].swapaxes(0, 1), *of_keys, 0.125)
        found = output[row : row + count].astype(np.float64).swapaxes(0, 1)
        np.testing.assert_allclose(found, expected[0], rtol=2**-6, atol=2**-6)
        own = flat[4 * row : 4 * (row + count), 0].reshape(4, count)
        if softmax_layout:
            own = total[row : row + count, :, 0].T
        np.testing.assert_allclose(own, expected[2][..., 0], rtol=1e-5)
        row, key = row + count, key + seen


def test_requests_at_the_end_may_take_no_part() -> None:
    x = heads(np.random.default_rng(4), 6, 1, 64)
    sums = {"actual_seq_qlen": [2, 6, 0], "actual_seq_kvlen": [2, 6, 0]}
    found = run("npu_fusion_attention", x, x, x, 1, "TND", device="Atlas A2", **sums)
    sums = {"actual_seq_qlen": [2, 6], "actual_seq_kvlen": [2, 6]}
    same = run("npu_fusion_attention", x, x, x, 1, "TND", device="Atlas A2", **sums)
    assert found.outputs["output"].tobytes() == same.outputs["output"].tobytes()


def test_rotated_parts_of_heads_are_multiplied_too() -> None:
    rng = np.random.default_rng(5)
    parts = [[heads(rng, 20, 2, size) for size in (128, 64)] for _ in range(2)]
    v = heads(rng, 20, 2, 128)
    made = run(
        "npu_fusion_attention_v2", parts[0][0], parts[1][0], v, 2, "TND", scale=0.1,
        query_rope=parts[0][1], key_rope=parts[1][1], atten_mask=STENCIL, sparse_mode=3,
        actual_seq_qlen=[20], actual_seq_kvlen=[20], device="Atlas A2",
    )  # fmt: skip
    q, k = (np.concatenate(each, axis=-1).swapaxes(0, 1) for each in parts)
    expected = attend(q, k, v.swapaxes(0, 1), 0.1, apart(20, 20) > 0)
    found = made.outputs["output"].astype(np.float64).swapaxes(0, 1)
    np.testing.assert_allclose(found, expected[0], rtol=2**-9, atol=2**-9)


def test_ties_of_bfloat16_go_away_from_zero() -> None:
    """The mean of two values that lie a step apart is between them."""
    values = np.array([1.0, 1.0 + 2**-7], BF16).reshape(1, 1, 2, 1).repeat(16, -1)
    zeros = np.zeros((1, 1, 2, 16), BF16)
    made = run("npu_fusion_attention", zeros, zeros, values, 1, "BNSD", device="Atlas A2")
    assert (made.outputs["output"].astype(np.float32) == 1 + 2**-7).all()


X = TensorSpec((1, 2, 8, 16), "float16")
BNSD: dict[str, Any] = dict.fromkeys(("query", "key", "value"), X) | {
    "head_num": 2, "input_layout": "BNSD",
}  # fmt: skip
REFUSED: list[tuple[dict[str, Any], str, Code]] = [
    ({"input_layout": "SBND"}, "input_layout must be BSH, SBH, BSND, BNSD or TND, not 'SBND'; "
     "choose one of these", Code.INVALID_PARAMETER),
    ({"head_num": 0}, "head_num must be 1 to 256, not 0; pass the heads of query",
     Code.INVALID_PARAMETER),
    ({"head_num": 4}, "query and key must have head_num heads, and one that divides it, of as many "
     "columns, not (1, 2, 8, 16) and (1, 2, 8, 16) for 4; pass them so", Code.INVALID_PARAMETER),
    ({"value": TensorSpec((1, 2, 8, 32), "float16")}, "a head of value must have at most as many "
     "columns as one of key, not 32 with 16; pad key", Code.INVALID_PARAMETER),
    ({"keep_prob": 0.0}, "keep_prob must lie in (0, 1], not be 0.0; pass 1",
     Code.INVALID_PARAMETER),
    ({"padding_mask": X}, "padding_mask must be None, not given; leave it out",
     Code.INVALID_PARAMETER),
    ({"softmax_layout": "TND"}, "softmax_layout must be empty, or TND with input_layout TND, not "
     "'TND' with BNSD; leave it out", Code.INVALID_PARAMETER),
    ({"atten_mask": TensorSpec((8, 9), "uint8")}, "atten_mask must have shape (8, 8) or "
     "(1, 1, 8, 8), not (8, 9); pass a row of keys for each token", Code.INVALID_PARAMETER),
    ({"atten_mask": TensorSpec((8, 8), "uint8"), "sparse_mode": 2}, "atten_mask must have shape "
     "(2048, 2048) with sparse_mode 2, not (8, 8); pass numpy.triu(numpy.ones((2048, 2048)), 1)",
     Code.INVALID_PARAMETER),
    ({"sparse_mode": 9}, "sparse_mode must be 0 to 8, not 9; choose one of these",
     Code.INVALID_PARAMETER),
    (dict.fromkeys(("query", "key", "value"), TensorSpec((1, 2, 8, 16), "float32")), "query must "
     "be float16 or bfloat16, not float32: the kernel for it is not simulated; cast query, key and "
     "value", Code.UNSUPPORTED),
    (dict.fromkeys(("query", "key", "value"), TensorSpec((1, 2, 8, 20), "float16")), "a head must "
     "have a multiple of 16 columns up to 512, not 20 and 20: others are not simulated; pad it",
     Code.UNSUPPORTED),
    (dict.fromkeys(("query", "key", "value"), TensorSpec((8, 2, 16), "float16"))
     | {"input_layout": "TND", "actual_seq_qlen": [8]}, "actual_seq_qlen and actual_seq_kvlen must "
     "be given in TND, as long as each other, not [8] and None; pass the sums of the lengths",
     Code.INVALID_PARAMETER),
    (dict.fromkeys(("query", "key", "value"), TensorSpec((8, 2, 16), "float16"))
     | {"input_layout": "TND", "actual_seq_qlen": [8], "actual_seq_kvlen": [7]}, "actual_seq_kvlen "
     "must rise to the tokens of key, 8, not be [7]; pass the sums of the lengths",
     Code.INVALID_PARAMETER),
]  # fmt: skip


@pytest.mark.parametrize(("given", "text", "code"), REFUSED)
def test_what_does_not_fit_is_refused(given: dict[str, Any], text: str, code: Code) -> None:
    message = f"^npu_fusion_attention: {re.escape(text)} \\[{code.value}\\]$"
    with pytest.raises(OpError, match=message):
        run("npu_fusion_attention", device="Atlas A2", **BNSD | given)
