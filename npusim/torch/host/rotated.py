"""Rotated bounding boxes on host tensors: overlaps, suppression, and encoding.

Sources: op-plugin@517f2e7, the documents and C++ of these functions, and rotated_box_encode.py and
rotated_box_decode.py of CANN 8.1.RC1. Angles are in degrees. Assumed: overlaps are in float32.
"""

from __future__ import annotations

import math

import torch

from npusim.torch.errors import require_option

__all__ = ["box_decode", "box_encode", "iou", "nms", "overlaps"]

Point = tuple[float, float]
IOF = 1
"""The mode that divides by the area of the first box alone."""


def _corners(box: list[float], trans: bool) -> list[Point]:
    """The corners of a box in order; if *trans*, the box is given by two corners and an angle."""
    x, y, w, h, angle = box
    if trans:
        x, y, w, h = (x + w) / 2, (y + h) / 2, w - x, h - y
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    halves = ((-w / 2, -h / 2), (w / 2, -h / 2), (w / 2, h / 2), (-w / 2, h / 2))
    return [(x + cos * u - sin * v, y + sin * u + cos * v) for u, v in halves]


def _side(a: Point, b: Point, point: Point) -> float:
    """The side of the line from *a* to *b* that *point* is on: positive on the left."""
    return (b[0] - a[0]) * (point[1] - a[1]) - (b[1] - a[1]) * (point[0] - a[0])


def _area(corners: list[Point]) -> float:
    turned = zip(corners, [*corners[1:], *corners[:1]], strict=True)
    return abs(sum(x * v - u * y for (x, y), (u, v) in turned)) / 2


def _shared(first: list[Point], second: list[Point]) -> float:
    """The area shared by two convex polygons: the first is clipped by each side of the second."""
    left = first
    for a, b in zip(second, [*second[1:], *second[:1]], strict=True):
        given, left = left, []
        for p, q in zip(given, [*given[1:], *given[:1]], strict=True):
            at_p, at_q = _side(a, b, p), _side(a, b, q)
            if at_p >= 0:
                left.append(p)
            if (at_p > 0 > at_q) or (at_p < 0 < at_q):
                share = at_p / (at_p - at_q)
                left.append((p[0] + share * (q[0] - p[0]), p[1] + share * (q[1] - p[1])))
    return _area(left) if len(left) > 2 else 0.0


def overlaps(input: torch.Tensor, query_boxes: torch.Tensor, trans: bool = False) -> torch.Tensor:
    """The shared area of each of the boxes `(b, n, 5)` and each of `(b, k, 5)`."""
    batches, count, others = input.shape[0], input.shape[1], query_boxes.shape[1]
    found = torch.zeros(batches, count, others)
    for batch in range(batches):
        own, true = (
            [_corners(box, trans) for box in boxes[batch].float().tolist()]
            for boxes in (input, query_boxes)
        )
        for place, first in enumerate(own):
            shared = [_shared(first, second) for second in true]
            found[batch, place] = torch.tensor(shared)
    return found.to(input.dtype)


def iou(
    input: torch.Tensor,
    query_boxes: torch.Tensor,
    trans: bool = False,
    mode: int = 0,
    is_cross: bool = True,
    v_threshold: float = 0.0,
    e_threshold: float = 0.0,
) -> torch.Tensor:
    """IoU of all pairs of boxes, or of boxes with the same index if not *is_cross*."""
    require_option("npu_rotated_iou", "v_threshold", v_threshold, 0.0)
    require_option("npu_rotated_iou", "e_threshold", e_threshold, 0.0)
    shared = overlaps(input.float(), query_boxes.float(), trans)
    own, true = (
        torch.tensor([[_area(_corners(box, trans)) for box in boxes] for boxes in each.tolist()])
        for each in (input.float(), query_boxes.float())
    )
    whole = own[:, :, None].expand_as(shared)
    if mode != IOF:
        whole = whole + true[:, None, :] - shared
    found = torch.where(whole > 0, shared / whole, torch.zeros(()))
    return (found if is_cross else found.diagonal(dim1=1, dim2=2)).to(input.dtype)


LEAST_AREA = 1e-14
"""Smaller boxes overlap nothing (the vendor's test of npu_nms_rotated)."""


def nms(
    input: torch.Tensor,
    scores: torch.Tensor,
    iou_threshold: float,
    scores_threshold: float = 0,
    max_output_size: int = -1,
    mode: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The boxes, best first, none of which overlaps an earlier one by more than *iou_threshold*,
    and their number. In mode 1 boxes are two corners, and rotate in the other direction."""
    order = torch.sort(scores.float(), descending=True, stable=True).indices.tolist()
    boxes = input.float().tolist()
    turned = [[*box[:4], -box[4]] for box in boxes] if mode == 1 else boxes
    corners = [_corners(box, mode == 1) for box in turned]
    areas: list[float] = [(c - a) * (d - b) if mode == 1 else c * d for a, b, c, d, _ in boxes]
    found: list[int] = []

    def share(one: int, other: int) -> float:
        if min(areas[one], areas[other]) < LEAST_AREA:
            return 0.0
        shared = _shared(corners[one], corners[other])
        return shared / (areas[one] + areas[other] - shared)

    for place in order:
        if len(found) == max_output_size or not scores[place] > scores_threshold:
            break
        if all(share(place, other) <= iou_threshold for other in found):
            found.append(place)
    kept = torch.tensor(found, dtype=torch.int32)
    return kept, torch.tensor([len(found)], dtype=torch.int32)


def _centred(boxes: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Centres, sizes, and tangents of the angles of boxes `(b, 5, n)`."""
    x0, y0, x1, y1, angle = boxes.float().unbind(1)
    tangent = torch.tan(torch.deg2rad(angle))
    return (x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0, tangent


def box_encode(input: torch.Tensor, gt_bboxes: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Encode ground-truth boxes relative to anchors."""
    px, py, pw, ph, turned = _centred(input)
    gx, gy, gw, gh, true = _centred(gt_bboxes)
    parts = (gx - px) / pw, (gy - py) / ph, (gw / pw).log(), (gh / ph).log(), true - turned
    found = [part * each for part, each in zip(parts, weight.float().tolist(), strict=True)]
    return torch.stack(found, 1).to(input.dtype)


def box_decode(input: torch.Tensor, deltas: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Decode *deltas* to boxes."""
    px, py, pw, ph, turned = _centred(input)
    given = zip(deltas.float().unbind(1), weight.float().tolist(), strict=True)
    dx, dy, dw, dh, turn = (delta / each for delta, each in given)
    x, y, w, h = px + dx * pw, py + dy * ph, pw * dw.exp(), ph * dh.exp()
    angle = torch.rad2deg(torch.atan(turned + turn))
    return torch.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2, angle], 1).to(input.dtype)
