"""Where a timeline has room to label its bars.

Bars that follow each other closely form a cluster. A cluster with a single mnemonic gets one label
along its bars; otherwise each bar gets a label, rotated upright; and if bars are too narrow for
that, the mnemonics are written in the gap after the cluster. Without room a cluster has no label.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.reports.bars import Bar
from npusim.reports.style import LABEL_POINTS, points

__all__ = ["Label", "Scale", "labels"]

CLUSTER_PIXELS = 4.0
"""Bars with a smaller gap between them belong to one cluster."""
MAX_STRIPES = 12
"""A text across more bars than this cannot be read."""
PAD_POINTS = 3.0


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of one lane of a picture."""

    pixels_per_us: float
    lane_pixels: float
    """Height of a bar."""
    pixels_per_point: float
    end_us: float
    """The end of the time axis."""


@dataclass(frozen=True, slots=True)
class Label:
    """A text on one lane; upright texts are centred on *x_us*, others start there."""

    x_us: float
    text: str
    is_upright: bool


def labels(bars: list[Bar], scale: Scale) -> list[Label]:
    """The labels of one lane, whose *bars* ascend."""
    ways = _along, _upright, _next_to
    found: list[Label] = []
    clusters = _clusters(bars, CLUSTER_PIXELS / scale.pixels_per_us)
    following = [*(cluster[0].start_us for cluster in clusters[1:]), scale.end_us]
    for cluster, until in zip(clusters, following, strict=True):
        found += next(filter(None, (way(cluster, until, scale) for way in ways)), [])
    return found


def _clusters(bars: list[Bar], least_gap: float) -> list[list[Bar]]:
    clusters: list[list[Bar]] = []
    for bar in bars:
        if clusters and bar.start_us - clusters[-1][-1].end_us < least_gap:
            clusters[-1].append(bar)
        else:
            clusters.append([bar])
    return clusters


def _names(cluster: list[Bar]) -> list[str]:
    return list(dict.fromkeys(name for bar in cluster for name in bar.names))


def _along(cluster: list[Bar], until: float, scale: Scale) -> list[Label]:
    """One mnemonic and its count, starting at the first bar; it may extend into the gap."""
    names, count = _names(cluster), sum(bar.micro_ops for bar in cluster)
    text = names[0] if count == 1 else f"{names[0]} ×{count}"
    pad = PAD_POINTS * scale.pixels_per_point
    room = (until - cluster[0].start_us) * scale.pixels_per_us - 2 * pad
    if len(names) > 1 or len(cluster) > MAX_STRIPES:
        return []
    if _points(text) * scale.pixels_per_point > room:
        return []
    return [Label(cluster[0].start_us + pad / scale.pixels_per_us, text, False)]


def _upright(cluster: list[Bar], until: float, scale: Scale) -> list[Label]:
    """A mnemonic on each bar, without modes if lanes are low, or none at all."""
    ends = [*(bar.start_us for bar in cluster[1:]), min(cluster[-1].end_us, until)]
    rooms = [
        (end - bar.start_us) * scale.pixels_per_us for bar, end in zip(cluster, ends, strict=True)
    ]
    line = LABEL_POINTS * scale.pixels_per_point
    if min(rooms) < line or any(bar.micro_ops > 1 for bar in cluster):
        return []
    whole = [bar.names[0] for bar in cluster]
    for texts in (whole, [_bare_name(name) for name in whole]):
        if max(map(_points, texts)) * scale.pixels_per_point <= scale.lane_pixels:
            return [
                Label(bar.start_us + min(room, 1.5 * line) / 2 / scale.pixels_per_us, text, True)
                for bar, room, text in zip(cluster, rooms, texts, strict=True)
            ]
    return []


def _next_to(cluster: list[Bar], until: float, scale: Scale) -> list[Label]:
    """All mnemonics without their modes, in the gap after the cluster."""
    pad = PAD_POINTS * scale.pixels_per_point
    end = max(bar.end_us for bar in cluster)
    text = ", ".join(dict.fromkeys(_bare_name(name) for name in _names(cluster)))
    if _points(text) * scale.pixels_per_point > (until - end) * scale.pixels_per_us - 2 * pad:
        return []
    return [Label(end + pad / scale.pixels_per_us, text, False)]


def _bare_name(name: str) -> str:
    return name.partition(".")[0]


def _points(text: str) -> float:
    """The length of *text* on the time axis."""
    return points(text, LABEL_POINTS)
