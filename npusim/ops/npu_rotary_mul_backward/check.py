"""What npu_rotary_mul_backward accepts, and how it is split."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32
from npusim.data.integers import ceil_div
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.isa import FLOATS_PER_REPEAT
from npusim.kernel.rows import whole_blocks
from npusim.ops import _vocabulary as ops
from npusim.ops.npu_rotary_mul.check import (
    INTERLEAVE,
    MAX_WIDTH,
    MODES,
    Axes,
    as_type,
    axes_of,
)

LINES = {"r1": "*lines", "r2": "*lines"}
SUPPORT = tuple(
    row
    for dtype in (FLOAT16, BFLOAT16, FLOAT32)
    for row in ops.alike(
        tuple(dict.fromkeys((dtype, FLOAT32))),
        *LINES,
        on=ops.A2_A3,
        shapes=LINES,
        grad=dtype,
        self=dtype,
        rotary_mode=MODES,
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call: self and grad are `(vectors, width)`, r1 and r2 `(groups * lines, width)`."""

    width: int
    axes: Axes
    is_interleaved: bool
    needs_angles: bool
    casts: tuple[str, ...]
    """Those of r1 and r2 that came in float32 and are cast to the type of self first."""


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    grad, x, cos, sin = map(contract.operand, ("grad", "self", "r1", "r2"))
    mode = contract.choice("rotary_mode")
    contract.require(
        len(x.shape) in (3, 4),
        f"self must have three or four dimensions, not {len(x.shape)}; reshape it",
    )
    contract.require(x.spec.size > 0, f"self must have elements, not shape {x.shape}; leave it out")
    contract.require(
        grad.shape == x.shape,
        f"grad must have the shape of self, {x.shape}, not {grad.shape}; pass the gradient of "
        f"npu_rotary_mul's output",
    )
    width = x.shape[-1]
    contract.require(
        width % 2 == 0 and width <= MAX_WIDTH,
        f"self must have an even last dimension of at most {MAX_WIDTH}, not {width}; "
        f"cut vectors into parts that turn by themselves",
    )
    is_interleaved = mode == INTERLEAVE
    axes = axes_of(x.shape, cos.shape, is_interleaved=is_interleaved)
    contract.require(
        axes is not None and not axes.is_single,
        f"r1 must have the last dimension of self and, of the others, 1 in place of those that "
        f"turn alike, in a layout of npu_rotary_mul, not shape {cos.shape} for {x.shape}; "
        f"reshape it",
    )
    assert axes is not None
    angles = as_type(x.element, cos), as_type(x.element, sin)
    return Problem(
        inputs=(grad, x, *angles),
        outputs={
            "output": x.spec,
            **{f"{each.name}_grad": TensorSpec(each.shape, x.spec.dtype) for each in angles},
        },
        width=width,
        axes=axes,
        is_interleaved=is_interleaved,
        needs_angles=contract.value("needs_angles"),
        casts=tuple(each.name for each in (cos, sin) if each.element is not x.element),
    )


# ---- tiling: op_host/rope_half_grad_tiling.cpp ----

RESERVED_BYTES = 20 * 1024
"""Bytes of the unified buffer that are left unused."""
TENSORS = {True: ((7, 5), (7, 9)), False: ((4, 3), (4, 7))}
"""Whether all gradients are needed -> for float32 and for 16 bits: tensors of that type in the
buffer, and of float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """Each core has equally many lines, the last one the rest, and processes some at a time."""

    lines_of_core: int
    line_step: int


def line_of(p: Problem) -> int:
    """Elements between vectors in the buffer; halves start at blocks."""
    dtype = p.output.element
    return (
        whole_blocks(p.width, dtype) if p.is_interleaved else 2 * whole_blocks(p.width // 2, dtype)
    )


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Even shares of lines, of which as many are loaded together as fit in whole repeats."""
    core, dtype, line = spec.cores[spec.vector_kinds[0]], p.output.element, line_of(p)
    own, wide = TENSORS[p.needs_angles][dtype is not FLOAT32]
    element_bytes = own * dtype.nbytes(1) + wide * FLOAT32.nbytes(1)
    room = (core.usable_bytes("ub") - RESERVED_BYTES) // element_bytes
    unit = line if p.width % FLOATS_PER_REPEAT == 0 else int(np.lcm(line, FLOATS_PER_REPEAT))
    each = ceil_div(p.axes.lines, len(spec.vector_cores))
    return Plan(
        block_dim=ceil_div(p.axes.lines, each),
        lines_of_core=each,
        line_step=min(each, room // unit * (unit // line)),
    )
