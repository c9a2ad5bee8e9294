"""Bounding boxes of images on host tensors: overlaps of pairs, and encoding relative to anchors.

A box is four numbers: two corners, or a centre, a width and a height. Sources: op-plugin@517f2e7,
the documents and C++ of these functions, and the kernels of CANN 8.1.RC1 (iou.py, giou.py, diou.py,
ciou.py, bounding_box_encode.py, bounding_box_decode.py). YoloBoxesEncode, GridAssignPositive and
AnchorResponseFlags follow the equations of mmdetection, to which the documents refer.
"""

from __future__ import annotations

import math

import torch

__all__ = [
    "anchor_response_flags",
    "bounding_box_decode",
    "bounding_box_encode",
    "ciou",
    "ciou_with_angles",
    "diou",
    "diou_backward",
    "giou",
    "giou_backward",
    "grid_assign_positive",
    "iou",
    "yolo_boxes_encode",
]

Pair = tuple[torch.Tensor, torch.Tensor]
IOF = 1
"""The mode that divides by the area of the ground-truth box alone."""
IOU_EPSILON = 0.01
"""Added to width and height of a box (IouKernelNpu.cpp)."""
IOU_SCALE = 0.2
"""Factor of widths and heights, so that areas do not overflow (iou.py)."""
EPSILON = 1e-9
"""Added to heights and to divisors (the vendor's tests of diou and ciou)."""


def iou(bboxes: torch.Tensor, gtboxes: torch.Tensor, mode: int = 0) -> torch.Tensor:
    """The overlap of each pair as a fraction, `(M, N)`, computed in float16 for any input type."""
    (x0, y0, x1, y1), (u0, v0, u1, v1) = (each.half().unbind(1) for each in (bboxes, gtboxes))

    def area(width: torch.Tensor, height: torch.Tensor) -> torch.Tensor:
        return (width * IOU_SCALE) * (height * IOU_SCALE)

    own = area(x1 - x0 + IOU_EPSILON, y1 - y0 + IOU_EPSILON)
    true = area(u1 - u0 + IOU_EPSILON, v1 - v0 + IOU_EPSILON)[:, None]
    width = torch.minimum(x1, u1[:, None]) - torch.maximum(x0, u0[:, None])
    height = torch.minimum(y1, v1[:, None]) - torch.maximum(y0, v0[:, None])
    shared = (width * IOU_SCALE).clamp(0) * (height * IOU_SCALE).clamp(0)
    found = shared / (true if mode == IOF else own + true - shared)
    return found.to(bboxes.dtype)


def _corners(boxes: torch.Tensor, trans: bool) -> tuple[torch.Tensor, ...]:
    """The corners of boxes `(4, n)`, which are centres and sizes if *trans*."""
    x, y, w, h = boxes.float().unbind(0)
    return (x - w / 2, y - h / 2, x + w / 2, y + h / 2) if trans else (x, y, w, h)


class _Pairs:
    """Quantities for the overlaps of boxes `(4, n)` and `(4, m)`; of all pairs if *is_cross*."""

    def __init__(self, own: torch.Tensor, true: torch.Tensor, trans: bool, is_cross: bool) -> None:
        a = _corners(own, trans)
        b = tuple(each[:, None] if is_cross else each for each in _corners(true, trans))
        self.a, self.b = a, b
        self.sizes = tuple((box[2] - box[0], box[3] - box[1]) for box in (a, b))
        width = torch.minimum(a[2], b[2]) - torch.maximum(a[0], b[0])
        height = torch.minimum(a[3], b[3]) - torch.maximum(a[1], b[1])
        self.shared = width.clamp(0) * height.clamp(0)
        self.around = (
            torch.maximum(a[2], b[2]) - torch.minimum(a[0], b[0]),
            torch.maximum(a[3], b[3]) - torch.minimum(a[1], b[1]),
        )

    def union(self, epsilon: float) -> torch.Tensor:
        own, true = (width * (height + epsilon) for width, height in self.sizes)
        return own + true - self.shared + epsilon

    def share(self, mode: int) -> torch.Tensor:
        if mode == IOF:
            width, height = self.sizes[1]
            return self.shared / (width * (height + EPSILON) + EPSILON)
        return self.shared / self.union(EPSILON)

    def distance(self) -> torch.Tensor:
        """The squared distance of the centres over the squared diagonal of the enclosing box."""
        a, b = self.a, self.b
        apart = ((b[0] + b[2] - a[0] - a[2]) ** 2 + (b[1] + b[3] - a[1] - a[3]) ** 2) / 4
        width, height = self.around
        return apart / (width**2 + height**2 + EPSILON)


def _like(found: torch.Tensor, *boxes: torch.Tensor) -> torch.Tensor:
    """*found*, in float16 if one of *boxes* is."""
    return found.half() if any(each.dtype == torch.float16 for each in boxes) else found


def giou(
    input: torch.Tensor,
    gtboxes: torch.Tensor,
    trans: bool = False,
    is_cross: bool = False,
    mode: int = 0,
) -> torch.Tensor:
    """IoU less the fraction of the enclosing box that neither box covers, `(n, 1)`."""
    _require_simple("giou", trans, is_cross, mode)
    pairs = _Pairs(input, gtboxes, trans, is_cross)
    union, (width, height) = pairs.union(0.0), pairs.around
    around = width * height
    found = pairs.shared / union - (around - union) / around
    return _like(found.reshape(-1, 1), input, gtboxes)


def diou(
    input: torch.Tensor,
    gtboxes: torch.Tensor,
    trans: bool = False,
    is_cross: bool = False,
    mode: int = 0,
) -> torch.Tensor:
    """IoU less the normalised distance of the centres, `(1, n)` or `(m, n)`."""
    pairs = _Pairs(input, gtboxes, trans, is_cross)
    found = pairs.share(mode) - pairs.distance()
    return _like(found if is_cross else found[None], input, gtboxes)


def ciou_with_angles(
    input: torch.Tensor,
    gtboxes: torch.Tensor,
    trans: bool = False,
    is_cross: bool = True,
    mode: int = 0,
    atan_sub_flag: bool = False,
) -> Pair:
    """DIoU less the difference of the aspect ratios, and the difference of their angles."""
    pairs = _Pairs(input, gtboxes, trans, is_cross)
    own, true = (torch.atan(width / (height + EPSILON)) for width, height in pairs.sizes)
    apart, share = true - own, pairs.share(mode)
    unlike = (4 / math.pi**2) * apart**2
    found = share - pairs.distance() - unlike * unlike / (1 - share + unlike)
    if not is_cross:
        found, apart = found[None], apart[None]
    apart = apart if atan_sub_flag else torch.zeros_like(apart)
    return _like(found, input, gtboxes), apart


def ciou(*args: object, **kwargs: object) -> torch.Tensor:
    """The first result of :func:`ciou_with_angles`."""
    return ciou_with_angles(*args, **kwargs)[0]  # type: ignore[arg-type]


def _require_simple(name: str, trans: bool, is_cross: bool, mode: int) -> None:
    """Raise an error for options that are not supported (GiouKernelNpu.cpp, DiouKernelNpu.cpp)."""
    if not trans or is_cross or mode != 0:
        raise RuntimeError(
            f"{name} backward only support trans==True, is_cross==False, mode==0('iou') current "
            "version if you need to back propagation, please ensure your parameter is correct!\n"
            f"npu_{name}: trans must be True, is_cross False and mode 0, not {trans}, {is_cross} "
            f"and {mode}; pass boxes as centres and sizes, pair by pair"
        )


def giou_backward(
    grad: torch.Tensor,
    bboxes: torch.Tensor,
    gtboxes: torch.Tensor,
    trans: bool = False,
    is_cross: bool = False,
    mode: int = 0,
) -> Pair:
    """The gradients of both inputs of :func:`giou`, by torch's autograd."""
    _, back = torch.func.vjp(lambda a, b: giou(a, b, trans, is_cross, mode), bboxes, gtboxes)
    found: Pair = back(grad)
    return found


def diou_backward(
    grad: torch.Tensor,
    bboxes: torch.Tensor,
    gtboxes: torch.Tensor,
    trans: bool = False,
    is_cross: bool = False,
    mode: int = 0,
) -> Pair:
    """The gradients of both inputs of :func:`diou`, by torch's autograd."""
    _require_simple("diou", trans, is_cross, mode)
    _, back = torch.func.vjp(lambda a, b: diou(a, b, trans, is_cross, mode), bboxes, gtboxes)
    found: Pair = back(grad)
    return found


# ---- from one box to another, in float16 ----


def _centred(boxes: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The centres and sizes of boxes `(n, 4)`, whose corners are inclusive."""
    x0, y0, x1, y1 = boxes.half().unbind(1)
    return (x0 + x1) * 0.5, (y0 + y1) * 0.5, x1 - x0 + 1, y1 - y0 + 1


def bounding_box_encode(
    anchor_box: torch.Tensor, ground_truth_box: torch.Tensor, *scale: float
) -> torch.Tensor:
    """Encode ground-truth boxes relative to anchors; *scale* is four means and four deviations."""
    px, py, pw, ph = _centred(anchor_box)
    gx, gy, gw, gh = _centred(ground_truth_box)
    over_w, over_h = 1 / pw, 1 / ph
    parts = (gx - px) * over_w, (gy - py) * over_h, (gw * over_w).log(), (gh * over_h).log()
    found = [
        (part - mean) * (1 / deviation)
        for part, mean, deviation in zip(parts, scale[:4], scale[4:], strict=True)
    ]
    return torch.stack(found, 1).to(anchor_box.dtype)


def bounding_box_decode(rois: torch.Tensor, deltas: torch.Tensor, *scale: object) -> torch.Tensor:
    """Decode *deltas* to boxes; *scale* has means, deviations, the shape of the image, and the
    largest change of an aspect ratio."""
    *both, shape, clip = scale
    assert isinstance(shape, list | tuple)
    assert isinstance(clip, float)
    dx, dy, dw, dh = (
        part * deviation + mean
        for part, mean, deviation in zip(deltas.half().unbind(1), both[:4], both[4:], strict=True)
    )
    most = abs(math.log(clip))
    px, py, pw, ph = _centred(rois)
    gw, gh = pw * dw.clamp(-most, most).exp(), ph * dh.clamp(-most, most).exp()
    gx, gy = px + pw * dx, py + ph * dy
    corners = gx - gw * 0.5 + 0.5, gy - gh * 0.5 + 0.5, gx + gw * 0.5 - 0.5, gy + gh * 0.5 - 0.5
    rows, columns = shape[0], shape[-1]
    ends = (columns - 1, rows - 1) * 2
    found = [corner.clamp(0, end) for corner, end in zip(corners, ends, strict=True)]
    return torch.stack(found, 1).to(rois.dtype)


YOLO_EPSILON = 1e-6
"""The least ratio of sizes, and the least distance of a centre from the border of its cell."""


def yolo_boxes_encode(
    input: torch.Tensor,
    gt_bboxes: torch.Tensor,
    stride: torch.Tensor,
    performance_mode: bool = False,  # noqa: ARG001
) -> torch.Tensor:
    """The positions of ground-truth boxes in the cells of anchors, and the logarithms of the ratios
    of their sizes."""

    def centred(boxes: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x0, y0, x1, y1 = boxes.float().unbind(1)
        return (x0 + x1) * 0.5, (y0 + y1) * 0.5, x1 - x0, y1 - y0

    (px, py, pw, ph), (gx, gy, gw, gh) = centred(input), centred(gt_bboxes)
    least, cell = YOLO_EPSILON, stride.float()
    places = [((g - p) / cell + 0.5).clamp(least, 1 - least) for g, p in ((gx, px), (gy, py))]
    sizes = [(g / p).clamp(least).log() for g, p in ((gw, pw), (gh, ph))]
    return torch.stack([*places, *sizes], 1).to(gt_bboxes.dtype)


def grid_assign_positive(
    input: torch.Tensor,
    overlaps: torch.Tensor,
    box_responsible_flags: torch.Tensor,
    max_overlap: torch.Tensor,
    argmax_overlap: torch.Tensor,
    gt_max_overlaps: torch.Tensor,
    gt_argmax_overlaps: torch.Tensor,
    num_gts: int,
    pos_iou_thr: float,
    min_pos_iou: float,
    gt_max_assign_all: bool,
) -> torch.Tensor:
    """The number, starting at 1, of the ground-truth box assigned to each responsible box."""
    found, flags = input.clone(), box_responsible_flags.bool()
    is_positive = (max_overlap > pos_iou_thr) & flags
    found = torch.where(is_positive, (argmax_overlap + 1).to(found.dtype), found)
    for number in range(min(num_gts, overlaps.shape[0])):
        if not gt_max_overlaps[number] > min_pos_iou:
            continue
        best = int(gt_argmax_overlaps[number])
        if gt_max_assign_all:
            found[(overlaps[number] == gt_max_overlaps[number]) & flags] = number + 1
        elif flags[best]:
            found[best] = number + 1
    return found


def anchor_response_flags(
    input: torch.Tensor, featmap_size: list[int], stride: list[int], num_base_anchors: int
) -> torch.Tensor:
    """1 for each anchor of the cells that contain the centre of a box."""
    rows, columns = featmap_size
    boxes = input.float()
    x = ((boxes[:, 0] + boxes[:, 2]) * 0.5 / stride[0]).floor().long()
    y = ((boxes[:, 1] + boxes[:, 3]) * 0.5 / stride[1]).floor().long()
    flags = torch.zeros(rows * columns, dtype=torch.uint8)
    flags[y * columns + x] = 1
    return flags.repeat_interleave(num_base_anchors)
