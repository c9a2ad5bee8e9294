"""`torchair.experimental`."""

from __future__ import annotations

from npusim.torch.torchair import internal_format as inference

__all__ = ["inference"]
