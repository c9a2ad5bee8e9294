"""The calls of the family that are accepted, and the rows they move."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import prod

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8, INT32, INT64, UINT8
from npusim.data.tensor import TensorSpec
from npusim.kernel.views import GmView
from npusim.ops import _protocol
from npusim.ops._contract import MAX_RANK, Contract
from npusim.ops._support import A2_A3, ATLAS_INFERENCE, EVERYWHERE, Operands, Row

KNOWN = (FLOAT32, FLOAT16, BFLOAT16, INT32, INT64, INT8, UINT8)
KNOWN_310P = tuple(dtype for dtype in KNOWN if dtype is not BFLOAT16)
MOST_JOINED = 32
"""Most tensors of one ConcatD: from 33 on there are other kernels, or groups (aclnn_cat.cpp)."""


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


def rows_of(ranks: tuple[int, int] = (0, MAX_RANK)) -> tuple[Row, ...]:
    """The types of x, with dimensions in *ranks*."""
    return (
        Row(on=A2_A3, x=Operands(KNOWN, ranks=ranks)),
        Row(on=ATLAS_INFERENCE, x=Operands(KNOWN_310P, ranks=ranks)),
    )


def joined_rows() -> tuple[Row, ...]:
    """The types of tensors that are joined: one type for all."""
    return tuple(
        Row(
            on=EVERYWHERE if dtype in KNOWN_310P else A2_A3,
            tensors=Operands((dtype,), ranks=(1, MAX_RANK), most=MOST_JOINED),
        )
        for dtype in KNOWN
    )


def check_clone(contract: Contract) -> Problem:
    """Check that the kernel accepts a call; raises OpError."""
    operand = contract.operand("x")
    element, size = operand.element, operand.spec.size
    move = Move(GmView.vector("x", element, size), GmView.vector("output", element, size))
    output = TensorSpec(operand.shape, operand.spec.dtype)
    return Problem(inputs=(operand,), outputs={"output": output}, name="clone", moves=(move,))


def check_narrow(contract: Contract) -> Problem:
    """Check that the kernel accepts a call; raises OpError."""
    operand = contract.operand("x")
    axis = contract.axis("dim", operand)
    first, count = contract.integer("start"), contract.integer("length")
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


def check_concat(contract: Contract) -> Problem:
    """Check that the kernel accepts a call; raises OpError."""
    operands = contract.operands("tensors")
    first = operands[0]
    axis = contract.axis("dim", first)
    shapes = ", ".join(str(x.shape) for x in operands)
    contract.require(
        len({(*x.shape[:axis], -1, *x.shape[axis + 1 :]) for x in operands}) == 1,
        f"tensors must have the same sizes but along dim, not {shapes}; reshape one of them",
    )
    rows, inner = prod(first.shape[:axis]), prod(first.shape[axis + 1 :])
    widths = [x.shape[axis] * inner for x in operands]
    out = GmView.of("output", first.element, rows, sum(widths))
    ends = list(accumulate(widths, initial=0))
    moves = (
        Move(GmView.of(x.name, first.element, rows, width), out[:, start : start + width])
        for x, width, start in zip(operands, widths, ends, strict=False)
    )
    length = sum(x.shape[axis] for x in operands)
    shape = (*first.shape[:axis], length, *first.shape[axis + 1 :])
    return Problem(
        inputs=operands,
        outputs={"output": TensorSpec(shape, first.spec.dtype)},
        name="concat",
        moves=tuple(move for move in moves if move.src.nbytes),
    )
