"""Copies of tensors, of parts of them, and of several beside each other; no bit changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops._protocol import Operator
from npusim.ops.families.copies import permute
from npusim.ops.families.copies.contract import Problem, check_clone, check_concat, check_narrow
from npusim.ops.families.copies.kernel import Plan, build, tile

__all__ = ["OPERATORS", "Plan", "Problem"]


def _clone(x: Array) -> Array:
    return x.copy()


def _narrow(x: Array, dim: int, start: int, length: int) -> Array:
    return np.take(x, range(start, start + length), axis=dim)


def _concat(tensors: Sequence[Array], dim: int = 0) -> Array:
    return np.concatenate(tensors, axis=dim)


def _permute(x: Array, dims: tuple[int, ...]) -> Array:
    return np.ascontiguousarray(np.transpose(x, dims))


def _operator(
    name: str, kernel: str, caption: str, formula: str, reference: Callable[..., Array]
) -> Operator:
    is_turn = name == "permute"
    return Operator(
        name=name,
        kernel_type=kernel,
        document=(
            f"{name}: {caption}.\n\n.. code-block:: text\n\n    {formula}\n\n"
            f"The vendor's kernel is {kernel}."
        ),
        contract=CHECKS[name],
        tile=permute.tile if is_turn else tile,
        build=permute.build if is_turn else build,
        oracle=reference,
    )


CHECKS: dict[str, Callable[..., Any]] = {
    "clone": check_clone,
    "narrow": check_narrow,
    "concat": check_concat,
    "permute": permute.check,
}
OPERATORS = (
    _operator("clone", "TensorMove", "a copy of a tensor", "y = x", _clone),
    _operator(
        "narrow",
        "Slice",
        "a copy of a part along an axis",
        "y = x[..., start : start + length]",
        _narrow,
    ),
    _operator(
        "concat",
        "ConcatD",
        "up to 32 tensors one behind the other",
        "y = tensors[0], tensors[1], ... along dim",
        _concat,
    ),
    _operator(
        "permute",
        "Transpose",
        "axes in another order",
        "y[j, ..., i] = x[i, ..., j], for each order of axes",
        _permute,
    ),
)
