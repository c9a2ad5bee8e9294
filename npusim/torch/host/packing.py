"""Sign packing, filled ranges, random choice by mask, and the search for a scale, on host tensors.

Sources: op-plugin@517f2e7, the documents and C++ of these functions, and the equations in its
tests, which match the kernels.
"""

from __future__ import annotations

import numpy as np
import torch

__all__ = [
    "ifmr",
    "masked_fill_range",
    "random_choice_with_mask",
    "sign_bits_pack",
    "sign_bits_unpack",
]

BITS = 8
LEAST_SCALE = float(np.finfo(np.float32).eps)
"""A smaller scale is replaced by 1 (the vendor's test of npu_ifmr)."""
INT8 = (-128, 127)


def sign_bits_pack(input: torch.Tensor, size: int) -> torch.Tensor:
    """One bit for each element, 1 if it is not negative, lowest bit first, in *size* rows."""
    count = -(-input.numel() // BITS)
    if input.dim() != 1 or size == 0 or count % size:
        raise RuntimeError(
            "all must be divisible by size\nnpu_sign_bits_pack: input must have one axis, and a "
            f"number of bytes that size divides, not shape {tuple(input.shape)} and size {size}; "
            "pad it"
        )
    packed = np.packbits((input >= 0).numpy(), bitorder="little")
    return torch.from_numpy(packed).reshape(size, count // size)


def sign_bits_unpack(input: torch.Tensor, size: int, dtype: torch.dtype) -> torch.Tensor:
    """1 for each bit that is set and -1 for each other bit, in *size* rows."""
    bits = np.unpackbits(input.numpy(), bitorder="little")
    return (torch.from_numpy(bits).to(dtype) * 2 - 1).reshape(size, -1)


def masked_fill_range(
    input: torch.Tensor, start: torch.Tensor, end: torch.Tensor, value: torch.Tensor, axis: int = -1
) -> torch.Tensor:
    """Fill ranges along *axis*: row i of *start* and *end* is filled with `value[i]`. A row has one
    range for each index of the first axis if that is not *axis*."""
    found, axis = input.clone(), axis % input.dim()
    is_by_row = axis == input.dim() - 1 and input.dim() > 1
    for row, filler in enumerate(value.tolist()):
        for place in range(start.shape[1]):
            first, last = int(start[row, place]), int(end[row, place])
            into = found[place].movedim(axis - 1, 0) if is_by_row else found.movedim(axis, 0)
            into[first:last] = filler
    return found


def random_choice_with_mask(
    x: torch.Tensor,
    count: int = 256,
    seed: int = 0,
    seed2: int = 0,  # noqa: ARG001
) -> tuple[torch.Tensor, torch.Tensor]:
    """The indices of *count* randomly chosen true elements, padded with zeros if there are fewer,
    and a mask of the valid ones. The choice depends on *seed* alone."""
    places = x.nonzero().int()
    if len(places) > count:
        generator = torch.Generator().manual_seed(seed)
        places = places[torch.randperm(len(places), generator=generator)[:count].sort().values]
    found = torch.zeros(count, x.dim(), dtype=torch.int32)
    found[: len(places)] = places
    return found, torch.arange(count) < len(places)


def ifmr(
    data: torch.Tensor,
    data_min: torch.Tensor,
    data_max: torch.Tensor,
    cumsum: torch.Tensor,
    min_percentile: float,
    max_percentile: float,
    search_start: float,
    search_end: float,
    search_step: float,
    with_offset: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scale and offset that quantise *data* to int8 with the least error, among a range of
    candidates."""
    one, wide = np.float32, data.float().numpy()
    low, high = one(data_min.item()), one(data_max.item())
    shares = cumsum.numpy().astype(one) / one(data.numel())
    bins = one(cumsum.numel())
    last = one((shares < one(max_percentile)).sum()) / bins * (high - low) + low
    first = one((shares < one(1 - min_percentile)).sum()) / bins * (high - low) + low
    steps = np.arange(search_start, search_end, search_step, dtype=one)
    if with_offset:
        last, first = max(last, one(0)), min(first, one(0))
        scales = (last * steps - first) / one(INT8[1] - INT8[0])
        scales = np.where(scales < LEAST_SCALE, one(1), scales)
        offsets = -(np.round(first / scales) - INT8[0])
    else:
        scales = max(abs(last), abs(first)) * steps / one(INT8[1])
        offsets = np.zeros_like(scales)
    losses = []
    for scale, offset in zip(scales, offsets, strict=True):
        quantised = np.clip(np.round(wide / scale) + offset, *INT8)
        losses.append(np.square((quantised - offset) * scale - wide).sum())
    best = int(np.argmin(losses))
    found = (
        torch.tensor([float(each[best])]).reshape(data_min.shape) for each in (scales, offsets)
    )
    return tuple(found)
