"""npu_swiglu_backward: the gradient of npu_swiglu, for both halves of x.

.. code-block:: text

    a, b = split(x, 2, dim)                         g: the gradient of npu_swiglu's output
    s = 1 / (exp(-a) + 1)
    da = ((((s * (s * -1 + 1)) * a) + s) * g) * b   float32 times b, then g
    db = (s * a) * g
    output = concat(da, db, dim)

All in fp32, rounded after each operation to nearest, ties to even; float16 and bfloat16 are widened
first, and each half of the result is rounded once. The precision of Exp is not public: the nearest
fp32 value is assumed.

* If a is below -88.7, exp(-a) is infinite and both halves are zero.

Sources: ops-nn@e5c3fa9 activation/swi_glu_grad, op_kernel; its tiling is that of npu_swiglu with
five queues (activation/swi_glu/op_host/swi_glu_tiling.cpp). Atlas inference takes float16 and
float32 whose half rows are multiples of 64 bytes, and nothing empty.
"""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, Array
from npusim.devices.schema import DeviceSpec
from npusim.kernel import Block, GmView, Local, Step, VectorCore
from npusim.kernel.rows import whole_blocks
from npusim.kernel.steps import tiles
from npusim.ops import _vocabulary as ops
from npusim.ops._swish import exp_plus_1, exp_plus_1_of
from npusim.ops._torch import Result
from npusim.ops.npu_swiglu import Plan, Problem, halves, tile

SUPPORT = (
    *ops.alike((FLOAT16, BFLOAT16, FLOAT32), "grad_output", "x", on=ops.A2_A3),
    *ops.alike((FLOAT16, FLOAT32), "grad_output", "x", on=ops.ATLAS_INFERENCE),
)


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    grad = contract.operand("grad_output")
    x, halved, rows, columns = halves(contract)
    contract.require(
        grad.shape == halved,
        f"grad_output must be of shape {halved}, half of x along dim, not {grad.shape}; pass the "
        f"gradient of npu_swiglu's output",
    )
    return Problem(
        inputs=(grad, x),
        outputs={"output": x.spec},
        rows=rows,
        columns=columns,
        queues=5,
        wide_tiles=2 if x.element is FLOAT32 else 5,
    )


# ---- kernel: op_kernel/swi_glu_grad_single.hpp, _float.hpp, _bf16.hpp ----


class Halves:
    """The buffers of a core, and its processing of a tile of both halves."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.core, self.dtype = VectorCore("npu_swiglu_backward", spec), p.output.element
        core, dtype = self.core, self.dtype
        size = plan.row_step * whole_blocks(plan.column_step, dtype)
        self.a_in, self.b_in, self.g_in = (core.vecin(dtype, size, plan.depth) for _ in range(3))
        self.da_out, self.db_out = (core.vecout(dtype, size, plan.depth) for _ in range(2))
        self.work = tuple(core.tile(FLOAT32, size) for _ in range(p.wide_tiles))
        # Half rows on 310P are whole blocks.
        core.claim_tails(has_tails=not core.is_310p)

    def tile(self, a: GmView, b: GmView, g: GmView, da: GmView, db: GmView) -> None:
        """Compute *da* and *db* from *a*, *b* and *g*, all `(rows, columns)`."""
        core = self.core
        for queue, view in ((self.a_in, a), (self.g_in, g), (self.b_in, b)):
            free = queue.alloc()
            core.fill(free, view)
            queue.enque(free)
        count = a.rows * whole_blocks(a.columns, self.dtype)
        compute = self.in_float32 if self.dtype is FLOAT32 else self.widened
        da_tile, db_tile = compute(count)
        core.store_rows(self.da_out, da_tile, da)
        core.store_rows(self.db_out, db_tile, db)

    def sigmoid(self, sigmoid: Local, ones: Local, a: Local) -> None:
        """Write `1 / (exp(-a) + 1)` to *sigmoid*; *ones* is overwritten."""
        exp_plus_1(self.core, sigmoid, a)
        self.core.duplicate(ones, 1.0)
        self.core.div(sigmoid, ones, sigmoid)

    def slope(self, dst: Local, sigmoid: Local, work: Local, a: Local) -> None:
        """Write the derivative of `a x sigmoid` to *dst*; *work* is overwritten."""
        core = self.core
        core.mul(work, sigmoid, -1.0)
        core.add(work, work, 1.0)
        core.mul(dst, sigmoid, work)
        core.mul(dst, dst, a)
        core.mul(dst, dst, 1.0)
        core.add(dst, dst, sigmoid)

    def in_float32(self, count: int) -> tuple[Local, Local]:
        """Compute the fp32 results in the output buffers."""
        core, (work, sigmoid) = self.core, (tile[:count] for tile in self.work)
        a = self.a_in.deque()
        self.sigmoid(sigmoid, work, a[:count])
        db = self.db_out.alloc()[:count]
        core.mul(db, sigmoid, a[:count])
        g = self.g_in.deque()
        core.mul(db, db, g[:count])
        da = self.da_out.alloc()[:count]
        self.slope(da, sigmoid, work, a[:count])
        self.a_in.free(a)
        b = self.b_in.deque()
        core.mul(da, da, b[:count])
        self.b_in.free(b)
        core.mul(da, da, g[:count])
        self.g_in.free(g)
        return da, db

    def widened(self, count: int) -> tuple[Local, Local]:
        """The same for 16 bits: b is widened over a, and da is computed where db was."""
        core, (work, sigmoid, a, g, out) = self.core, (tile[:count] for tile in self.work)
        loaded = self.a_in.deque()
        core.cast(a, loaded[:count])
        self.a_in.free(loaded)
        self.sigmoid(sigmoid, work, a)
        core.mul(out, sigmoid, a)
        loaded = self.g_in.deque()
        core.cast(g, loaded[:count])
        self.g_in.free(loaded)
        core.mul(out, out, g)
        db = self.db_out.alloc()[:count]
        core.cast(db, out)
        self.slope(out, sigmoid, work, a)
        loaded = self.b_in.deque()
        core.cast(a, loaded[:count])
        core.mul(out, out, g)
        core.mul(out, out, a)
        self.b_in.free(loaded)
        da = self.da_out.alloc()[:count]
        core.cast(da, out)
        return da, db


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Tiles of both halves are assigned to cores round-robin; rows start at blocks."""
    kernel, dtype = Halves(spec, p, plan), p.output.element
    x, output = (GmView.of(name, dtype, p.rows, 2 * p.columns) for name in ("x", "output"))
    grad = GmView.of("grad_output", dtype, p.rows, p.columns)
    first, second = slice(0, p.columns), slice(p.columns, 2 * p.columns)
    views = (x[:, first], x[:, second], grad, output[:, first], output[:, second])
    cut = tuple(tiles(view, plan.row_step, plan.column_step) for view in views)
    return kernel.core.launch(Step(kernel.tile, cut, np.arange(plan.tiles(p)) % plan.block_dim))


# ---- oracle ----


def oracle(given: ops.Given) -> Array:
    """Both gradients, adjacent along dim, in the type of x."""
    a, b = (half.astype(np.float32) for half in np.split(given.x, 2, axis=given.dim))
    g, one = given.grad_output.astype(np.float32), np.float32(1)
    with np.errstate(all="ignore"):
        sigmoid = one / exp_plus_1_of(a)
        slope = sigmoid * (one - sigmoid) * a + sigmoid
        da = slope * b * g if given.x.dtype == np.float32 else slope * g * b
        found = np.concatenate([da, sigmoid * a * g], axis=given.dim)
        return given.rounded(found, given.x.dtype)


def _outputs(given: ops.TorchArguments, _: object) -> tuple[Result, ...]:
    return ((given["x"].shape, given["x"].dtype),)


OPERATOR = ops.Operator(
    kernel_type="SwiGluGrad",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    torch=(
        ops.TorchFunction(
            schema="npu_swiglu_backward(Tensor grad_output, Tensor self, int dim=-1) -> Tensor",
            aclnn=lambda _: "aclnnSwiGluGrad",
            outputs=_outputs,
            names={"self": "x"},
        ),
    ),
)
