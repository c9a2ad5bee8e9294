"""What collectives take: one place, with the signature of a module of their own."""

from __future__ import annotations

from npusim.devices.schema import DeviceSpec

__all__ = ["time_us"]

START_US = {"Atlas A2": 6.3, "Atlas A3": 6.3}
"""Median of hcom_allReduce_ of 4 cards in a served model's graph (hudingyi688/aiconfigurator-npu@
11bc0ae8, docs/profiler_alignment/groundtruth); A3, taken for A2 too."""
LINK_BYTES_PER_S = {"Atlas A2": 18e9, "Atlas A3": 18e9}
"""Each way of a link of the mesh: all_reduce of 2, 4 and 8 cards at the largest size
(xiaowanCN/aiconfigurator-npu@0af81bf5, ascend_910b/nccl/2.26.0)."""
MB = 1e6


def time_us(kind: str, size_bytes: int, cards: int, device: DeviceSpec) -> float:
    """The time of collective *kind* among *cards*, where each card has *size_bytes*.

    A card of a mesh sends each of the others its part at once: one exchange gathers or scatters,
    two reduce for all.
    """
    if device.series == "Atlas inference":
        return _ring_us(size_bytes, cards)
    exchanges = 2 if kind == "all_reduce" else 1
    part_bytes = size_bytes if kind == "all_gather" else size_bytes / cards
    start_us, rate = START_US[device.series], LINK_BYTES_PER_S[device.series]
    return start_us + exchanges * part_bytes / rate * 1e6


def _ring_us(size_bytes: int, cards: int) -> float:
    """A ring of 2 or 4 chips over PCIe: the vendor's planner (hicann/ops-transformer,
    hccl_performance.cpp), which has no larger ones."""
    size = size_bytes / MB
    if cards == 2:
        return 72.04 * size + 6.69 if size > 1 / 16 else 10.0
    if size > 1.8:
        return 153.6 * size - 48.3
    return -89.1 * size**2 + 268.5 * size + 34.6 if size > 1 / 32 else 42.9
