"""npu_ps_roi_pooling: the means of bins of regions, each from channels of its own.

Its kernel, PSROIPoolingV2, is not simulated: products of float32 with shares of rows and columns
run instead. Source: op-plugin@517f2e7 PsRoiPoolingKernelNpu.cpp. Assumed: the edges of bins are
those of R-FCN, and a region belongs to the image at whose place it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["ps_roi_pooling", "ps_roi_pooling_backward"]

SMALLEST_ROI = 0.1
"""Smallest width and height of a region (R-FCN, assumed)."""
ROI_DIMENSIONS = 3


def ps_roi_pooling(
    input: torch.Tensor,
    rois: torch.Tensor,
    spatial_scale: float,
    group_size: int,
    output_dim: int,
) -> torch.Tensor:
    """The mean of each bin of each region, from the channels of that bin; 0 for empty bins.

    *rois* are `(images, 5, regions)`: a number that is not read, x1, y1, x2 and y2.
    """
    if rois.dim() < ROI_DIMENSIONS:
        raise RuntimeError(
            f"rois only supports at least 3D tensors, rois got: {rois.dim()}D\n"
            f"npu_ps_roi_pooling: rois must be (images, 5, regions), not of shape "
            f"{tuple(rois.shape)}; reshape them"
        )
    height, width = input.shape[2:]
    rows, columns = _bins(rois, spatial_scale, group_size, (height, width))
    parts = input.float().reshape(-1, output_dim, group_size, group_size, height, width)
    found = torch.einsum("bcpqhw,bnph,bnqw->bncpq", parts, rows, columns)
    return found.flatten(0, 1).to(input.dtype)


def ps_roi_pooling_backward(
    output_grad: torch.Tensor,
    rois: torch.Tensor,
    spatial_scale: float,
    group_size: int,
    output_dim: int,
    input_size: Sequence[int],
) -> torch.Tensor:
    """The gradient of the input of npu_ps_roi_pooling, whose height and width are *input_size*."""
    height, width = input_size
    rows, columns = _bins(rois, spatial_scale, group_size, (height, width))
    parts = output_grad.float().reshape(len(rois), -1, output_dim, group_size, group_size)
    found = torch.einsum("bncpq,bnph,bnqw->bcpqhw", parts, rows, columns)
    return found.reshape(len(rois), -1, height, width).to(output_grad.dtype)


def _bins(
    rois: torch.Tensor, scale: float, groups: int, sizes: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The shares of rows and of columns in each bin, `(images, regions, bins, size)`."""
    edges = torch.floor(rois.float() + 0.5).unbind(1)[1:]
    found = []
    for first, last, size in ((edges[1], edges[3], sizes[0]), (edges[0], edges[2], sizes[1])):
        start = first * scale
        step = ((last + 1) * scale - start).clamp(min=SMALLEST_ROI) / groups
        number = torch.arange(groups, device=rois.device)
        low = torch.floor(number * step[..., None] + start[..., None]).clamp(0, size)
        high = torch.ceil((number + 1) * step[..., None] + start[..., None]).clamp(0, size)
        place = torch.arange(size, device=rois.device)
        inside = (place >= low[..., None]) & (place < high[..., None])
        found.append(inside / (high - low).clamp(min=1)[..., None])
    return found[0], found[1]
