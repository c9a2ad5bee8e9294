"""npu_chunk_gated_delta_rule: linear attention with a decayed state, in chunks of 64 tokens.

.. code-block:: text

    S = exp(g_t) S;   S = S + beta_t (v_t - S k_t) k_t.T;   o_t = scale S q_t      per head

Its kernel is not simulated. Its stages run as products of bfloat16 and torch operations: sums
within a chunk by the inverse of a triangular matrix, made in float32 by squaring; then the state
from chunk to chunk, rounded to bfloat16 after each. Where intermediate results are rounded follows
the vendor's test; the way to the inverse is assumed.

Sources: ops-transformer@3a280bc attention/chunk_gated_delta_rule; op-plugin@517f2e7
ChunkGatedDeltaRuleKernelNpuOpApi.cpp and test_npu_chunk_gated_delta_rule.py.
"""

from __future__ import annotations

import torch

__all__ = ["chunk_gated_delta_rule"]

CHUNK = 64
"""Tokens of a chunk."""
FACTORS = 6
"""Factors of the inverse: 2 to this power is a chunk."""
HALF = torch.bfloat16


def chunk_gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    beta: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
    actual_seq_lengths: torch.Tensor | None = None,
    scale: float | None = None,
    g: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output `(tokens, heads, width)` and the last state of each request.

    Tokens behind the last request are zero, which a card does not write.
    """
    required = {
        "beta": beta,
        "initial_state": initial_state,
        "actual_seq_lengths": actual_seq_lengths,
        "scale": scale,
    }
    for name, given in required.items():
        if given is None:
            raise RuntimeError(
                f"{name} cannot be empty\nnpu_chunk_gated_delta_rule: {name} must be given, not "
                "None; pass it"
            )
    assert beta is not None
    assert initial_state is not None
    assert actual_seq_lengths is not None
    repeats = value.shape[1] // key.shape[1]
    query, key = (x.repeat_interleave(repeats, 1) for x in (query, key))
    decay = torch.zeros_like(beta, dtype=torch.float32) if g is None else g.float()
    output, states, start = value.new_zeros(value.shape, dtype=HALF), [], 0
    for state, length in zip(initial_state, actual_seq_lengths.tolist(), strict=True):
        here = slice(start, start + length)
        parts = [_chunks(x[here]) for x in (query, key, value, beta[..., None], decay[..., None])]
        found, last = _request(parts, state.to(HALF), scale)
        output[here] = found.flatten(1, 2)[:, :length].transpose(0, 1)
        states.append(last)
        start += length
    return output, torch.stack(states).to(initial_state.dtype)


def _chunks(x: torch.Tensor) -> torch.Tensor:
    """*x* `(tokens, heads, width)` as `(heads, chunks, CHUNK, width)`; the last is padded."""
    padded = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, -len(x) % CHUNK))
    return padded.transpose(0, 1).unflatten(1, (-1, CHUNK)).contiguous()


def _request(
    parts: list[torch.Tensor], state: torch.Tensor, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output of all chunks of a request, `(heads, chunks, CHUNK, width)`, and its last state.

    *state* is `(heads, width, key width)`.
    """
    q, k, v, beta, g = parts
    beta, total = beta.float(), g.cumsum(-2)
    # From token to token of a chunk: exp(g of all tokens after one up to another).
    apart = (total - total.mT).tril().exp().tril()
    own = -((k @ k.mT).float() * beta * apart).tril(-1)
    inverse = _geometric(own).to(HALF)
    values = inverse @ (v.float() * beta).to(HALF)
    removed = inverse @ (k.float() * beta * -total.exp()).to(HALF)
    asked = (q.float() * scale * total.exp()).to(HALF)
    end = total[..., -1:, :]
    kept = (k.float() * (end - total).exp()).to(HALF)
    scores = ((q @ k.mT).float() * scale * apart).to(HALF)
    found = []
    for chunk in range(q.shape[1]):
        earlier = asked[:, chunk] @ state.mT
        new = values[:, chunk] + removed[:, chunk] @ state.mT
        found.append(earlier + scores[:, chunk] @ new)
        decayed = (state.float() * end[:, chunk].exp()).to(HALF)
        state = decayed + new.mT @ kept[:, chunk]
    return torch.stack(found, 1), state


def _geometric(own: torch.Tensor) -> torch.Tensor:
    """The inverse of 1 - *own*, which is strictly lower triangular: `(1 + own) (1 + own^2) ...`."""
    one = torch.eye(CHUNK, dtype=own.dtype, device=own.device)
    found, power = one + own, own
    for _ in range(FACTORS - 1):
        power = power @ power
        found = found @ (one + power)
    return found
