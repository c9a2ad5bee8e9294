"""Linear attention with a gated delta rule, a token at a time, composed of torch operations.

Source: op-plugin@517f2e7, torch_npu-npu_recurrent_gated_delta_rule.md. States are computed in
float32 and rounded once, when they are stored (assumed: the source of the kernel is not public).
The n-th tokens of all sequences are computed together.
"""

from __future__ import annotations

import torch

from npusim.torch.relabel import overwrite

__all__ = ["recurrent_gated_delta_rule", "recurrent_gated_delta_rule_functional"]


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
