"""Flags as bits, eight to a byte, made of torch's own operations."""

from __future__ import annotations

import torch

__all__ = ["packed", "unpacked"]

BITS = 8


def packed(flags: torch.Tensor) -> torch.Tensor:
    """Eight *flags* in turn as a byte, the first its highest bit (assumed); behind the last, 1."""
    behind = -flags.numel() % BITS
    whole = torch.cat([flags, flags.new_ones(behind)]).reshape(-1, BITS).int()
    return (whole * _values(flags)).sum(-1).to(torch.uint8)


def unpacked(packed: torch.Tensor, count: int) -> torch.Tensor:
    """The first *count* of such flags, as bool."""
    return (packed.int()[:, None] & _values(packed)).bool().flatten()[:count]


def _values(like: torch.Tensor) -> torch.Tensor:
    """What each bit of a byte is worth, from the highest on."""
    return 2 ** torch.arange(BITS - 1, -1, -1, dtype=torch.int32, device=like.device)
