"""npu_rms_norm_backward: the gradients of npu_rms_norm, for x and for gamma.

.. code-block:: text

    n = f32(x) * rstd                       g = f32(dy) * f32(gamma)
    dx = T((g - n * mean(g * n)) * rstd)    the mean over the dimensions of gamma; T: the type of x
    dgamma = sum(f32(dy) * n)               over all rows, in fp32

All is fp32, rounded after each operation; T rounds to nearest, ties to even. The mean is a sum
times fp32(1 / n). The order of the sum and of its products is that of the vendor's kernel, named by
template: 64 running sums in merge_n; the upper half added to the lower one in the others, piece by
piece in split_d, which uses `(dy * n) * gamma` in the mean.

==========  ================================================================================
template    what it does
==========  ================================================================================
merge_n     several rows in an instruction, each of at most 640 elements
normal      a row at a time
split_d     rows of more than 6080 elements in pieces of 4096, loaded twice
==========  ================================================================================

Each core adds its rows up, one after the other, from zero, and then adds the result to dgamma in
global memory; split_d does so for 32 rows at a time. Before that, core 0 clears dgamma and all wait
for it. The order in which cores add is not fixed: here the last one, for which the others wait, is
first, followed by the others by index. The deterministic mode, which sums in the workspace, is not
simulated.

Sources: ops-nn@e5c3fa9 norm/rms_norm_grad, op_kernel (split_n and split_d, high precision) and
op_host; op-plugin@517f2e7 RmsNormBackwardKernelOpApi.cpp for dgamma in fp32.
"""

from __future__ import annotations

from math import prod

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, Array
from npusim.data.errors import Code
from npusim.data.integers import ceil_div
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.kernel import Block, GmView, Step
from npusim.kernel.rectangles import RowPieces
from npusim.kernel.rows import whole_blocks
from npusim.ops import _rms_norm as norm
from npusim.ops import _vocabulary as ops
from npusim.ops._rms_norm.core import NormCore
from npusim.ops._torch import Result
from npusim.ops.npu_rms_norm_backward.templates import TEMPLATES

# ---- what is accepted ----

SUPPORT = (
    *(
        ops.Row(on=ops.A2_A3, dy=dtype, x=dtype, gamma=dtype, rstd=FLOAT32)
        for dtype in (FLOAT16, BFLOAT16, FLOAT32)
    ),
    *(
        ops.Row(on=ops.A2_A3, dy=dtype, x=dtype, gamma=FLOAT32, rstd=FLOAT32)
        for dtype in (FLOAT16, BFLOAT16)
    ),
)


def check(contract: ops.Contract) -> norm.Problem:
    """Check how the arguments of a call must match; raises OpError."""
    dy, x, gamma, rstd = map(contract.operand, ("dy", "x", "gamma", "rstd"))
    norm.check_gamma(contract, x, gamma)
    contract.require(
        dy.shape == x.shape,
        f"dy must have the shape of x, {x.shape}, not {dy.shape}; pass the gradient of "
        f"npu_rms_norm's output",
        Code.TILING_ERROR,
    )
    contract.require(
        x.spec.size > 0,
        f"x must have elements, not shape {x.shape}; leave the call out",
        Code.TILING_ERROR,
    )
    rows = x.spec.size // prod(gamma.shape)
    contract.require(
        rstd.spec.size == rows,
        f"rstd must have a number for each of {rows} rows of x, not shape {rstd.shape}; pass what "
        f"npu_rms_norm gave",
        Code.TILING_ERROR,
    )
    return norm.Problem(
        inputs=(dy, x, gamma, rstd),
        outputs={"output": x.spec, "dgamma": TensorSpec(gamma.shape, "float32")},
        x=x,
        gamma=gamma,
        epsilon=0.0,
        asked=None,
    )


# ---- tiling: norm/rms_norm_grad/op_host/rms_norm_grad_tiling.cpp ----

WHOLE_COLUMNS, MERGED_COLUMNS = 6080, 640
"""Elements of the longest row that is processed whole, and of rows processed together."""
PIECE_COLUMNS, GROUP_ROWS = 4096, 32
"""Columns of a piece of a longer row, and rows that pass through all pieces together."""
USED_BYTES = 191 * 1024
COLUMN_BYTES, ROW_BYTES, ELEMENT_BYTES = 10, 268, 24
"""Bytes that merge_n needs for each column, for each row and for each element."""


def _templates(x: Operand | Array, gamma: Operand | Array) -> tuple[norm.Template, ...]:
    """The templates that accept rows of *x*, and their steps."""
    columns = prod(gamma.shape)
    padded = whole_blocks(columns, norm.element_of(x))
    merged_rows = (USED_BYTES - COLUMN_BYTES * padded) // (ELEMENT_BYTES * padded + ROW_BYTES)
    merged, whole = f"rows of at most {MERGED_COLUMNS} elements", WHOLE_COLUMNS
    return (
        norm.Template("merge_n", merged, padded <= MERGED_COLUMNS, merged_rows, columns),
        norm.Template("normal", f"rows of at most {whole} elements", columns <= whole, 1, columns),
        norm.Template("split_d", f"rows of more than {whole}", True, GROUP_ROWS, PIECE_COLUMNS),
    )


def tile(spec: DeviceSpec, p: norm.Problem) -> norm.Plan:
    """A step is the rows that merge_n loads or split_d passes through its pieces together."""
    return norm.planned(_templates(p.x, p.gamma), spec, p)


# ---- kernel ----

FIRST, LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
"""The orders of a core's work before its rows, and after them."""


def build(spec: DeviceSpec, p: norm.Problem, plan: norm.Plan) -> tuple[Block, ...]:
    """Build one block per core: dgamma is cleared, all cores meet, then each processes its rows."""
    core = NormCore("npu_rms_norm_backward", spec, p.mean, p.epsilon)
    kernel = TEMPLATES[str(plan.template)](core, p, plan)
    parts = RowPieces.of(plan.rows_of_core, plan.row_step)
    rstd = GmView.vector("rstd", FLOAT32, p.rows)
    matrices = (p.matrix("dy"), p.matrix("x"), rstd, p.matrix("output"))
    cores = np.arange(plan.block_dim)
    first, last = (np.full(cores.size, order) for order in (FIRST, LAST))
    steps = [
        Step(kernel.clear, (), cores[:1], first[:1]),
        Step(kernel.meet, (), cores, first),
        Step(
            kernel.group, tuple(map(parts.views, matrices)), parts.core, np.arange(parts.core.size)
        ),
    ]
    if plan.template != "split_d":
        steps.insert(2, Step(kernel.start, (), cores, first))
        steps.append(Step(kernel.finish, (), cores, last))
    return core.launch(*steps)


# ---- oracle ----


def oracle(given: ops.Given) -> tuple[Array, Array]:
    """dx in the type of x, and dgamma in fp32."""
    x, gamma, columns = given.x, given.gamma, given.gamma.size
    taken = norm.chosen(_templates(x, gamma), None)
    values, dy = (each.reshape(-1, columns).astype(np.float32) for each in (x, given.dy))
    root, wide = given.rstd.reshape(-1, 1), gamma.reshape(-1).astype(np.float32)
    mean = np.float32(1) / np.float32(columns)
    with np.errstate(all="ignore"):
        normed = values * root
        products, scaled = dy * normed, dy * wide
        is_split = taken.name == "split_d"
        summed = products * wide if is_split else scaled * normed
        add = norm.lanes_sum if taken.name == "merge_n" else norm.halving_sum
        total = np.zeros(len(x.reshape(-1, columns)), np.float32)
        for start in range(0, columns, taken.column_step):
            total = total + add(summed[:, start : start + taken.column_step])
        found = (scaled - normed * (total * mean)[:, None]) * root
        dgamma = np.zeros(columns, np.float32)
        for run in _runs(given.spec, len(products), taken):
            part = np.zeros(columns, np.float32)
            for row in run:
                part = part + products[row]
            dgamma = dgamma + part
        return given.rounded(found, x.dtype).reshape(x.shape), dgamma.reshape(gamma.shape)


def _runs(spec: DeviceSpec | None, rows: int, taken: norm.Template) -> list[range]:
    """The rows that are summed before they are added to dgamma, in order."""
    each = ceil_div(rows, norm.Machine.of(spec).cores)
    step = taken.row_step if taken.name == "split_d" else each
    *starts, last = range(0, rows, each)
    return [
        range(inner, min(inner + step, start + each, rows))
        for start in (last, *starts)
        for inner in range(start, min(start + each, rows), step)
    ]


# ---- torch ----


def _outputs(given: ops.TorchArguments, _: object) -> tuple[Result, ...]:
    return (given["x"].shape, given["x"].dtype), (given["gamma"].shape, "float32")


OPERATOR = ops.Operator(
    kernel_type="RmsNormGrad",
    document=__doc__,
    support=SUPPORT,
    unsimulated=ops.ATLAS_INFERENCE,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    torch=(
        ops.TorchFunction(
            schema="npu_rms_norm_backward(Tensor dy, Tensor self, Tensor gamma, Tensor rstd) -> "
            "(Tensor, Tensor)",
            aclnn=lambda _: "aclnnRmsNormGrad",
            outputs=_outputs,
            names={"self": "x"},
        ),
    ),
)
