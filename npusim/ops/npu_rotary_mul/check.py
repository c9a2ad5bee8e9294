"""What npu_rotary_mul accepts, the roles of its tensors' axes, and how it is split.

Every layout of the document reduces to one form: *groups* of *lines*, each of which has vectors of
several heads, which are rotated by the same cosines and sines.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from npusim.data.errors import Code
from npusim.data.integers import ceil_div
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.isa import MAX_REPEATS
from npusim.kernel import share
from npusim.kernel.rows import whole_blocks
from npusim.ops import _vocabulary as ops
from npusim.ops._vocabulary import A2_A3, ATLAS_INFERENCE, alike

MAX_WIDTH = 896
"""Longest vector: the tiling refuses longer ones (rope_rotate_half_tiling.cpp). For interleave the
document only accepts shorter ones."""
MAX_HEADS = 1000
"""A line has fewer heads than this for interleave (the operator's document)."""
HALF, INTERLEAVE = "half", "interleave"
MODES = (HALF, INTERLEAVE)


@dataclass(frozen=True, slots=True)
class Heads:
    """*count* vectors of a line, *step* vectors of x apart."""

    count: int
    step: int


@dataclass(frozen=True, slots=True)
class Axes:
    """The line of r1 and r2 by which each vector of x is rotated.

    Vector index `group * group_step + outer * outer.step + inner * inner.step + line * line_step`
    of x is rotated by line index `group * lines + line`, or by the only one.
    """

    groups: int
    group_step: int
    lines: int
    line_step: int
    outer: Heads
    inner: Heads = Heads(1, 1)
    is_single: bool = False
    """Whether all vectors are rotated by the same line."""
    fits_interleaving: bool = False
    """Whether the document has the layout for interleave; such vectors of a line then lie in
    *outer.count* runs, of *inner.count* vectors each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call: x is `(vectors, width)`, r1 and r2 `(groups * lines, width)` or one line."""

    x: Operand
    width: int
    axes: Axes
    is_interleaved: bool
    """Whether neighbours form the pairs, instead of halves."""
    casts: bool
    """Whether r1 and r2 came in float32 and are cast to the type of x first."""


LINES = {"r1": "*lines", "r2": "*lines"}
SUPPORT = (
    *(
        row
        for dtype in (FLOAT16, BFLOAT16, FLOAT32)
        # The kernel gets r1 and r2 in the type of self: another one casts them first.
        for row in alike(
            tuple(dict.fromkeys((dtype, FLOAT32))),
            *LINES,
            on=A2_A3,
            shapes=LINES,
            self=dtype,
            rotary_mode=MODES,
        )
    ),
    *alike(
        (FLOAT16, FLOAT32),
        *("self", *LINES),
        on=ATLAS_INFERENCE,
        shapes=LINES,
        rotary_mode=(HALF,),
    ),
)
WIDTH_UNIT_310P = 64
"""torch_npu runs RotaryMul only for multiples of this width (op-plugin@517f2e7,
RotaryMulKernelNpu.cpp)."""


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    x, cos, sin = contract.operand("self"), contract.operand("r1"), contract.operand("r2")
    mode = contract.choice("rotary_mode")
    if contract.spec.series in ATLAS_INFERENCE:
        _check_310p(contract, x)
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
    is_interleaved = mode == INTERLEAVE
    axes = axes_of(x.shape, cos.shape, is_interleaved=is_interleaved)
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
        f"self must have fewer than {MAX_HEADS} vectors a line, of fewer than {MAX_WIDTH} elements"
        f", for rotary_mode 'interleave', not {heads} of {width}; cut it into parts",
    )
    return Problem(
        inputs=(x, as_type(x.element, cos), as_type(x.element, sin)),
        outputs={"output": TensorSpec(x.shape, x.spec.dtype)},
        x=x,
        width=width,
        axes=axes,
        is_interleaved=is_interleaved,
        casts=cos.element is not x.element,
    )


def _check_310p(contract: ops.Contract, x: Operand) -> None:
    """Check the limits of RotaryMul; torch_npu composes other widths from several kernels."""
    series = contract.spec.series
    contract.require(
        len(x.shape) == 4,
        f"self must have four dimensions on {series}, not {len(x.shape)}; reshape it",
    )
    contract.require(
        x.shape[-1] % WIDTH_UNIT_310P == 0,
        f"self must have a last dimension that is a multiple of {WIDTH_UNIT_310P} on {series}, not "
        f"{x.shape[-1]}, which torch_npu turns by several kernels there; run mul, concat and add "
        f"one by one",
        Code.UNSUPPORTED,
    )


def as_type(dtype: DType, operand: Operand) -> Operand:
    """*operand* cast to *dtype*, like by a preceding separate kernel: to nearest, ties to even."""
    if operand.element is dtype:
        return operand
    with np.errstate(over="ignore", invalid="ignore"):
        array = None if operand.array is None else operand.array.astype(dtype.numpy)
    return Operand(operand.name, TensorSpec(operand.shape, dtype.name), array)


def axes_of(x: tuple[int, ...], r: tuple[int, ...], *, is_interleaved: bool) -> Axes | None:
    """How x, `(a, b, c, width)` or `(tokens, heads, width)`, and r match; None if they do not.

    The shape of r decides: for BNSD 11SD and B1SD, for BSND 1S1D and BS1D, for SBND S11D and SB1D,
    for TND T1D (rope_rotate_half_tiling.cpp). The first that fits is taken.
    """
    if len(r) != len(x) or r[-1] != x[-1]:
        return None
    if len(x) == 3:
        # Tokens are the lines, like S in SBND.
        x, r = (x[0], 1, *x[1:]), (r[0], 1, *r[1:])
    a, b, c = x[:3]
    layouts = (
        ((a, b, c), Axes(1, 0, a * b * c, 1, Heads(1, 1))),
        ((1, 1, 1), Axes(1, 0, a * b * c, 1, Heads(1, 1), is_single=True)),
        ((1, 1, c), Axes(1, 0, c, 1, Heads(a * b, c), fits_interleaving=True)),
        ((a, 1, c), Axes(a, b * c, c, 1, Heads(b, c))),
        ((1, b, 1), Axes(1, 0, b, c, Heads(a, b * c), Heads(c, 1), fits_interleaving=True)),
        ((a, b, 1), Axes(1, 0, a * b, c, Heads(c, 1))),
        ((a, 1, 1), Axes(1, 0, a, b * c, Heads(1, 1), Heads(b * c, 1), fits_interleaving=True)),
    )
    fits = (
        axes
        for shape, axes in layouts
        if shape == r[:3] and (axes.fits_interleaving or not is_interleaved)
    )
    return next(fits, None)


# ---- tiling: ops-transformer@c29bc10 posembedding/rotary_position_embedding/op_host ----

RESERVED_BYTES = 2048
"""Bytes of the unified buffer that are left unused (rope_rotate_half_tiling.cpp)."""
FLOAT_BUFFERS, HALF_BUFFERS = 8, 24
"""The buffers of a line, in lines of the input: for float32, and for 16 bits, which are widened
(the same file)."""

REASONS = {
    "split_s": "the buffer holds all vectors of a line",
    "split_bs": "the buffer holds the heads of a line, but not of all batches",
    "split_bsn": "the buffer does not hold the heads of a line",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """Each core has its own lines, for all their heads."""

    lines_of_core: tuple[int, ...]
    line_step: int
    """Lines that are loaded together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterleavedPlan(Plan):
    """The vectors of a line in this many batches and heads are rotated together."""

    batch_step: int
    head_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CoupledPlan(ops.Plan):
    """On 310P task i, of *line_step* lines with all their heads, goes to core i mod block_dim."""

    line_step: int


COUPLED_BUFFERS = 4
"""Cosines, sines, vectors and their exchanged halves (CANN 8.1.RC1, rotary_mul.py)."""


def tile(spec: DeviceSpec, p: Problem) -> Plan | CoupledPlan:
    """Lines are split evenly; as many are loaded together as the buffers hold."""
    if spec.series in ATLAS_INFERENCE:
        return _coupled(spec, p)
    if p.is_interleaved:
        return _interleaved(spec, p)
    cores = min(p.axes.lines, len(spec.vector_cores))
    dtype = p.x.element
    buffers = HALF_BUFFERS if dtype.bits == 16 else FLOAT_BUFFERS
    room = (spec.cores[spec.vector_kinds[0]].usable_bytes("ub") - RESERVED_BYTES) // buffers
    lines = tuple(len(share(p.axes.lines, cores, core)) for core in range(cores))
    step = room // dtype.nbytes(2 * whole_blocks(p.width // 2, dtype))
    return Plan(block_dim=cores, lines_of_core=lines, line_step=min(step, lines[0]))


def _coupled(spec: DeviceSpec, p: Problem) -> CoupledPlan:
    """The tiling of RotaryMul is closed. Assumed: an even share of the lines for each AI core, in
    tasks that fit the buffers, with no more lines than a repeat count can express."""
    core, lines = spec.cores[spec.vector_kinds[0]], p.axes.lines
    vectors_bytes = p.x.element.nbytes(COUPLED_BUFFERS * p.width)
    # A single line for all vectors has a separate buffer.
    most = core.usable_bytes("ub") // vectors_bytes - int(p.axes.is_single)
    step = min(most, MAX_REPEATS, ceil_div(lines, core.count))
    return CoupledPlan(block_dim=min(core.count, ceil_div(lines, step)), line_step=step)


def _interleaved(spec: DeviceSpec, p: Problem) -> InterleavedPlan:
    """Take the lines that fit with all their vectors; else one, with as many batches or heads.

    The same, rope_interleaved_tiling.cpp: split_s, split_bs and split_bsn.
    """
    cores = min(p.axes.lines, len(spec.vector_cores))
    lines = tuple(len(share(p.axes.lines, cores, core)) for core in range(cores))
    dtype, batches, heads = p.x.element, p.axes.outer.count, p.axes.inner.count
    pitch = whole_blocks(p.width, dtype)
    # x, cosines and result in its type; then all of them, or the gathered values, as float32.
    vector_bytes = 3 * dtype.nbytes(pitch) + FLOAT32.nbytes(pitch) * (3 if dtype.bits == 16 else 1)
    place_bytes = FLOAT32.nbytes(pitch)
    room = spec.cores[spec.vector_kinds[0]].usable_bytes("ub") - RESERVED_BYTES
    left = room - heads * place_bytes
    line_step = max(0, left) // (batches * heads * vector_bytes)
    if line_step:
        how, steps = "split_s", (min(line_step, lines[0]), batches, heads)
    elif left >= heads * vector_bytes:
        how, steps = "split_bs", (1, left // (heads * vector_bytes), heads)
    else:
        how, steps = "split_bsn", (1, 1, room // (vector_bytes + place_bytes))
    return InterleavedPlan(
        block_dim=cores,
        template=how,
        reason=REASONS[how],
        lines_of_core=lines,
        line_step=steps[0],
        batch_step=steps[1],
        head_step=steps[2],
    )
