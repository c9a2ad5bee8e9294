"""The operators of the namespace `npu`."""

from __future__ import annotations

from npusim.torch.backend import Define

__all__ = ["register"]


def register(define: Define) -> None:
    """Define every operator; called once by `npusim.torch.install`."""
