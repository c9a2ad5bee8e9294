"""What npu_rotary_mul accepts, and which axes of its tensors are which.

Every layout of the document comes down to one picture: *groups* of *lines*, of which each has
vectors of several heads, which turn by the same cosines and sines.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from npusim.data.tensor import Operand, TensorSpec
from npusim.ops import _protocol
from npusim.ops._contract import Contract
from npusim.ops._support import A2_A3, alike

__all__ = ["SUPPORT", "Heads", "Problem", "check"]

MAX_WIDTH = 896
"""Longest vector: the tiling refuses longer ones (rope_rotate_half_tiling.cpp). The document
takes shorter ones only for interleave."""
MAX_HEADS = 1000
"""Of a line, for interleave: fewer (the operator's document)."""
HALF, INTERLEAVE = "half", "interleave"
MODES = (HALF, INTERLEAVE)


@dataclass(frozen=True, slots=True)
class Heads:
    """*count* vectors of a line, *step* vectors of x apart."""

    count: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call: x is `(vectors, width)`, r1 and r2 are `(groups * lines, width)` or one line.

    Vector number `group * group_step + outer * outer.step + inner * inner.step + line * line_step`
    of x turns by line number `group * lines + line`, or by the only one.
    """

    x: Operand
    width: int
    groups: int
    group_step: int
    lines: int
    line_step: int
    outer: Heads
    inner: Heads
    is_single: bool
    """Whether all vectors turn by the same line."""
    is_interleaved: bool
    """Whether neighbours turn, in place of halves."""
    casts: bool
    """Whether r1 and r2 came in float32 and are cast to the type of x first."""

    @property
    def vectors(self) -> int:
        return prod(self.x.shape[:-1])


@dataclass(frozen=True, slots=True)
class _Axes:
    """The fields of a Problem that a layout decides; counts of vectors."""

    groups: int
    group_step: int
    lines: int
    line_step: int
    outer: Heads
    inner: Heads = Heads(1, 1)
    is_single: bool = False
    fits_interleaving: bool = False
    """Whether the document has the layout for interleave; such vectors of a line then lie in
    *outer.count* runs, of *inner.count* vectors each."""


SUPPORT = tuple(
    row
    for dtype in (FLOAT16, BFLOAT16, FLOAT32)
    # The kernel gets r1 and r2 in the type of self: another one casts them first.
    for row in alike(
        tuple(dict.fromkeys((dtype, FLOAT32))),
        *("r1", "r2"),
        on=A2_A3,
        self=dtype,
        rotary_mode=MODES,
    )
)


def check(contract: Contract) -> Problem:
    """Hold a call against what ties its arguments together; raises OpError."""
    x, cos, sin = contract.operand("self"), contract.operand("r1"), contract.operand("r2")
    mode = contract.choice("rotary_mode")
    contract.require(
        len(x.shape) in (3, 4),
        f"self must have three or four dimensions, not {len(x.shape)}; reshape it",
    )
    contract.require(x.spec.size > 0, f"self must have elements, not shape {x.shape}; leave it out")
    width = x.shape[-1]
    contract.require(
        width % 2 == 0 and width <= MAX_WIDTH,
        f"self must have an even last dimension of at most {MAX_WIDTH}, not {width}; "
        f"cut vectors into parts that turn by themselves",
    )
    contract.require(
        sin.shape == cos.shape,
        f"r2 must have the shape of r1, {cos.shape}, not {sin.shape}; pass both for the same lines",
    )
    is_interleaved = mode == INTERLEAVE
    axes = _axes(x.shape, cos.shape, is_interleaved=is_interleaved)
    if axes is None:
        layouts = "11SD, 1S1D, S11D or T1D" if is_interleaved else "a layout of the document"
        contract.fail(
            f"r1 must have the last dimension of self and, of the others, 1 in place of those that "
            f"turn alike, in {layouts}, not shape {cos.shape} for {x.shape}; "
            f"reshape it"
        )
    heads = axes.outer.count * axes.inner.count
    contract.require(
        not is_interleaved or (heads < MAX_HEADS and width < MAX_WIDTH),
        f"self must have fewer than {MAX_HEADS} vectors a line, of fewer than {MAX_WIDTH} numbers, "
        f"for rotary_mode 'interleave', not {heads} of {width}; cut it into parts",
    )
    return Problem(
        inputs=(x, _as(x.element, cos), _as(x.element, sin)),
        outputs={"output": TensorSpec(x.shape, x.spec.dtype)},
        x=x,
        width=width,
        groups=axes.groups,
        group_step=axes.group_step,
        lines=axes.lines,
        line_step=axes.line_step,
        outer=axes.outer,
        inner=axes.inner,
        is_single=axes.is_single,
        is_interleaved=is_interleaved,
        casts=cos.element is not x.element,
    )


def _as(dtype: DType, operand: Operand) -> Operand:
    """*operand* cast to *dtype*, as a kernel of its own does first: to nearest, ties to even."""
    if operand.element is dtype:
        return operand
    with np.errstate(over="ignore", invalid="ignore"):
        array = None if operand.array is None else operand.array.astype(dtype.numpy)
    return Operand(operand.name, TensorSpec(operand.shape, dtype.name), array)


def _axes(x: tuple[int, ...], r: tuple[int, ...], *, is_interleaved: bool) -> _Axes | None:
    """How x, `(a, b, c, width)` or `(tokens, heads, width)`, and r go together; None if not at all.

    Which axis is which is told by r: for BNSD 11SD and B1SD, for BSND 1S1D and BS1D, for SBND S11D
    and SB1D, for TND T1D (rope_rotate_half_tiling.cpp). The first that fits is taken.
    """
    if len(r) != len(x) or r[-1] != x[-1]:
        return None
    if len(x) == 3:
        # Tokens are the lines, as S is in SBND.
        x, r = (x[0], 1, *x[1:]), (r[0], 1, *r[1:])
    a, b, c = x[:3]
    layouts = (
        ((a, b, c), _Axes(1, 0, a * b * c, 1, Heads(1, 1))),
        ((1, 1, 1), _Axes(1, 0, a * b * c, 1, Heads(1, 1), is_single=True)),
        ((1, 1, c), _Axes(1, 0, c, 1, Heads(a * b, c), fits_interleaving=True)),
        ((a, 1, c), _Axes(a, b * c, c, 1, Heads(b, c))),
        (
            (1, b, 1),
            _Axes(1, 0, b, c, Heads(a, b * c), Heads(c, 1), fits_interleaving=True),
        ),
        ((a, b, 1), _Axes(1, 0, a * b, c, Heads(c, 1))),
        (
            (a, 1, 1),
            _Axes(1, 0, a, b * c, Heads(1, b * c), Heads(b * c, 1), fits_interleaving=True),
        ),
    )
    fits = (
        axes
        for shape, axes in layouts
        if shape == r[:3] and (axes.fits_interleaving or not is_interleaved)
    )
    return next(fits, None)
