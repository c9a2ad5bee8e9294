"""Copies of tensors, of parts of them, and of several next to each other; no bit changes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops import _protocol
from npusim.ops._contract import MAX_RANK, Contract
from npusim.ops._oracle import Given
from npusim.ops._protocol import Operator
from npusim.ops._signature import name_of
from npusim.ops._support import Row
from npusim.ops.families.copies import permute
from npusim.ops.families.copies.contract import (
    check_clone,
    check_concat,
    check_narrow,
    joined_rows,
    rows_of,
)
from npusim.ops.families.copies.kernel import build, tile


def _clone(given: Given) -> Array:
    return np.array(given.x)


def _narrow(given: Given) -> Array:
    part = range(given.start, given.start + given.length)
    return np.asarray(np.take(given.x, part, axis=given.dim))


def _concat(given: Given) -> Array:
    # A single tensor is a list of one, as for every operator that accepts lists.
    parts = given.tensors if isinstance(given.tensors, list | tuple) else [given.tensors]
    return np.concatenate(parts, axis=given.dim)


def _permute(given: Given) -> Array:
    return np.ascontiguousarray(np.transpose(given.x, given.dims))


def _operator(
    signature: str,
    kernel: str,
    caption: str,
    formula: str,
    oracle: Callable[[Given], Array],
) -> Operator:
    name = name_of(signature)
    is_turn = name == "permute"
    support, check = CHECKS[name]
    return Operator(
        signature=signature,
        kernel_type=kernel,
        document=(
            f"{name}: {caption}.\n\n.. code-block:: text\n\n    {formula}\n\n"
            f"The vendor's kernel is {kernel}."
        ),
        support=support,
        contract=check,
        tile=permute.tile if is_turn else tile,
        build=permute.build if is_turn else build,
        oracle=oracle,
        at_once=lambda given, *_: oracle(given),
    )


CHECKS: dict[str, tuple[tuple[Row, ...], Callable[[Contract], _protocol.Problem]]] = {
    "clone": (rows_of(), check_clone),
    "narrow": (rows_of((1, MAX_RANK)), check_narrow),
    "concat": (joined_rows(), check_concat),
    "permute": (rows_of(), permute.check),
}
"""Operator -> its support, and the function that checks everything else."""
OPERATORS = (
    _operator("clone(Tensor x) -> Tensor", "TensorMove", "a copy of a tensor", "y = x", _clone),
    _operator(
        "narrow(Tensor x, int dim, int start, int length) -> Tensor",
        "Slice",
        "a copy of a part along an axis",
        "y = x[..., start : start + length]",
        _narrow,
    ),
    _operator(
        "concat(Tensor[] tensors, int dim=0) -> Tensor",
        "ConcatD",
        "up to 32 tensors joined along an axis",
        "y = tensors[0], tensors[1], ... along dim",
        _concat,
    ),
    _operator(
        "permute(Tensor x, int[] dims) -> Tensor",
        "Transpose",
        "axes in another order",
        "y[j, ..., i] = x[i, ..., j], for each order of axes",
        _permute,
    ),
)
