"""Copies of tensors, of parts of them, and of several beside each other; no bit changes."""

from __future__ import annotations

from collections.abc import Sequence

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


def _document(name: str, caption: str, formula: str, kernel: str) -> str:
    return (
        f"{name}: {caption}.\n\n.. code-block:: text\n\n    {formula}\n\n"
        f"The vendor's kernel is {kernel}."
    )


OPERATORS = (
    Operator(
        name="clone",
        document=_document("clone", "a copy of a tensor", "y = x", "TensorMove"),
        check=check_clone,
        tile=tile,
        build=build,
        reference=_clone,
    ),
    Operator(
        name="narrow",
        document=_document(
            "narrow",
            "a copy of a part along an axis",
            "y = x[..., start : start + length]",
            "Slice",
        ),
        check=check_narrow,
        tile=tile,
        build=build,
        reference=_narrow,
    ),
    Operator(
        name="concat",
        document=_document(
            "concat",
            "up to 32 tensors one behind the other",
            "y = tensors[0], tensors[1], ... along dim",
            "ConcatD",
        ),
        check=check_concat,
        tile=tile,
        build=build,
        reference=_concat,
    ),
    Operator(
        name="permute",
        document=_document(
            "permute",
            "axes in another order",
            "y[j, ..., i] = x[i, ..., j], for each order of axes",
            "Transpose",
        ),
        check=permute.check,
        tile=permute.tile,
        build=permute.build,
        reference=_permute,
    ),
)
