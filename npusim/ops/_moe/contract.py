"""What the contracts of the routing operators share."""

from __future__ import annotations

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32

__all__ = ["FLOATS"]

FLOATS = (FLOAT32, FLOAT16, BFLOAT16)
"""What tokens are made of (ops-transformer@c29bc10, moe: for A2 and A3; the form of
npu_moe_init_routing_v2 for 310P is another kernel, which is not simulated)."""
