"""npu_rms_norm: RMS norm: rows over their root mean square, times a weight.

.. code-block:: text

    r = 1 / sqrt(mean(f32(x) * f32(x)) + epsilon)       the mean over the dimensions of gamma
    y = T((f32(x) * r) * f32(gamma))                    T: the type of x
    rstd = r                                            fp32, 1 for each dimension of gamma

All is fp32, each operation rounded once; T rounds to nearest, ties to even. The mean is a sum times
fp32(1 / n), and the order of the sum is that of the vendor's kernel, called template, that runs the
call: 64 running sums in merge_n, the upper half onto the lower one in the others, piece by piece in
split_d; all end in a tree of 64 sums.

==========  ================================================================================
template    what it does
==========  ================================================================================
merge_n     several short rows per instruction; the vector unit computes 1 / root
normal      one row at a time; the scalar unit computes 1 / root
single_row  like normal, in less room: for gamma in fp32 and an x of 16 bits
split_d     a row in pieces, loaded twice; the vector unit computes 1 / root
==========  ================================================================================

The first of these that can runs. On A2 and A3 `template` may select another one, which overrides
the choice, but not the room that a kernel needs. Assumed: both units round square root and quotient
correctly, and the scalar unit rounds a product before it adds epsilon.

* A row with an infinity gives NaN there, zeros elsewhere, and rstd 0; a NaN makes its row NaN.
* A row of zeros gives zeros and 1 / sqrt(epsilon), or NaN and infinity if epsilon is 0.

Sources: ops-nn@e5c3fa9 norm/rms_norm, op_kernel and op_host. Accepted calls follow the operator's
document (torch_npu-npu_rms_norm.md) and the tiling's refusals:

* fp16, bf16 and fp32 on A2 and A3, where gamma may be fp32 with an x of 16 bits; fp16 and fp32 on
  310P, in rows of at least 32 bytes, without infinities and NaN.
* An x or gamma without elements is refused: the document says it is supported, but the tiling does
  not.
"""

from __future__ import annotations

from math import prod

import numpy as np

from npusim.data.dtypes import Array
from npusim.data.errors import Code
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.kernel import (
    BFLOAT16,
    BLOCK_BYTES,
    FLOAT16,
    FLOAT32,
    FLOATS_PER_BLOCK,
    Block,
    GmView,
)
from npusim.kernel.rows import whole_blocks
from npusim.ops import _rms_norm as norm
from npusim.ops import _vocabulary as ops
from npusim.ops._torch import Result
from npusim.ops.npu_rms_norm.templates import TEMPLATES

# ---- what is accepted ----

SUPPORT = (
    *ops.alike((FLOAT16, BFLOAT16, FLOAT32), "x", "gamma", on=ops.A2_A3),
    ops.Row(on=ops.A2_A3, x=(FLOAT16, BFLOAT16), gamma=FLOAT32),
    *ops.alike((FLOAT16, FLOAT32), "x", "gamma", on=ops.ATLAS_INFERENCE),
)


def check(contract: ops.Contract) -> norm.Problem:
    """Check how the arguments of a call must match; raises OpError."""
    x, gamma, spec = contract.operand("x"), contract.operand("gamma"), contract.spec
    norm.check_gamma(contract, x, gamma)
    for operand in (x, gamma):
        contract.require(
            operand.spec.size > 0,
            f"{operand.name} must have elements, not shape {operand.shape}; leave the call out",
            Code.TILING_ERROR,
        )
    least = BLOCK_BYTES * 8 // x.element.bits
    contract.require(
        spec.series in ops.A2_A3 or x.shape[-1] >= least,
        f"the last dimension of x and gamma must have at least {least} elements of "
        f"{x.spec.dtype} on {spec.series}, not {x.shape[-1]}; pad it",
        Code.TILING_ERROR,
    )
    return norm.Problem(
        inputs=(x, gamma),
        outputs={"output": x.spec, "rstd": TensorSpec(norm.root_shape(x, gamma), "float32")},
        x=x,
        gamma=gamma,
        epsilon=norm.epsilon_of(contract),
        asked=norm.template_of(contract, _templates(spec, x, gamma)),
    )


# ---- tiling: norm/rms_norm/op_host/rms_norm_tiling.cpp ----

MERGED_COLUMNS = 2000
"""A stride has eight bits: rows of fp32 in the buffer begin at most 255 blocks apart."""
MIXED_PIECE = 12048
"""Columns of a piece if gamma is wider than x."""
MIXED_BYTES = {"normal": 16, "single_row": 14}
"""Bytes of the buffer per column if gamma is wider, in addition to 512 bytes."""
MIXED_RESERVED_BYTES = 512
MERGED_ROW_BYTES, MERGED_ROW_BYTES_MIXED, MERGED_BYTES = 260, 288, 16
"""Bytes of merge_n per row, and for each of its columns."""
COLUMNS_310P, ROWS_310P = 128, 16
"""310P merges rows with this many columns, if the number of rows is a multiple of the second."""
SPREAD_BYTES_310P = 8192
"""Bytes of the buffer there, reserved to spread an element of each row over a block."""
GROUP_ROWS = 64
"""Rows whose 1 / root is stored together, except in merge_n."""


def _templates(
    spec: DeviceSpec | None, x: Operand | Array, gamma: Operand | Array
) -> tuple[norm.Template, ...]:
    """The templates that can process rows of *x*, and how."""
    machine, element = norm.Machine.of(spec), norm.element_of(x)
    is_mixed, columns = norm.element_of(gamma) is not element, prod(gamma.shape)
    padded, rows = whole_blocks(columns, element), prod(x.shape) // columns
    whole = single = norm.whole_row(element)
    row_room = padded if is_mixed else whole
    piece = min(columns, MIXED_PIECE) if is_mixed else _piece_columns(columns, whole)
    row_bytes = MERGED_BYTES * padded + (MERGED_ROW_BYTES_MIXED if is_mixed else MERGED_ROW_BYTES)
    room, unit = machine.ub_bytes - norm.RESERVED_BYTES, 1
    is_merged, merged = padded <= MERGED_COLUMNS, f"rows of at most {MERGED_COLUMNS} elements"
    if is_mixed:
        # They must leave at least one byte.
        most_bytes = room - MIXED_RESERVED_BYTES - 1
        whole, single = (align_down(most_bytes // each, 16) for each in MIXED_BYTES.values())
    if machine.is_310p:
        is_merged = element is FLOAT16 and columns == COLUMNS_310P and rows % ROWS_310P == 0
        merged = f"a multiple of {ROWS_310P} rows of {COLUMNS_310P} fp16"
        room, unit = room - SPREAD_BYTES_310P, FLOATS_PER_BLOCK
    merged_rows = align_down(room // row_bytes, unit)
    mixed = (
        f"rows of at most {single} elements fit" if is_mixed else "gamma in float32, x of 16 bits"
    )
    too_long = f"rows of more than {single} elements do not fit"
    fit = f"rows of at most {whole} elements fit"
    return (
        norm.Template("merge_n", merged, is_merged, merged_rows, columns, unit),
        norm.Template("normal", fit, padded <= whole, GROUP_ROWS, columns, room=row_room),
        norm.Template("single_row", mixed, is_mixed and padded <= single, GROUP_ROWS, columns),
        norm.Template("split_d", too_long, True, GROUP_ROWS, piece),
    )


def _piece_columns(columns: int, most: int) -> int:
    """Columns that split_d processes at a time; the last piece of a row is the remainder."""
    piece = align_up(ceil_div(columns, ceil_div(columns, most)), 16)
    # The remainder must be at least a block, unless it is the whole row.
    while 0 < columns % piece < 16 < piece:
        piece -= 16
    return piece


def tile(spec: DeviceSpec, p: norm.Problem) -> norm.Plan:
    """A step is what merge_n loads at once; in others the rows whose 1 / root is one store."""
    return norm.planned(_templates(spec, p.x, p.gamma), spec, p)


def build(spec: DeviceSpec, p: norm.Problem, plan: norm.Plan) -> tuple[Block, ...]:
    """One block per core; cores with equally many rows share their program."""
    views = p.matrix("x"), p.matrix("output"), GmView.vector("rstd", FLOAT32, p.rows)
    return norm.launch_rows("npu_rms_norm", TEMPLATES, spec, p, plan, *views)


# ---- oracle ----


def oracle(given: ops.Given) -> tuple[Array, Array]:
    """`x * r * gamma` in the type of x, and r in fp32, with 1 for each dimension of gamma."""
    x, gamma, columns = given.x, given.gamma, given.gamma.size
    taken = norm.chosen(_templates(given.spec, x, gamma), given.template)
    add = norm.lanes_sum if taken.name == "merge_n" else norm.halving_sum
    values = x.reshape(-1, columns).astype(np.float32)
    with np.errstate(all="ignore"):
        root = norm.root_of_rows(values, given.epsilon, taken, add, scales_squares=False)
        scaled = values * root[:, None] * gamma.astype(np.float32).reshape(-1)
        output = given.rounded(scaled, x.dtype).reshape(x.shape)
    return output, root.reshape(norm.root_shape(x, gamma))


# ---- torch ----


def _outputs(given: ops.TorchArguments, _: object) -> tuple[Result, ...]:
    x = given["x"]
    return (x.shape, x.dtype), (norm.root_shape(x, given["gamma"]), "float32")


OPERATOR = ops.Operator(
    kernel_type="RmsNorm",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    at_once=ops.at_once_by(oracle),
    templates=tuple(TEMPLATES),
    torch=(
        ops.TorchFunction(
            schema="npu_rms_norm(Tensor self, Tensor gamma, float epsilon=1e-06) -> "
            "(Tensor, Tensor)",
            aclnn=lambda _: "aclnnRmsNorm",
            outputs=_outputs,
            names={"self": "x"},
            gradient=ops.Gradient("self, gamma: npu_rms_norm_backward(grad, self, gamma, result1)"),
        ),
    ),
)
