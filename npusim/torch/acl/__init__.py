"""pyACL, which comes with CANN and which libraries import next to torch_npu: its memory alone."""

from __future__ import annotations

from npusim.torch.acl import rt

__all__ = ["rt"]
