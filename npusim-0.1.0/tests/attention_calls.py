"""Calls of npu_fused_infer_attention_score in TND that tests make, and attention in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from op_calls import assert_as_reference

from npusim import TensorSpec, devices, ops

__all__ = [
    "A2",
    "A3",
    "KNOWN",
    "KNOWN_LSE",
    "OP",
    "RELATIVE",
    "STENCIL",
    "attention_call",
    "float64_attention",
    "known_tensors",
    "reference",
    "specs_of",
    "values",
]

Array = NDArray[Any]
OP = "npu_fused_infer_attention_score"
A2, A3 = "ascend910b2", "ascend910_9391"
RELATIVE = {np.float16: 1e-3, ml_dtypes.bfloat16: 1e-2}
"""The vendor's own test compares with 1e-3 (op-plugin, its test of fp16); bf16 has 8 bits."""
KNOWN = {
    np.float16: ("8A79 96DC 0FE7 1260 91F7 91EC", "9031 8CFD 17E9 1034 103B 10D7"),
    ml_dtypes.bfloat16: ("B950 BADB 39FE 3A4D BA3F BA3E", "BA05 B99F 3AFD 3A07 3A07 3A1C"),
}
"""The first six columns of both heads of `known_tensors`, found step by step in numpy."""
KNOWN_LSE = np.float32([6.4466305, 6.448041]).tolist()
STENCIL = np.triu(np.ones((2048, 2048), np.int8), 1)


def attention_call(
    rng: np.random.Generator,
    query_lengths: Sequence[int],
    kv_lengths: Sequence[int],
    heads: tuple[int, int],
    head_size: int,
    dtype: Any,
    block_size: int = 0,
    **more: Any,
) -> dict[str, Any]:
    """Random tokens of requests; keys in pages of *block_size*, scattered over the cache, or not.

    Causal unless *more* says otherwise.
    """

    def tensor(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(dtype)

    own: dict[str, Any] = {
        "query": tensor(sum(query_lengths), heads[0], head_size),
        "actual_seq_lengths": np.cumsum(query_lengths).tolist(),
        "num_heads": heads[0],
        "num_key_value_heads": heads[1],
        "scale": head_size**-0.5,
        "input_layout": "TND",
        "sparse_mode": 3,
        "atten_mask": STENCIL,
    }
    if block_size:
        needed = [-(-length // block_size) for length in kv_lengths]
        blocks = rng.permutation(sum(needed) + 2).astype(np.int32)
        table = np.zeros((len(needed), max(needed) + 1), np.int32)
        for row, count, first in zip(table, needed, np.cumsum([0, *needed]), strict=False):
            row[:count] = blocks[first : first + count]
        shape = len(blocks), block_size, heads[1] * head_size
        own |= {"key": tensor(*shape), "value": tensor(*shape), "block_table": table}
        own |= {"block_size": block_size, "actual_seq_lengths_kv": list(kv_lengths)}
    else:
        shape = sum(kv_lengths), heads[1], head_size
        own |= {"key": tensor(*shape), "value": tensor(*shape)}
        own |= {"actual_seq_lengths_kv": np.cumsum(kv_lengths).tolist()}
    return own | more


def _keys(call: dict[str, Any], name: str, request: int, length: int) -> Array:
    """Keys or values of a request, float64 `(keys, heads, columns)`."""
    heads = call["num_key_value_heads"]
    head_size = call["query"].shape[2]
    if "block_table" not in call:
        end = call["actual_seq_lengths_kv"][request]
        return np.asarray(call[name][end - length : end], np.float64)
    size = call["block_size"]
    blocks = call["block_table"][request, : -(-length // size)]
    tokens = call[name][blocks].reshape(len(blocks) * size, heads, head_size)
    return np.asarray(tokens[:length], np.float64)


def float64_attention(
    call: dict[str, Any], query_lengths: Sequence[int], kv_lengths: Sequence[int]
) -> Array:
    """What the document's formula gives in float64, `(tokens, heads, columns)`."""
    query = call["query"].astype(np.float64)
    output = np.zeros(query.shape)
    group = call["num_heads"] // call["num_key_value_heads"]
    ends = call["actual_seq_lengths"]
    for request, (tokens, keys) in enumerate(zip(query_lengths, kv_lengths, strict=True)):
        k, v = (_keys(call, name, request, keys) for name in ("key", "value"))
        here = slice(ends[request] - tokens, ends[request])
        apart = np.arange(keys) - np.arange(tokens)[:, None] - keys + tokens
        before, after = 2**31, 2**31
        if call["sparse_mode"] == 3:
            after = 0
        elif call["sparse_mode"] == 4:
            before, after = call["pre_tokens"], call["next_tokens"]
        for head in range(query.shape[1] if keys else 0):
            scores = query[here, head] @ k[:, head // group].T * call["scale"]
            hidden = (apart > after) | (apart < -before)
            scores[hidden] = -np.inf
            # A token that sees no key gives zeros.
            scores[hidden.all(1)] = 0
            p = np.exp(scores - scores.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            p[hidden.all(1)] = 0
            output[here, head] = p @ v[:, head // group]
    return output


def specs_of(call: dict[str, Any]) -> dict[str, Any]:
    """The same call without values."""
    return {
        name: TensorSpec(value.shape, value.dtype.name) if isinstance(value, np.ndarray) else value
        for name, value in call.items()
    }


def known_tensors(dtype: Any) -> tuple[Array, Array, Array]:
    """Two query heads of one token `(2, 16)`, and 600 keys and values `(600, 16)`."""
    h, d = np.meshgrid(range(2), range(16), indexing="ij")
    query = ((3 * h + 5 * d) % 11 - 5) / 4
    t, d = np.meshgrid(range(600), range(16), indexing="ij")
    key, value = ((7 * t + 2 * d) % 13 - 6) / 8, ((5 * t + 3 * d) % 17 - 8) / 16
    return query.astype(dtype), key.astype(dtype), value.astype(dtype)


def reference(call: dict[str, Any], device: str = A2) -> Any:
    """The oracle's output and softmax_lse."""
    return ops.load(OP).reference(**call, spec=devices.load(device))


def values(call: dict[str, Any], device: str = A2) -> Any:
    """The outputs of a tiled run, which have the bits of the reference."""
    return assert_as_reference(OP, device=device, **call).output
