"""Shapes and dtypes of what npu_grouped_matmul returns, of tensors of torch without values."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from npusim.ops._torch import Sizes, TorchArguments, columns_of

__all__ = ["outputs_of"]

Shapes = list[tuple[Any, ...]]


def outputs_of(given: TorchArguments, _: Sizes) -> tuple[tuple[tuple[Any, ...], str], ...]:
    """One output, or one for each group."""
    dtype = given["output_dtype"]
    dtype = given["x"][0].dtype if dtype is None else dtype
    shapes = _along_k(given) if given["group_type"] == 2 else _along_m(given)
    return tuple((shape, dtype) for shape in shapes)


def _along_m(given: TorchArguments) -> Shapes:
    xs, weights = given["x"], given["weight"]
    if given["split_item"] > 1:
        return [(sum(x.shape[0] for x in xs), columns_of(weights[0]))]
    if len(xs) == len(weights):
        return [(*x.shape[:-1], columns_of(weight)) for x, weight in zip(xs, weights, strict=True)]
    rows = [end - start for start, end in pairwise((0, *(given["group_list"] or ())))]
    return [(count, columns_of(weight)) for count, weight in zip(rows, weights, strict=False)]


def _along_k(given: TorchArguments) -> Shapes:
    (x, *_), weights = given["x"], given["weight"]
    if given["split_item"] > 1:
        return [(given["group_list"].shape[0], x.shape[0], columns_of(weights[0]))]
    return [(x.shape[0], columns_of(weight)) for weight in weights]
