"""What the plans of all templates say."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Which kernel runs, why, and on how many cores; each template adds its own numbers."""

    template: str
    form: str
    reason: str
    block_dim: int
    is_mix: bool
    """Whether vector cores start beside the cube cores."""
    workspaces: dict[str, int]
    """Tensors that cores hand work over in: name -> bytes."""
