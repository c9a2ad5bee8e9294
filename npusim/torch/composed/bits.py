"""Flags packed as bits, eight to a byte, with torch operations."""

from __future__ import annotations

import torch

__all__ = ["packed", "unpacked"]

BITS = 8


def packed(flags: torch.Tensor) -> torch.Tensor:
    """Pack eight *flags* into each byte, the first as its highest bit (assumed); pad with ones."""
    behind = -flags.numel() % BITS
    whole = torch.cat([flags, flags.new_ones(behind)]).reshape(-1, BITS).int()
    return (whole * _values(flags)).sum(-1).to(torch.uint8)


def unpacked(packed: torch.Tensor, count: int) -> torch.Tensor:
    """The first *count* flags of *packed*, as bool."""
    return (packed.int()[:, None] & _values(packed)).bool().flatten()[:count]


def _values(like: torch.Tensor) -> torch.Tensor:
    """The value of each bit of a byte, highest first."""
    return 2 ** torch.arange(BITS - 1, -1, -1, dtype=torch.int32, device=like.device)
