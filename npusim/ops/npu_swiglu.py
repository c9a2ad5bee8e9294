"""npu_swiglu: SwiGLU: silu of the first half, times the second half.

.. code-block:: text

    a, b = split(x, 2, dim)
    float32             y = ((1 / (exp(-a) + 1)) * a) * b
    float16, bfloat16   y = round((f32(a) / (exp(-f32(a)) + 1)) * f32(b))

All in fp32, rounded after each operation to nearest, ties to even; the two forms differ in the last
bit. The precision of Exp is not public: the nearest fp32 value is assumed.

* If a is below -88.7, exp(-a) is infinite and y is zero, with the sign of a times b; a of
  minus infinity gives NaN.
* On 310P, which has no infinities in fp16, infinities in x are used as such in fp32, and y is at
  most 65504 (assumed).

Sources: ops-nn@e5c3fa9 activation/swi_glu, op_kernel and op_host. torch_npu's document names Atlas
A2 alone; that of aclnn and vllm-ascend have it on Atlas inference and Atlas A3 too. Atlas inference
takes float16 and float32 whose half rows are multiples of 64 bytes, and nothing empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, Array
from npusim.data.integers import align_down, ceil_div
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.isa import MAX_BURSTS
from npusim.kernel import BLOCK_BYTES, Block, Duplicate, GmView, Step, VectorCore
from npusim.kernel.rows import whole_blocks
from npusim.kernel.steps import tiles
from npusim.ops import _vocabulary as ops
from npusim.ops._swish import exp_plus_1, exp_plus_1_of
from npusim.ops._torch import Result

SUPPORT = (
    ops.Row(on=ops.A2_A3, x=ops.Operands((FLOAT16, BFLOAT16, FLOAT32), ranks=(1, 8))),
    ops.Row(on=ops.ATLAS_INFERENCE, x=ops.Operands((FLOAT16, FLOAT32), ranks=(1, 8))),
)
HALF_ROW_BYTES_310P = 64
"""Half rows on Atlas inference are multiples of this (aclnn_swi_glu.cpp and its document)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call: x is `(rows, 2, columns)` to the kernel, y `(rows, columns)`."""

    rows: int
    """Product of the dimensions before *dim*."""
    columns: int
    """Half the product of *dim* and the dimensions after it."""
    queues: int = 3
    """Queues of the kernel's tiles: both halves of x, and y."""
    wide_tiles: int
    """Tiles of fp32 in addition to the queues."""


def halves(contract: ops.Contract) -> tuple[Operand, tuple[int, ...], int, int]:
    """x, the shape of half of it, and its `(rows, columns)`; raises OpError."""
    x = contract.operand("x")
    shape, axis = x.shape, contract.axis("dim", x)
    contract.require(
        shape[axis] % 2 == 0,
        f"dimension {axis} of x must be even, to be cut in half, not {shape[axis]}; pad both "
        f"halves",
    )
    columns, series = prod(shape[axis:]) // 2, contract.spec.series
    if series in ops.ATLAS_INFERENCE:
        half_bytes = x.element.nbytes(columns)
        contract.require(
            prod(shape) > 0,
            f"x must not be empty on {series}, not of shape {shape}; leave the call out",
        )
        contract.require(
            half_bytes % HALF_ROW_BYTES_310P == 0,
            f"half of x from dim on must be a multiple of {HALF_ROW_BYTES_310P} bytes on {series}, "
            f"not {half_bytes} bytes; pad both halves",
        )
    halved = (*shape[:axis], shape[axis] // 2, *shape[axis + 1 :])
    return x, halved, prod(shape[:axis]), columns


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    x, halved, rows, columns = halves(contract)
    return Problem(
        inputs=(x,),
        outputs={"output": TensorSpec(halved, x.spec.dtype)},
        rows=rows,
        columns=columns,
        # Two fp32 for each element, or one if its type is fp32.
        wide_tiles=1 if x.element is FLOAT32 else 2,
    )


# ---- tiling: ops-nn@e5c3fa9 activation/swi_glu/op_host/swi_glu_tiling.cpp ----

MAX_GAP = 65535
"""Blocks between two bursts, or bytes if rows are not whole blocks; and columns of a tile."""
COLUMN_UNIT_BYTES = 512
"""Tiles narrower than a row are a multiple of this wide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """Tiles of `row_step` x `column_step`, of which core i takes i, i + block_dim, ..."""

    row_step: int
    column_step: int
    depth: int
    """Buffers of each queue: 2 load and compute at the same time."""

    def tiles(self, p: Problem) -> int:
        """The number of tiles."""
        return ceil_div(p.rows, self.row_step) * ceil_div(p.columns, self.column_step)


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Choose tiles and depth; 310P counts only its AI cores (asc-devkit, GetCoreNumAiv.md)."""
    plan = _best(spec, p, depth=2)
    if ceil_div(plan.tiles(p), plan.block_dim) == 2:
        single = _best(spec, p, depth=1)
        if single.tiles(p) <= single.block_dim >= plan.block_dim:
            return single
    return plan


def _best(spec: DeviceSpec, p: Problem, depth: int) -> Plan:
    """Most cores, then fewest tiles, then the largest, then most whole ones, then the first."""
    core, element = spec.cores[spec.vector_kinds[0]], p.output.element
    per_element = depth * p.queues * element.nbytes(1) + FLOAT32.nbytes(p.wide_tiles)
    room = align_down(core.usable_bytes("ub") // per_element, BLOCK_BYTES // element.nbytes(1))

    def merit(size: tuple[int, int]) -> tuple[int, int, int, int]:
        rows, columns = size
        count = ceil_div(p.rows, rows) * ceil_div(p.columns, columns)
        whole = (p.rows // rows) * (p.columns // columns)
        return min(count, core.count), -count, rows * columns, whole

    # `max` keeps the first of equals.
    best = max(_sizes(p, room), key=merit)
    rows, columns = best
    # Once to choose the depth, and once more for the tiles (swi_glu.cpp, glu_tiling_kernel.hpp).
    return Plan(
        block_dim=merit(best)[0],
        reads_tiling=2,
        row_step=rows,
        column_step=columns,
        depth=depth,
    )


def _sizes(p: Problem, room: int) -> Iterator[tuple[int, int]]:
    """Rows and columns of tiles of at most *room* elements, from the widest to the narrowest."""
    size = p.output.element.nbytes(1)
    unit, in_blocks = COLUMN_UNIT_BYTES // size, p.columns * size % BLOCK_BYTES == 0
    most_rows = min(p.rows, MAX_BURSTS)
    columns = min(p.columns, room, MAX_GAP if in_blocks else MAX_GAP // size)
    if columns < p.columns:
        columns = align_down(columns, unit)
    while True:
        # Bytes between a row's end and the next one's start: the other half, and this one's rest.
        gap_bytes = (2 * p.columns - columns) * size
        is_near = (gap_bytes // BLOCK_BYTES if in_blocks else gap_bytes) <= MAX_GAP
        rows = min(room // whole_blocks(columns, p.output.element), most_rows) if is_near else 1
        yield rows, columns
        if columns <= unit or rows == most_rows:
            return
        columns = align_down(columns - 1, unit)


# ---- kernel: op_kernel/swi_glu_impl.hpp, swi_glu_bf16.hpp ----


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Tiles of y and of both halves of x are assigned to cores round-robin, in row-major order.

    Rows start at blocks, each a burst. float32 is computed in the output buffer of y; it divides a
    tile of ones.
    """
    core, dtype = VectorCore("npu_swiglu", spec), p.output.element
    is_wide = dtype is FLOAT32
    size = plan.row_step * whole_blocks(plan.column_step, dtype)
    a_in, b_in = core.vecin(dtype, size, plan.depth), core.vecin(dtype, size, plan.depth)
    y_out, work = core.vecout(dtype, size, plan.depth), core.tile(FLOAT32, size)
    more = work if is_wide else core.tile(FLOAT32, size)
    # Half rows on 310P are whole blocks.
    core.claim_tails(has_tails=not core.is_310p)

    def tile(a: GmView, b: GmView, y: GmView) -> None:
        """Compute *y* from *a* and *b*, all `(rows, columns)`, including the padding of rows."""
        n = a.rows * whole_blocks(a.columns, dtype)
        # Both must be free before the first is filled.
        for queue, free, view in ((a_in, a_in.alloc(), a), (b_in, b_in.alloc(), b)):
            core.fill(free, view)
            queue.enque(free)
        first = a_in.deque()
        if is_wide:
            out = y_out.alloc()[:n]
            core.barrier("vector")
            exp_plus_1(core, out, first[:n])
            core.barrier("vector")
            core.div(out, work[:n], out)
            core.mul(out, out, first[:n])
            a_in.free(first)
            second = b_in.deque()
            core.barrier("vector")
            core.mul(out, out, second[:n])
            b_in.free(second)
        else:
            total, values = work[:n], more[:n]
            core.cast(values, first[:n])
            a_in.free(first)
            exp_plus_1(core, total, values)
            core.div(values, values, total)
            second = b_in.deque()
            core.cast(total, second[:n])
            b_in.free(second)
            core.mul(values, values, total)
            out = y_out.alloc()[:n]
            core.cast(out, values)
        core.store_rows(y_out, out, y)

    x = GmView.of("x", dtype, p.rows, 2 * p.columns)
    output = GmView.of("output", dtype, p.rows, p.columns)
    views = (x[:, : p.columns], x[:, p.columns :], output)
    cut = tuple(tiles(view, plan.row_step, plan.column_step) for view in views)
    begin = (lambda: core.emit(Duplicate(work, 1.0))) if is_wide else None
    return core.launch(Step(tile, cut, np.arange(plan.tiles(p)) % plan.block_dim), begin=begin)


# ---- oracle ----


def oracle(given: ops.Given) -> Array:
    """Half of x along dim, in its type; the chip says whether fp16 has infinities."""
    a, b = (half.astype(np.float32) for half in np.split(given.x, 2, axis=given.dim))
    with np.errstate(all="ignore"):
        below = exp_plus_1_of(a)
        if given.x.dtype == np.float32:
            return ((np.float32(1) / below) * a) * b
        return given.rounded((a / below) * b, given.x.dtype)


def _outputs(given: ops.TorchArguments, _: object) -> tuple[Result, ...]:
    x, shape = given["x"], list(given["x"].shape)
    shape[given["dim"]] //= 2
    return ((tuple(shape), x.dtype),)


OPERATOR = ops.Operator(
    kernel_type="SwiGlu",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    torch=(
        ops.TorchFunction(
            schema="npu_swiglu(Tensor self, int dim=-1) -> Tensor",
            aclnn=lambda _: "aclnnSwiGlu",
            outputs=_outputs,
            names={"self": "x"},
            gradient=ops.Gradient("self: npu_swiglu_backward(grad, self, dim)"),
        ),
    ),
)
