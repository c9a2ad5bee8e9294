"""Linear attention with a decayed state: a token at a time, or in chunks of 64 tokens.

.. code-block:: text

    S = exp(g_t) S;   S = S + beta_t (v_t - S k_t) k_t.T;   o_t = scale S q_t      per head

Neither kernel is simulated. Chunks run as products of bfloat16 and torch operations: sums within a
chunk by the inverse of a triangular matrix, made in float32 by squaring; then the state from chunk
to chunk, rounded to bfloat16 after each. Where intermediate results are rounded follows the
vendor's test; the way to the inverse is assumed. Token by token, the n-th tokens of all sequences
are computed together, in float32, and a state is rounded when it is stored (assumed).

Sources: ops-transformer@3a280bc attention/chunk_gated_delta_rule; op-plugin@517f2e7
ChunkGatedDeltaRuleKernelNpuOpApi.cpp, test_npu_chunk_gated_delta_rule.py and the document
torch_npu-npu_recurrent_gated_delta_rule.md.
"""

from __future__ import annotations

import torch

from npusim.torch.relabel import overwrite

__all__ = [
    "chunk_gated_delta_rule",
    "recurrent_gated_delta_rule",
    "recurrent_gated_delta_rule_functional",
]

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


# ---- a token at a time ----


def recurrent_gated_delta_rule_functional(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    state: torch.Tensor,
    *,
    beta: torch.Tensor | None = None,
    scale: float | None = None,
    actual_seq_lengths: torch.Tensor | None = None,
    ssm_state_indices: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    g: torch.Tensor | None = None,
    gk: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The outputs `(tokens, value heads, value columns)`, and the states after each token.

    A sequence starts from the state of its last accepted token, or of its first token. Each token
    writes its state to its own block of *state* `(blocks, value heads, value columns, key
    columns)`. Raises RuntimeError without the lengths and the blocks of the tokens.
    """
    if actual_seq_lengths is None or ssm_state_indices is None:
        raise RuntimeError(
            "npu_recurrent_gated_delta_rule: actual_seq_lengths and ssm_state_indices must be "
            "given, but are not both; pass the length of each sequence and the block of each token"
        )
    repeats = value.shape[1] // key.shape[1]
    q = query.float().repeat_interleave(repeats, 1) * (scale or key.shape[-1] ** -0.5)
    k = key.float().repeat_interleave(repeats, 1)
    v = value.float()
    decay = _decay(v, g, gk)
    lengths = actual_seq_lengths.long()
    first = lengths.cumsum(0) - lengths
    blocks = ssm_state_indices.long()
    accepted = 0 if num_accepted_tokens is None else num_accepted_tokens.long() - 1
    current = state[blocks[first + accepted]].float()
    states, output = state.clone(), torch.zeros_like(v)
    for step in range(int(lengths.max())):
        going = (lengths > step).nonzero()[:, 0]
        token = first[going] + step
        before = current[going] * decay[token]
        change = v[token] - (before * k[token][..., None, :]).sum(-1)
        change = change if beta is None else change * beta[token].float()[..., None]
        after = before + change[..., None] * k[token][..., None, :]
        output[token] = (after * q[token][..., None, :]).sum(-1)
        states[blocks[token]] = after.to(state.dtype)
        current[going] = after
    return output.to(value.dtype), states


def _decay(v: torch.Tensor, g: torch.Tensor | None, gk: torch.Tensor | None) -> torch.Tensor:
    """The factors of the states before each token, `(tokens, heads, 1, 1 or key columns)`."""
    found = torch.ones((*v.shape[:2], 1, 1), device=v.device)
    found = found if g is None else found * g.float().exp()[..., None, None]
    return found if gk is None else found * gk.float().exp()[..., None, :]


def recurrent_gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    state: torch.Tensor,
    **given: torch.Tensor,
) -> torch.Tensor:
    """The same with the states written to *state*."""
    output, states = recurrent_gated_delta_rule_functional(query, key, value, state, **given)
    overwrite(state, states)
    return output
