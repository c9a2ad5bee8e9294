"""Which kernels are of one kind, so that their errors are comparable.

They are of one operator on one series, multiply or convert the same types, and have operands in the
same memory order. Sizes, contents of the L2, bias and offsets do not count, nor does the choice
between the two 16-bit floats: the machine takes equally long for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from npusim.data.tensor import TensorSpec

__all__ = ["Kind", "Sizes", "kind_of"]

PRODUCTS = (
    "matmul", "npu_grouped_matmul", "npu_quant_matmul", "npu_weight_quant_batchmatmul",
)  # fmt: skip
"""Operators whose second tensor is a weight."""
ALIKE = {"float16": "fp16 or bf16", "bfloat16": "fp16 or bf16"}

Sizes = tuple[int, ...]
"""Batches, m, k and n of a product; rows and columns of anything else."""


class Kind(NamedTuple):
    """The properties that comparable kernels share."""

    op: str
    series: str
    types: str
    """The types of the activations and, in a product, of the weight."""
    layout: str
    """The layout of operands in memory, if activations are not simply row after row."""

    def __str__(self) -> str:
        """For example `matmul, fp16 or bf16, weight ND [K, N], Atlas A2`."""
        return ", ".join(word for word in (self.op, *self[2:], self.series) if word)


def kind_of(op: str, series: str, arguments: Mapping[str, object]) -> tuple[Kind, Sizes]:
    """The kind and the sizes of a call of operator *op* with *arguments* by name.

    Arguments are in the order of its parameters, tensors as :class:`TensorSpec`.
    """
    tensors = [spec for value in arguments.values() if (spec := _first(value)) is not None]
    if not tensors:
        return Kind(op, series, "", ""), ()
    x, *others = tensors
    if op not in PRODUCTS:
        kind = Kind(op, series, _type(x), ", ".join(_activations(x)))
        return kind, (prod(x.shape[:-1]), prod(x.shape[-1:]))
    weight = others[0]
    words = [*_activations(x), _weight(weight)]
    if arguments.get("antiquant_group_size"):
        words.append("scales of groups")
    types = " x ".join(dict.fromkeys((_type(x), _type(weight))))
    return Kind(op, series, types, ", ".join(words)), _sizes(x.shape, weight.shape)


def _first(value: object) -> TensorSpec | None:
    """The tensor of an argument, or the first one of a list; None for anything else."""
    first = value[0] if isinstance(value, list | tuple) and value else value
    return first if isinstance(first, TensorSpec) else None


def _type(tensor: TensorSpec) -> str:
    return ALIKE.get(tensor.dtype, tensor.dtype)


def _activations(x: TensorSpec) -> list[str]:
    return ["x NZ"] * (x.layout != "ND") + ["x transposed"] * x.transposed


def _weight(weight: TensorSpec) -> str:
    layout = "ND" if weight.layout == "ND" else "NZ"
    return f"weight {layout} [{'N, K' if weight.transposed else 'K, N'}]"


def _sizes(x: Sizes, weight: Sizes) -> Sizes:
    """*x* `(..., m, k)`; batches that share a weight `(k, n)` are rows of it."""
    batches = prod(weight[:-2])
    return batches, prod(x[:-1]) // max(batches, 1), prod(x[-1:]), prod(weight[-1:])
