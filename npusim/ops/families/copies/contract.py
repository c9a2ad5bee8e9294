"""What calls of the family are accepted, and which rows they move."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8, INT32, INT64, UINT8
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.kernel.views import GmView
from npusim.ops import _protocol
from npusim.ops._contract import Contract

__all__ = ["Move", "Problem", "check_clone", "check_concat", "check_narrow", "known_operand"]

KNOWN = (FLOAT32, FLOAT16, BFLOAT16, INT32, INT64, INT8, UINT8)
MOST_JOINED = 32
"""Tensors that one ConcatD takes: from 33 on there are other kernels, or groups (aclnn_cat.cpp)."""


@dataclass(frozen=True, slots=True)
class Move:
    """Rows of an operand that become rows of the result; both `(rows, columns)`."""

    src: GmView
    dst: GmView


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call."""

    name: str
    moves: tuple[Move, ...]


def known_operand(contract: Contract, name: str, value: Any) -> Operand:
    """A tensor of a type that copies take."""
    is_inference = contract.spec.series == "Atlas inference"
    known = tuple(dtype for dtype in KNOWN if not (is_inference and dtype is BFLOAT16))
    return contract.operand(name, value, known)


def _axis(contract: Contract, x: Operand, dim: Any) -> int:
    """*dim* counted from the first axis of *x*."""
    axis, rank = contract.integer("dim", dim), len(x.shape)
    contract.require(rank > 0, "x must have a dimension at least, not none; reshape it")
    contract.require(
        -rank <= axis < rank, f"dim must lie in [{-rank}, {rank - 1}], not {axis}; pass another"
    )
    return axis % rank


def check_clone(spec: DeviceSpec, x: Any) -> Problem:
    """Hold a call against what the kernel takes; raises OpError."""
    operand = known_operand(Contract("clone", spec), "x", x)
    element, size = operand.element, operand.spec.size
    move = Move(GmView.vector("x", element, size), GmView.vector("output", element, size))
    output = TensorSpec(operand.shape, operand.spec.dtype)
    return Problem(inputs=(operand,), outputs={"output": output}, name="clone", moves=(move,))


def check_narrow(spec: DeviceSpec, x: Any, dim: Any, start: Any, length: Any) -> Problem:
    """Hold a call against what the kernel takes; raises OpError."""
    contract = Contract("narrow", spec)
    operand = known_operand(contract, "x", x)
    axis = _axis(contract, operand, dim)
    first, count = contract.integer("start", start), contract.integer("length", length)
    size = operand.shape[axis]
    contract.require(
        0 <= first <= first + count <= size and count >= 0,
        f"start and length must name a part of the {size} along dim, not [{first}, "
        f"{first + count}); cut it",
    )
    rows, inner = prod(operand.shape[:axis]), prod(operand.shape[axis + 1 :])
    shape = (*operand.shape[:axis], count, *operand.shape[axis + 1 :])
    whole = GmView.of("x", operand.element, rows, size * inner)
    part = whole[:, first * inner : (first + count) * inner]
    out = GmView.of("output", operand.element, rows, count * inner)
    output = TensorSpec(shape, operand.spec.dtype)
    moves = (Move(part, out),)
    return Problem(inputs=(operand,), outputs={"output": output}, name="narrow", moves=moves)


def check_concat(spec: DeviceSpec, tensors: Any, dim: Any = 0) -> Problem:
    """Hold a call against what the kernel takes; raises OpError."""
    contract = Contract("concat", spec)
    given = contract.tensors("tensors", tensors, MOST_JOINED)
    first = known_operand(contract, *given[0])
    rest = (contract.operand(*each, (first.element,), f" like {first.name}") for each in given[1:])
    operands = [first, *rest]
    axis = _axis(contract, first, dim)
    shapes = ", ".join(str(x.shape) for x in operands)
    contract.require(
        len({(*x.shape[:axis], -1, *x.shape[axis + 1 :]) for x in operands}) == 1,
        f"tensors must have the same sizes but along dim, not {shapes}; reshape one of them",
    )
    rows, inner = prod(first.shape[:axis]), prod(first.shape[axis + 1 :])
    widths = [x.shape[axis] * inner for x in operands]
    granule = spec.transfer.store_granule_bytes
    contract.require(
        all(first.element.nbytes(width) % granule == 0 for width in widths),
        f"tensors must have whole blocks of {granule} bytes from dim on on {spec.series}, not "
        f"{shapes}: others are not simulated; pad them",
    )
    out = GmView.of("output", first.element, rows, sum(widths))
    ends = list(accumulate(widths, initial=0))
    moves = (
        Move(GmView.of(x.name, first.element, rows, width), out[:, start : start + width])
        for x, width, start in zip(operands, widths, ends, strict=False)
    )
    length = sum(x.shape[axis] for x in operands)
    shape = (*first.shape[:axis], length, *first.shape[axis + 1 :])
    return Problem(
        inputs=tuple(operands),
        outputs={"output": TensorSpec(shape, first.spec.dtype)},
        name="concat",
        moves=tuple(move for move in moves if move.src.nbytes),
    )
