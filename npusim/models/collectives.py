"""What collectives take in a step, and kernels that send tokens straight to their experts."""

from __future__ import annotations

from npusim import collectives
from npusim.devices.schema import DeviceSpec

__all__ = ["time_us"]

START_US = {"dispatch": 45.3, "combine": 26.8}
"""The least of 218 calls with one token (hudingyi688/aiconfigurator-npu@11bc0ae8, groundtruth, A3;
taken for A2 too)."""
BYTES_PER_S = {"dispatch": 84e9, "combine": 148e9}
"""What a card sends beyond that time: 128 tokens of 7168, top 8, among 8 dies take 132 us in int8
and 126 us back in bf16 (sgl-kernel-npu@f425bdf1, README)."""


def time_us(kind: str, size_bytes: int, cards: int, device: DeviceSpec) -> float:
    """The time of a collective of *size_bytes*, or of *dispatch* or *combine*, which send them."""
    for known in collectives.KINDS:
        if kind == known:
            return collectives.time_us(known, size_bytes, cards, device)
    return START_US[kind] + size_bytes / BYTES_PER_S[kind] * 1e6
