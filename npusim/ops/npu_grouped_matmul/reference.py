"""npu_grouped_matmul on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from npusim.data.dtypes import Array, dtype_of
from npusim.ops._oracle import Given
from npusim.ops.npu_grouped_matmul.references.numbers import Call, Numbers
from npusim.ops.npu_grouped_matmul.support import Types, types_of

__all__ = ["oracle"]


def oracle(given: Given) -> Array | tuple[Array, ...]:
    """Multiply each group of x by its own of weight; one output, or a tuple of several.

    x and weight are lists of arrays or Tensors, or one. Rows that no group has are zero, as the
    allocator gives them. template names the kernel; results may depend on the chip and the order
    in which the cube adds.
    """
    xs, weights, biases = _several(given.x), _several(given.weight), _several(given.bias)
    call = Call(
        types=_types(xs[0], weights[0], biases, given.output_dtype),
        xs=xs,
        weights=weights,
        bias=biases,
        scale=_several(given.scale),
        offset=_several(given.offset),
        per_token_scale=_several(given.per_token_scale),
        antiquant_scale=_several(given.antiquant_scale),
        antiquant_offset=_several(given.antiquant_offset),
        counts=_counts(given.group_list, given.group_list_type),
        act_type=given.act_type,
        tuning=tuple(given.tuning_config or ()),
        order=given.cube_order,
        spec=given.spec,
        template=given.template,
    )
    found = _along_k(call) if given.group_type == 2 else _along_m(call, given.split_item < 2)
    return found if len(found) > 1 else found[0]


def _several(value: Any) -> tuple[Any, ...]:
    """A list of arrays, whether it was given as one or as its only member."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _types(x: Any, weight: Any, bias: tuple[Any, ...], output_dtype: str | None) -> Types:
    """What the tensors hold."""
    kinds = [dtype_of(np.asarray(each)) for each in (x, weight, *bias[:1])]
    output = str(np.asarray(x).dtype) if output_dtype is None else output_dtype
    of_x, of_weight, of_bias = (*kinds, None)[:3]
    assert of_x is not None
    assert of_weight is not None
    return types_of(of_x, of_weight, output, of_bias)


def _counts(group_list: Any, kind: int) -> tuple[tuple[int, int], ...] | None:
    """Experts and how many rows, or numbers along k, each has; None where no list says."""
    if group_list is None:
        return None
    numbers = np.asarray(group_list)
    if kind == 2:
        stop = next((i for i, (_, count) in enumerate(numbers) if count <= 0), len(numbers))
        return tuple((int(expert), max(int(count), 0)) for expert, count in numbers[: stop + 1])
    if kind == 0:
        numbers = np.diff(numbers, prepend=0)
    return tuple((expert, int(count)) for expert, count in enumerate(numbers))


def _rows(call: Call) -> Any:
    return import_module(f"npusim.ops.npu_grouped_matmul.references.{call.types.reference}").rows


def _along_m(call: Call, is_split: bool) -> tuple[Array, ...]:
    """Rows of x by the weight of their group."""
    xs = [np.asarray(x) for x in call.xs]
    flat = [x.reshape(-1, x.shape[-1]) for x in xs]
    counts = call.counts
    if len(xs) > 1 or counts is None:
        counts = tuple((place, len(x)) for place, x in enumerate(flat))
    whole, found, start = (
        np.concatenate(flat) if len({x.shape[1] for x in flat}) == 1 else None,
        [],
        0,
    )
    for place, (expert, count) in enumerate(counts):
        x = flat[place] if whole is None else whole[start : start + count]
        found.append(_rows(call)(x, call.numbers(expert, start, count), call))
        start += count
    if is_split:
        shapes = [x.shape[:-1] for x in xs] if len(xs) == len(found) else [None] * len(found)
        return tuple(
            y if shape is None else y.reshape(*shape, y.shape[-1])
            for y, shape in zip(found, shapes, strict=True)
        )
    total = sum(map(len, flat))
    output = np.zeros((total, found[0].shape[1]), found[0].dtype)
    done = np.concatenate(found)
    output[: len(done)] = done
    return (output,)


def _along_k(call: Call) -> tuple[Array, ...]:
    """Columns of x by the rows of weight of their group."""
    x = np.asarray(call.xs[0])
    weights = [np.asarray(weight) for weight in call.weights]
    counts = call.counts or tuple((place, len(weight)) for place, weight in enumerate(weights))
    found, start = [], 0
    for place, (_, count) in enumerate(counts):
        weight = weights[0][start : start + count] if len(weights) == 1 else weights[place]
        numbers = Numbers(weight=weight)
        found.append(_rows(call)(x[:, start : start + count], numbers, call))
        start += count
    return (np.stack(found),) if len(weights) == 1 else tuple(found)
