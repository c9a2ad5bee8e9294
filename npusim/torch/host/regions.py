"""Regions of images on host tensors: non-maximum suppression, and features of regions.

Sources: op-plugin@517f2e7, the documents and C++ of these functions, and nms_with_mask.py and
roi_align.py of CANN 8.1.RC1. Assumed: boxes are suppressed greedily, from the best score on, if
they overlap a better box by more than the threshold, and everything is computed in float32.
"""

from __future__ import annotations

import math

import torch

__all__ = ["batch_nms", "nms_v4", "nms_with_mask", "roi_align", "roi_align_backward"]


def _shares(boxes: torch.Tensor) -> torch.Tensor:
    """The IoU of all pairs of the boxes `(n, 4)`."""
    x0, y0, x1, y1 = boxes.float().unbind(1)
    areas = (x1 - x0) * (y1 - y0)
    width = torch.minimum(x1, x1[:, None]) - torch.maximum(x0, x0[:, None])
    height = torch.minimum(y1, y1[:, None]) - torch.maximum(y0, y0[:, None])
    shared = width.clamp(0) * height.clamp(0)
    return shared / (areas + areas[:, None] - shared)


def _best(boxes: torch.Tensor, order: list[int], threshold: float, most: int) -> list[int]:
    """The indices of at most *most* boxes, in *order*, none of which overlaps an earlier one."""
    shares = _shares(boxes)
    found: list[int] = []
    for place in order:
        if len(found) == most:
            break
        if all(not shares[place, other] > threshold for other in found):
            found.append(place)
    return found


def _by_score(scores: torch.Tensor, least: float) -> list[int]:
    """The indices of the scores above *least*, best first."""
    order = torch.sort(scores.float(), descending=True, stable=True).indices.tolist()
    return [place for place in order if scores[place] > least]


def nms_v4(
    input: torch.Tensor,
    scores: torch.Tensor,
    max_output_size: int,
    iou_threshold: torch.Tensor,
    scores_threshold: torch.Tensor,
    pad_to_max_output_size: bool = False,  # noqa: ARG001
) -> tuple[torch.Tensor, torch.Tensor]:
    """The best boxes, padded with zeros, and their number."""
    order = _by_score(scores, float(scores_threshold))
    found = _best(input, order, float(iou_threshold), int(max_output_size))
    places = torch.zeros(int(max_output_size), dtype=torch.int32)
    places[: len(found)] = torch.tensor(found, dtype=torch.int32)
    return places, torch.tensor(len(found), dtype=torch.int32)


def nms_with_mask(
    input: torch.Tensor, iou_threshold: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The boxes in the given order, best first, their indices, and a mask of those kept."""
    count = input.shape[0]
    found = _best(input[:, :4], [*range(count)], float(iou_threshold), count)
    mask = torch.zeros(count, dtype=torch.uint8)
    mask[found] = 1
    return input[:, :5].clone(), torch.arange(count, dtype=torch.int32), mask


def batch_nms(
    input: torch.Tensor,
    scores: torch.Tensor,
    score_threshold: float,
    iou_threshold: float,
    max_size_per_class: int,
    max_total_size: int,
    change_coordinate_frame: bool = False,
    transpose_box: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The best boxes of each image over all classes: boxes, scores, classes, and their number."""
    if change_coordinate_frame or transpose_box:
        raise NotImplementedError(
            "npu_batch_nms: it must be simulated to be called, but with change_coordinate_frame or "
            "transpose_box is not; turn and scale the boxes before"
        )
    boxes = torch.zeros(input.shape[0], max_total_size, 4, dtype=input.dtype)
    best = torch.zeros(boxes.shape[:2], dtype=input.dtype)
    classes, counts = torch.zeros_like(best), torch.zeros(input.shape[0], dtype=torch.int32)
    for picture in range(input.shape[0]):
        found = []
        for kind in range(scores.shape[2]):
            own = input[picture, :, min(kind, input.shape[2] - 1)]
            of_class = scores[picture, :, kind]
            order = _by_score(of_class, score_threshold)
            places = _best(own, order, iou_threshold, max_size_per_class)
            found += [(float(of_class[place]), kind, own[place]) for place in places]
        found = sorted(found, key=lambda each: -each[0])[:max_total_size]
        counts[picture] = len(found)
        for place, (score, kind, box) in enumerate(found):
            best[picture, place], classes[picture, place] = score, kind
            boxes[picture, place] = box
    return boxes, best, classes, counts


# ---- features of regions ----


def _axis(
    start: float, end: float, pooled: int, samples: int, size: int, mode: int
) -> torch.Tensor:
    """The weight of each of *size* pixels in each of *pooled* cells along one axis.

    Modes: in 1 the region includes its end; in higher ones pixel centres are offset by half a
    pixel.
    """
    length = end - start if mode > 1 else max(end - start, 1.0)
    count = samples if samples > 0 else max(math.ceil(length / pooled), 1)
    step = length / pooled / count
    at = start + (torch.arange(pooled * count) + 0.5) * step
    is_inside = (at >= -1) & (at <= size)
    at = at.clamp(0, size - 1)
    low = at.floor().clamp(max=size - 1).long()
    share = at - low
    weights = torch.zeros(pooled * count, size)
    rows = torch.arange(pooled * count)
    weights[rows, low] += 1 - share
    weights[rows, (low + 1).clamp(max=size - 1)] += share
    weights = weights * is_inside[:, None]
    return weights.reshape(pooled, count, size).mean(1)


def _weights(
    region: list[float], size: tuple[int, int], scale: float, pooled: tuple[int, int],
    samples: int, mode: int,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """:func:`_axis` for both axes of a region, whose corners are in a larger image."""
    x0, y0, x1, y1 = (corner * scale - (0.5 if mode > 1 else 0.0) for corner in region)
    if mode == 1:
        x1, y1 = x1 + scale, y1 + scale
    rows = _axis(y0, y1, pooled[0], samples, size[0], mode)
    return rows, _axis(x0, x1, pooled[1], samples, size[1], mode)


def roi_align(
    input: torch.Tensor,
    rois: torch.Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sample_num: int,
    roi_end_mode: int,
) -> torch.Tensor:
    """The mean of `sample_num ** 2` samples of each cell, interpolated between pixels."""
    size, pooled = (input.shape[2], input.shape[3]), (pooled_height, pooled_width)
    found = []
    for picture, *region in rois.float().tolist():
        each = _weights(region, size, spatial_scale, pooled, sample_num, roi_end_mode)
        features = input[int(picture)].float()
        found.append(torch.einsum("cij,hi,wj->chw", features, *each))
    return torch.stack(found).to(input.dtype)


DEFAULT_END_MODE = 1
"""The default roi_end_mode of ROIAlign and its gradient (roi_align.py)."""


def roi_align_backward(
    input: torch.Tensor,
    rois: torch.Tensor,
    xdiff_shape: list[int],
    pooled_width: int,
    pooled_height: int,
    spatial_scale: float,
    sample_num: int,
    roi_end_mode: int | None = None,
) -> torch.Tensor:
    """The gradient of the features, from that of the cells."""
    mode = DEFAULT_END_MODE if roi_end_mode is None else roi_end_mode
    size, pooled = (xdiff_shape[2], xdiff_shape[3]), (pooled_height, pooled_width)
    found = torch.zeros(tuple(xdiff_shape))
    for grad, (picture, *region) in zip(input.float(), rois.float().tolist(), strict=True):
        each = _weights(region, size, spatial_scale, pooled, sample_num, mode)
        found[int(picture)] += torch.einsum("chw,hi,wj->cij", grad, *each)
    return found.to(input.dtype)
