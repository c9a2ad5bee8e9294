"""npu_rms_norm: rows divided by their root mean square, and multiplied by a weight a column.

.. code-block:: text

    r = 1 / sqrt(mean(f32(x) * f32(x)) + epsilon)       the mean over the dimensions of gamma
    y = T((f32(x) * r) * f32(gamma))                    T: the type of x
    rstd = r                                            fp32, 1 for each dimension of gamma

All is fp32, one rounding an operation; T rounds to nearest, ties to even. The mean is a sum times
fp32(1 / n), and the order of the sum is that of the vendor's kernel, called template, that takes
the call: 64 running sums in merge_n, the upper half onto the lower one in the others, piece by
piece in split_d; all end in a tree of 64 numbers.

==========  ================================================================================
template    what it does
==========  ================================================================================
merge_n     several short rows an instruction; the vector unit finds 1 / root
normal      a row at a time; the scalar unit finds 1 / root
single_row  as normal, in less room: for gamma in fp32 and an x of 16 bits
split_d     a row in pieces, loaded twice; the vector unit finds 1 / root
==========  ================================================================================

The first that can, in this order. On A2 and A3 `template` may name another one, which overrules the
choice, but not what a kernel has room for. Assumed: that both units round square root and quotient
correctly, and that the scalar unit rounds a product before it adds epsilon.

* A row with an infinity gives NaN there, zeros elsewhere, and rstd 0; a NaN makes its row NaN.
* A row of zeros gives zeros and 1 / sqrt(epsilon), or NaN and infinity where epsilon is 0.

Sources: ops-nn@e5c3fa9 norm/rms_norm, op_kernel and op_host. What is accepted is what the
operator's document says (torch_npu-npu_rms_norm.md) and what the tiling refuses:

* fp16, bf16 and fp32 on A2 and A3, there also gamma in fp32 with an x of 16 bits; fp16 and fp32 on
  310P, in rows of 32 bytes at least, without infinities and NaN.
* An x or gamma without elements is refused: the document has it supported, the tiling does not.
"""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.data.errors import Code
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.kernel import (
    BFLOAT16,
    BLOCK_BYTES,
    FLOAT16,
    FLOAT32,
    FLOATS_PER_BLOCK,
    Block,
    DType,
    GmView,
)
from npusim.ops import _rms_norm as norm
from npusim.ops import _vocabulary as ops
from npusim.ops.npu_rms_norm.templates import TEMPLATES

__all__ = ["OPERATOR", "build", "check", "oracle", "tile"]

# ---- what is accepted ----

SUPPORT = (
    *ops.alike((FLOAT16, BFLOAT16, FLOAT32), "x", "gamma", on=ops.A2_A3),
    ops.Row(on=ops.A2_A3, x=(FLOAT16, BFLOAT16), gamma=FLOAT32),
    *ops.alike((FLOAT16, FLOAT32), "x", "gamma", on=ops.ATLAS_INFERENCE),
)


def check(contract: ops.Contract) -> norm.Problem:
    """Hold a call against what ties its arguments together; raises OpError."""
    x, gamma, machine = (
        contract.operand("x"),
        contract.operand("gamma"),
        norm.Machine.of(contract.spec),
    )
    norm.check_gamma(contract, x, gamma)
    for operand in (x, gamma):
        contract.require(
            operand.spec.size > 0,
            f"{operand.name} must have elements, not shape {operand.shape}; leave the call out",
            Code.TILING_ERROR,
        )
    least = BLOCK_BYTES * 8 // x.element.bits
    contract.require(
        not machine.is_310p or x.shape[-1] >= least,
        f"the last dimension of x and gamma must have at least {least} elements of "
        f"{x.spec.dtype} on {contract.spec.series}, not {x.shape[-1]}; pad it",
        Code.TILING_ERROR,
    )
    rows, columns = x.spec.size // gamma.spec.size, gamma.spec.size
    templates = _templates(rows, columns, x.element, gamma.element, machine)
    return norm.Problem(
        inputs=(x, gamma),
        outputs={"output": x.spec, "rstd": TensorSpec(norm.root_shape(x, gamma), "float32")},
        x=x,
        gamma=gamma,
        epsilon=norm.epsilon_of(contract),
        asked=norm.template_of(contract, templates),
    )


# ---- tiling: norm/rms_norm/op_host/rms_norm_tiling.cpp ----

MERGED_COLUMNS = 2000
"""A stride has eight bits: rows of fp32 in the buffer begin at most 255 blocks apart."""
WHOLE_ROW, WHOLE_ROW_FLOAT32 = 12288, 10240
"""Columns of the longest row that normal takes, and of the longest piece of split_d."""
MIXED_PIECE = 12048
"""Columns of a piece where gamma is wider than x."""
MIXED_BYTES = {"normal": 16, "single_row": 14}
"""What these take of the buffer for each column where gamma is wider, and 512 bytes more."""
MIXED_KEPT_BYTES = 512
MERGED_ROW_BYTES, MERGED_ROW_BYTES_MIXED, MERGED_BYTES = 260, 288, 16
"""What merge_n takes for each row, and for each of its columns."""
COLUMNS_310P, ROWS_310P = 128, 16
"""310P merges rows of so many columns, if there is a multiple of so many rows."""
SPREAD_BYTES_310P = 8192
"""Of the buffer there, set aside to spread a number of each row over a block."""
GROUP_ROWS = 64
"""1 / root of so many rows is stored together, but by merge_n."""


def _templates(
    rows: int, columns: int, element: DType, weight: DType, machine: norm.Machine
) -> tuple[norm.Template, ...]:
    """Which templates take rows of *element* with a gamma of type *weight*."""
    padded, is_mixed = norm.whole_blocks(columns, element), weight is not element
    whole = single = WHOLE_ROW_FLOAT32 if element is FLOAT32 else WHOLE_ROW
    if is_mixed:
        # They must leave at least a byte.
        room = machine.ub_bytes - norm.KEPT_BYTES - MIXED_KEPT_BYTES - 1
        whole, single = (align_down(room // each, 16) for each in MIXED_BYTES.values())
    at_most = "rows of at most {} elements".format
    merged = at_most(MERGED_COLUMNS), padded <= MERGED_COLUMNS
    if machine.is_310p:
        is_merged = element is FLOAT16 and columns == COLUMNS_310P and rows % ROWS_310P == 0
        merged = f"a multiple of {ROWS_310P} rows of {COLUMNS_310P} fp16", is_merged
    in_less_room = f"{at_most(single)} fit" if is_mixed else "gamma in float32, x of 16 bits"
    return (
        norm.Template("merge_n", *merged),
        norm.Template("normal", f"{at_most(whole)} fit", padded <= whole),
        norm.Template("single_row", in_less_room, is_mixed and padded <= single),
        norm.Template("split_d", f"rows of more than {single} elements do not fit", fits=True),
    )


def _piece_columns(columns: int, element: DType, weight: DType) -> int:
    """Columns that split_d takes at a time; the last piece of a row is what is left."""
    if weight is not element:
        return min(columns, MIXED_PIECE)
    most = WHOLE_ROW_FLOAT32 if element is FLOAT32 else WHOLE_ROW
    piece = align_up(ceil_div(columns, ceil_div(columns, most)), 16)
    # What is left must be a block at least.
    while 0 < columns % piece < 16:
        piece -= 16
    return piece


def tile(spec: DeviceSpec, p: norm.Problem) -> norm.Plan:
    """A step is what merge_n loads together, of the others whose 1 / root is stored together."""
    machine, element, weight = norm.Machine.of(spec), p.x.element, p.gamma.element
    templates = _templates(p.rows, p.columns, element, weight, machine)
    taken = norm.chosen(templates, machine, p.asked)
    row_step, column_step, unit = GROUP_ROWS, p.columns, 1
    if taken.name == "merge_n":
        row_bytes = MERGED_BYTES * norm.whole_blocks(p.columns, element)
        row_bytes += MERGED_ROW_BYTES if weight is element else MERGED_ROW_BYTES_MIXED
        room = machine.ub_bytes - norm.KEPT_BYTES - machine.is_310p * SPREAD_BYTES_310P
        unit = FLOATS_PER_BLOCK if machine.is_310p else 1
        row_step = align_down(room // row_bytes, unit)
    elif taken.name == "split_d":
        column_step = _piece_columns(p.columns, element, weight)
    return norm.planned(taken, p.rows, machine, row_step, column_step, unit)


def build(spec: DeviceSpec, p: norm.Problem, plan: norm.Plan) -> tuple[Block, ...]:
    """One block a core; cores with as many rows share their program."""
    views = p.matrix("x"), p.matrix("output"), GmView.vector("rstd", FLOAT32, p.rows)
    return norm.launch_rows("npu_rms_norm", TEMPLATES, spec, p, plan, *views)


# ---- oracle ----


def oracle(given: ops.Given) -> tuple[Array, Array]:
    """`x * r * gamma` in the type of x, and r in fp32, with 1 for each dimension of gamma."""
    x, gamma, columns = given.x, given.gamma, given.gamma.size
    element, weight, machine = (
        norm.element_of(x),
        norm.element_of(gamma),
        norm.Machine.of(given.spec),
    )
    values = x.reshape(-1, columns).astype(np.float32)
    templates = _templates(len(values), columns, element, weight, machine)
    taken = norm.chosen(templates, machine, given.template).name
    add = norm.lanes_sum if taken == "merge_n" else norm.halving_sum
    part = _piece_columns(columns, element, weight) if taken == "split_d" else columns
    with np.errstate(all="ignore"):
        total = norm.sum_of_parts(add, values * values, part)
        root = norm.scaled_root(total * (np.float32(1) / np.float32(columns)), given.epsilon)
        scaled = values * root[:, None] * gamma.astype(np.float32).reshape(-1)
        output = given.rounded(scaled, x.dtype).reshape(x.shape)
    return output, root.reshape(norm.root_shape(x, gamma))


# ---- torch ----


def _outputs(given: ops.TorchArguments, _: object) -> tuple[tuple[tuple[object, ...], str], ...]:
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
    templates=tuple(TEMPLATES),
    torch=(
        ops.TorchFunction(
            schema="npu_rms_norm(Tensor self, Tensor gamma, float epsilon=1e-06) -> "
            "(Tensor, Tensor)",
            aclnn=lambda _: "aclnnRmsNorm",
            outputs=_outputs,
            names={"self": "x"},
        ),
    ),
)
