"""Sampling of the next token, composed of torch's sorts, sums and random numbers.

Sources: op-plugin@517f2e7, the documents torch_npu-npu_top_k_top_p.md and
torch_npu-npu_sim_exponential_.md.
"""

from __future__ import annotations

import torch

__all__ = ["sim_exponential_", "top_k_top_p"]

HIDDEN = float("-inf")


def top_k_top_p(
    logits: torch.Tensor, p: torch.Tensor | None = None, k: torch.Tensor | None = None
) -> torch.Tensor:
    """Mask with minus infinity all but the k largest of a row, and then all but the most likely."""
    values, order = torch.sort(logits, dim=-1, stable=True)
    if k is not None:
        places = (logits.shape[-1] - k.long())[:, None]
        values = values.masked_fill(values < values.gather(-1, places), HIDDEN)
    if p is not None:
        likely = torch.softmax(values.float(), -1).cumsum(-1) > 1 - p.float()[:, None]
        likely[:, -1] = True
        values = values.masked_fill(~likely, HIDDEN)
    return torch.empty_like(values).scatter_(-1, order, values)


def sim_exponential_(
    input: torch.Tensor, lambd: float = 1, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Fill *input* with exponentially distributed random numbers, none of them zero."""
    if lambd <= 0:
        raise RuntimeError(
            f"npu_sim_exponential_ expects lambd > 0.0, but found lambd={lambd}\n"
            f"npu_sim_exponential_: lambd must be positive, not {lambd}; pass another"
        )
    if lambd == float("inf"):
        return input.zero_()
    return input.exponential_(lambd, generator=generator)
