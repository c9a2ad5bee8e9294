"""Gradients of permuting tokens by expert and back, composed of operators that select and add rows.

Sources: op-plugin@517f2e7 derivatives.yaml and op_plugin_functions.yaml; MoeTokenPermuteGrad adds
rows as MoeTokenUnpermute does (ops-transformer@3a280bc moe/moe_token_permute_grad). Padded tokens
are not supported.
"""

from __future__ import annotations

import torch

__all__ = ["permute_grad", "unpermute_grad"]


def permute_grad(
    tokens: torch.Tensor,
    grad_permuted_tokens: torch.Tensor,
    indices: torch.Tensor,
    sorted_indices: torch.Tensor,
    padded_mode: bool = False,
) -> torch.Tensor:
    """The gradient of each token: the sum of the gradients of its rows."""
    _require_unpadded("npu_moe_token_permute_grad", padded_mode)
    grad = grad_permuted_tokens
    if indices.numel() == tokens.shape[0] == grad.shape[0]:
        return grad.index_select(0, sorted_indices)
    found = torch.zeros_like(tokens)
    owner, places = _rows_of(sorted_indices, grad.shape[0], indices.numel() // tokens.shape[0])
    return found.index_add(0, owner, grad.index_select(0, places))


def unpermute_grad(
    permuted_tokens: torch.Tensor,
    grad_unpermuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    probs: torch.Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: list[int] | None = None,  # noqa: ARG001
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The gradients of the rows, and of the probabilities that weight them."""
    _require_unpadded("npu_moe_token_unpermute_grad", padded_mode)
    topk = 1 if probs is None else probs.shape[-1]
    owner, places = _rows_of(sorted_indices, permuted_tokens.shape[0], topk)
    grad = grad_unpermuted_tokens.index_select(0, owner)
    found = torch.zeros_like(permuted_tokens)
    if probs is None:
        return found.index_copy(0, places, grad), None
    chosen = slice(None) if places.numel() == probs.numel() else _kept(sorted_indices, found)
    weights = probs.reshape(-1, 1)[chosen]
    of_rows = found.index_copy(0, places, (grad * weights).to(found.dtype))
    products = (permuted_tokens.index_select(0, places).float() * grad.float()).sum(-1)
    of_probs = torch.zeros(probs.numel(), dtype=probs.dtype, device=probs.device)
    of_probs[chosen] = products.to(probs.dtype)
    return of_rows, of_probs.reshape(probs.shape)


def _kept(sorted_indices: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return (sorted_indices < rows.shape[0]).nonzero().flatten()


def _rows_of(
    sorted_indices: torch.Tensor, rows: int, topk: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The token of each choice, and its row; choices beyond the last row were dropped."""
    count = sorted_indices.numel()
    choices = torch.arange(count, device=sorted_indices.device)
    places = sorted_indices.long()
    if count > rows:
        kept = (places < rows).nonzero().flatten()
        choices, places = choices[kept], places[kept]
    return choices // topk, places


def _require_unpadded(name: str, padded_mode: bool) -> None:
    if padded_mode:
        raise NotImplementedError(
            f"{name}: padded_mode must be False, not True: the gradient of padded tokens is not "
            f"simulated; detach what is padded"
        )
