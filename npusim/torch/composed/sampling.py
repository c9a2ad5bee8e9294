"""Sampling of the next token, composed of torch's sorts, sums and random numbers.

Sources: op-plugin@517f2e7, the documents torch_npu-npu_top_k_top_p.md,
torch_npu-npu_top_k_top_p_sample.md and torch_npu-npu_sim_exponential_.md.
"""

from __future__ import annotations

import torch

from npusim.torch.errors import require_choice

__all__ = ["sim_exponential_", "top_k_top_p", "top_k_top_p_sample"]

MOST_CHOSEN = 1024
"""Largest number of words that top_k of npu_top_k_top_p_sample may leave."""
CHOSEN_UNIT = 8
"""That number is rounded up to a multiple of this."""
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


def top_k_top_p_sample(
    logits: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    q: torch.Tensor | None = None,
    eps: float = 1e-8,
    is_need_logits: bool = False,
    top_k_guess: int = 32,  # noqa: ARG001
    min_ps: torch.Tensor | None = None,
    ks_max: int = MOST_CHOSEN,
    input_is_logits: bool = True,
    post_sample: str = "qSample",
    generator: torch.Generator | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The word chosen in each row of *logits* `(rows, words)`, and the logits that were left.

    The k most likely words are left, of these the fewest whose shares reach p, and of these the
    ones with at least *min_ps* of the largest share. *q* divides the shares (`qSample`), or they
    are drawn from (`multiNomial`); the largest is taken. A k outside of 1 to *ks_max*, a p of 1 and
    a minimum of 0 leave all. *top_k_guess* changes the time alone, and is not simulated.
    """
    choices = ("qSample", "multiNomial", "None")
    require_choice("npu_top_k_top_p_sample", "post_sample", post_sample, *choices)
    place = torch.arange(logits.shape[-1], device=logits.device)
    rounded = -(-min(ks_max, MOST_CHOSEN) // CHOSEN_UNIT) * CHOSEN_UNIT
    k, p = top_k.long()[:, None], top_p.float()[:, None]
    least = torch.zeros_like(p) if min_ps is None else min_ps.float()[:, None]
    has_k, has_p = (k >= 1) & (k <= min(rounded, MOST_CHOSEN, len(place))), p < 1
    is_sorted = has_k | has_p | (least >= 1)
    values, order = torch.sort(logits.float(), dim=-1, descending=True, stable=True)
    values = torch.where(is_sorted, values, logits.float())
    order = torch.where(is_sorted, order, place)
    left = (place < k) | ~has_k
    none = HIDDEN if input_is_logits else 0.0
    shares = values.masked_fill(~left, none)
    shares = torch.softmax(shares, -1) if input_is_logits else shares
    left = left & ((shares.cumsum(-1) - shares < p) | ~has_p | (place == 0))
    if input_is_logits:
        shares = shares.masked_fill((p <= 0) & (place == 0), 1.0)
    is_likely = (shares >= shares.amax(-1, keepdim=True) * least) | (least >= 1)
    left = left & is_likely & ((least < 1) | (place == 0))
    shares = shares.masked_fill(~left, 0.0)
    if q is not None and post_sample == "multiNomial":
        found = torch.multinomial(shares, 1, replacement=True, generator=generator)
    else:
        if q is not None and post_sample == "qSample":
            # The words that are left are divided by the first columns of q.
            rank = (left.cumsum(-1) - 1).clamp(min=0)
            shares = (shares / (q.abs().gather(-1, rank) + eps)).masked_fill(~left, -1.0)
        found = shares.argmax(-1, keepdim=True)
    chosen = order.gather(-1, found)[:, 0]
    if not is_need_logits:
        return chosen, shares.new_empty(0)
    return chosen, torch.empty_like(values).scatter_(-1, order, values.masked_fill(~left, none))


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
