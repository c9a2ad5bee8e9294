"""npu_kv_rmsnorm_rope_cache: values against float64, places of all modes, refusals."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from npusim import Code, OpError, TensorSpec, ops, run
from npusim.ops._oracle import Given

NAME, BF16 = "npu_kv_rmsnorm_rope_cache", ml_dtypes.bfloat16
Array = Any


def call(
    batches: int, tokens: int, mode: str, *, lines: bool, dtype: Any = BF16, **more: Any
) -> dict[str, Any]:
    """Random tensors; the first token is left out."""
    rng = np.random.default_rng(batches * tokens)
    size, blocks = 16, 5

    def drawn(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(dtype)

    shape = (batches, 1, 30) if mode == "Norm" else (blocks, size, 1)
    if mode == "Norm":
        index = np.stack([rng.permutation(30)[:tokens] for _ in range(batches)])
    elif mode == "PA_BLK_BNSD":
        index = rng.permutation(blocks)[: batches * -(-tokens // size)] * size
    else:
        index = rng.permutation(blocks * size)[: batches * tokens]
    index.reshape(-1)[0] = -1
    line = (batches, 1, tokens if lines else 1, 64)
    return {
        "kv": drawn(batches, 1, tokens, 576),
        "gamma": drawn(512),
        "cos": drawn(*line),
        "sin": drawn(*line),
        "index": index.astype(np.int64),
        "k_cache": drawn(*shape, 64),
        "ckv_cache": drawn(*shape, 512),
        "cache_mode": mode,
    } | more


def exact(given: dict[str, Any]) -> tuple[Array, Array]:
    """What goes into both caches, in float64."""
    kv, gamma, cos, sin = (given[x].astype(np.float64) for x in ("kv", "gamma", "cos", "sin"))
    x, pairs = kv[..., :512], kv[..., 512:].reshape(*kv.shape[:-1], 32, 2)
    normed = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * gamma
    turned = pairs[..., ::-1] * [-1, 1]
    parts = (np.moveaxis(each, -1, -2).reshape(*kv.shape[:-1], 64) for each in (pairs, turned))
    even, odd = parts
    return even * cos + odd * sin, normed


def place_of(given: dict[str, Any], batch: int, token: int) -> int:
    """Of a token, counted through all batches or blocks."""
    index, mode, tokens = given["index"].reshape(-1), given["cache_mode"], given["kv"].shape[2]
    if mode == "PA_BLK_BNSD":
        found = int(index[batch * -(-tokens // 16) + token // 16])
        return found + token % 16 if found >= 0 else -1
    found = int(index[batch * tokens + token])
    return found + batch * 30 if mode == "Norm" and found >= 0 else found


def stored(cache: Array, mode: str, place: int) -> Array:
    """What stands in a place of *cache*."""
    if mode != "PA_NZ":
        return cache.reshape(-1, cache.shape[-1])[place]
    return cache[place // 16].reshape(-1, 16, 16)[:, place % 16].reshape(-1)


CALLS = [
    (4, 1, "Norm", False, "batches"), (3, 1, "PA", False, "batches"),
    (8, 3, "PA_BNSD", False, "batches"), (2, 9, "Norm", True, "tokens"),
    (1, 37, "PA", True, "tokens"), (2, 20, "PA_NZ", True, "tokens"),
    (2, 20, "PA_BLK_BNSD", True, "tokens"), (200, 1, "Norm", False, "batches"),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [BF16, np.float16], ids=str)
@pytest.mark.parametrize(("batches", "tokens", "mode", "lines", "template"), CALLS)
def test_tokens_go_to_their_places(
    batches: int, tokens: int, mode: str, lines: bool, template: str, dtype: Any
) -> None:
    given = call(batches, tokens, mode, lines=lines, dtype=dtype)
    made: Any = run(NAME, device="Atlas A2", **given)
    assert made.template == template
    left = {name: np.array(given[name]) for name in ("k_cache", "ckv_cache")}
    step = 2.0 ** -(11 if dtype == np.float16 else 8)
    for name, values in zip(left, exact(given), strict=True):
        found = made.outputs[name]
        for batch, token in np.ndindex(batches, tokens):
            place = place_of(given, batch, token)
            if place < 0:
                continue
            one = stored(found, mode, place).astype(np.float64)
            right = values[batch, 0, token]
            assert (abs(one - right) <= 1.01 * step * abs(right) + 1e-5).all()
            stored(left[name], mode, place)[...] = stored(found, mode, place)
        if mode != "PA_NZ":
            # All else is as it was.
            assert found.tobytes() == left[name].tobytes()
    operator = ops.load(NAME)
    every = {each.name: each.default for each in operator.parameters} | given
    expected: Any = operator.oracle(Given(NAME, every))
    for one, other in zip(made.outputs.values(), expected, strict=True):
        assert one.tobytes() == other.tobytes()


def test_what_went_into_the_caches_comes_out_too() -> None:
    given = call(5, 1, "PA", lines=False, is_output_kv=True)
    made: Any = run(NAME, device="Atlas A2", **given)
    for name, cache in (("k_rope", "k_cache"), ("c_kv", "ckv_cache")):
        for batch in range(1, 5):
            place = place_of(given, batch, 0)
            kept = made.outputs[name][batch, 0, 0]
            assert kept.tobytes() == stored(made.outputs[cache], "PA", place).tobytes()
    right = exact(given)[1]
    assert (abs(made.outputs["c_kv"].astype(np.float64) - right) <= 2**-8 * abs(right)).all()


def spec(*shape: int, dtype: str = "bfloat16") -> TensorSpec:
    return TensorSpec(shape, dtype)


SPECS: dict[str, Any] = {
    "kv": spec(2, 1, 3, 576), "gamma": spec(512), "cos": spec(2, 1, 3, 64),
    "sin": spec(2, 1, 3, 64), "index": spec(6, dtype="int64"), "k_cache": spec(4, 16, 1, 64),
    "ckv_cache": spec(4, 16, 1, 512), "cache_mode": "PA",
}  # fmt: skip
REFUSED: list[tuple[dict[str, Any], str, Code]] = [
    ({"v": spec(2, 1, 3, 128)}, "v must be None: the kernel for it is not simulated; leave it "
     "out", Code.UNSUPPORTED),
    ({"cache_mode": "PA_BLK_NZ"}, "cache_mode must be Norm, PA, PA_BNSD, PA_NZ or PA_BLK_BNSD, not "
     "'PA_BLK_NZ': it is not simulated; pass one", Code.UNSUPPORTED),
    ({"kv": spec(2, 1, 3, 512)}, "kv must have shape (batches, 1, tokens, 576), not (2, 1, 3, "
     "512); reshape it", Code.INVALID_PARAMETER),
    ({"ckv_cache": spec(4, 8, 1, 512)}, "k_cache and ckv_cache must have 64 and 512 columns and as "
     "many places, not shapes (4, 16, 1, 64) and (4, 8, 1, 512); pass them so",
     Code.INVALID_PARAMETER),
    ({"cache_mode": "Norm"}, "k_cache must be (2, 1, places, 64) in Norm, else (blocks, "
     "block_size, 1, 64), not (4, 16, 1, 64); reshape it", Code.INVALID_PARAMETER),
    ({"cache_mode": "PA_NZ", "cos": spec(2, 1, 1, 64), "sin": spec(2, 1, 1, 64)}, "cos and sin "
     "must have a line for each of 3 tokens in PA_NZ, not one for a batch: that is not simulated; "
     "expand them", Code.UNSUPPORTED),
    ({"index": np.array([0, 1, 2, 3, 4, 64])}, "index must name places below 64, which the caches "
     "have, not 64; make the caches larger, or pass -1 to leave the token out",
     Code.INVALID_PARAMETER),
    ({"index": np.array([0, 1, 2, 3, 4, 1])}, "index must name each place once, not 1 twice: which "
     "token is kept is open on a card; leave one of the tokens out with -1",
     Code.INVALID_PARAMETER),
]  # fmt: skip


@pytest.mark.parametrize(("given", "text", "code"), REFUSED)
def test_what_does_not_fit_is_refused(given: dict[str, Any], text: str, code: Code) -> None:
    message = f"^{NAME}: {re.escape(text)} \\[{code.value}\\]$"
    with pytest.raises(OpError, match=message):
        run(NAME, device="Atlas A2", **SPECS | given)
