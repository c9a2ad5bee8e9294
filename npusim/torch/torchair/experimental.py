"""`torchair.experimental`."""

from __future__ import annotations

from npusim.torch.torchair import inference

__all__ = ["inference"]
