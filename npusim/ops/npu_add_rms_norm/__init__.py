"""npu_add_rms_norm: two tensors added, and the RMS norm of the sum.

.. code-block:: text

    x = T(f32(x1) + f32(x2))                            T: the type of x1
    v = f32(x)                                          bf16 in normal: f32(x1) + f32(x2)
    r = 1 / sqrt(sum(v * v * fp32(1 / n)) + epsilon)    over the dimensions of gamma
    y = T(T(v * r) * gamma)
    rstd = r                                            fp32, 1 for each dimension of gamma

Each operation rounds to nearest, ties to even; v * r is rounded to T before it is multiplied by
gamma, unlike in npu_rms_norm. Each square is multiplied by 1 / n before it is added: 64 running
sums, then a tree of them, in split_d piece by piece. For bf16 the bits depend on the number of
rows, since that decides the vendor's kernel, called template: single_n, merge_n and multi_n use the
rounded sum, normal the exact one, and split_d sums squares of the exact one and scales the rounded
one.

========  ===============================================================================
template  what it does
========  ===============================================================================
single_n  one row per core, with explicit flags: loads and stores overlap as far as possible
merge_n   several short rows per instruction
multi_n   fp16: several rows per step, summed one after another
normal    one row at a time
split_d   a row in pieces; the sums are stored, and loaded again to be scaled
========  ===============================================================================

The first of these that can runs; 310P has neither single_n nor merge_n. On A2 and A3 `template` may
select another one, which overrides the choice, but not the room that a kernel needs.

* A row with an infinity gives NaN there, zeros elsewhere, and rstd 0; a NaN makes its row NaN. The
  fp16 sum of large elements is infinite on A2 and A3 and 65504 on 310P.
* 310P does not write rstd: it is undefined there, and 0 here.
* An x1 or gamma without elements gives empty outputs, and no kernel runs.

Sources: ops-nn@e5c3fa9 norm/add_rms_norm, op_kernel and op_host. Accepted calls follow the
operator's document (torch_npu-npu_add_rms_norm.md).
"""

from __future__ import annotations

from math import prod

import numpy as np

from npusim.data.dtypes import Array
from npusim.data.integers import align_up, ceil_div
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.kernel import BFLOAT16, FLOAT16, FLOAT32, Block, GmView
from npusim.kernel.rows import whole_blocks
from npusim.ops import _rms_norm as norm
from npusim.ops import _vocabulary as ops
from npusim.ops._torch import Result
from npusim.ops.npu_add_rms_norm.templates import TEMPLATES

# ---- what is accepted ----

SUPPORT = (
    *ops.alike((FLOAT16, BFLOAT16, FLOAT32), "x1", "x2", "gamma", on=ops.A2_A3, shapes=norm.PAIR),
    *ops.alike((FLOAT16, FLOAT32), "x1", "x2", "gamma", on=ops.ATLAS_INFERENCE, shapes=norm.PAIR),
)


def check(contract: ops.Contract) -> norm.Problem:
    """Check how the arguments of a call must match; raises OpError."""
    x1, x2, gamma = (contract.operand(name) for name in ("x1", "x2", "gamma"))
    norm.check_gamma(contract, x1, gamma)
    rstd = TensorSpec(norm.root_shape(x1, gamma), "float32")
    return norm.Problem(
        inputs=(x1, x2, gamma),
        outputs={"output": x1.spec, "rstd": rstd, "x": x1.spec},
        x=x1,
        gamma=gamma,
        epsilon=norm.epsilon_of(contract),
        asked=norm.template_of(contract, _templates(contract.spec, x1, gamma)),
    )


# ---- tiling: norm/add_rms_norm/op_host/add_rms_norm_tiling.cpp ----

ROUNDED = ("single_n", "merge_n", "multi_n")
"""Templates that scale the sum of two bf16 as stored, rounded; the others use it in fp32."""
PIECE, PIECE_FLOAT32 = 12096, 9696
"""Columns of the longest piece of a row."""
MERGED_COLUMNS = 2000
"""A stride has eight bits: rows of fp32 in the buffer begin at most 255 blocks apart."""
MERGED_BYTES, MERGED_BYTES_FLOAT32, MERGED_ROW_BYTES = 18, 24, 260
"""Bytes of merge_n per column of a row, and per row."""
MULTI_UNIT, MULTI_BYTES, MULTI_ROW_BYTES, MULTI_RESERVED_BYTES = 16, 16, 64, 256
"""Rows of multi_n are a multiple of 16; the others are its bytes of the buffer."""
GROUP_ROWS = 64
"""Rows whose 1 / root is stored together, in normal and split_d."""


def _templates(
    spec: DeviceSpec | None, x1: Operand | Array, gamma: Operand | Array
) -> tuple[norm.Template, ...]:
    """The templates that can process rows of *x1*, and how."""
    machine, element = norm.Machine.of(spec), norm.element_of(x1)
    columns = max(1, prod(gamma.shape))
    rows, padded = prod(x1.shape) // columns, whole_blocks(columns, element)
    room, is_wide = machine.ub_bytes - norm.RESERVED_BYTES, element is FLOAT32
    merged_bytes = (MERGED_BYTES_FLOAT32 if is_wide else MERGED_BYTES) * padded + MERGED_ROW_BYTES
    multi_room = room - MULTI_RESERVED_BYTES - FLOAT16.nbytes(columns)
    multi_rows = max(0, multi_room // (MULTI_BYTES * columns + MULTI_ROW_BYTES))
    most, unit = (PIECE_FLOAT32, 8) if is_wide else (PIECE, 16)
    piece = align_up(ceil_div(columns, ceil_div(columns, most)), unit)
    limit = norm.whole_row(element)
    is_whole, is_short = columns <= limit, padded <= MERGED_COLUMNS
    is_few = is_whole and rows <= machine.cores
    is_aligned = is_whole and element is FLOAT16 and columns % MULTI_UNIT == 0 and multi_rows > 0
    has_all = not machine.is_310p
    few = f"no more rows than the {machine.cores} cores"
    short = f"rows of at most {MERGED_COLUMNS} elements"
    aligned = f"rows of fp16, a multiple of {MULTI_UNIT} elements"
    fit, too_long = f"at most {limit} elements fit", f"more than {limit} elements do not fit"
    return (
        norm.Template("single_n", few, has_all and is_few, GROUP_ROWS, columns, room=limit),
        norm.Template("merge_n", short, has_all and is_short, room // merged_bytes, columns),
        norm.Template("multi_n", aligned, is_aligned, multi_rows, columns),
        norm.Template("normal", f"rows of {fit}", is_whole, GROUP_ROWS, columns, room=limit),
        norm.Template("split_d", f"rows of {too_long}", True, GROUP_ROWS, piece),
    )


def tile(spec: DeviceSpec, p: norm.Problem) -> norm.Plan:
    """A step is what merge_n and multi_n load together.

    For the others it is the rows whose 1 / root is stored together.
    """
    return norm.planned(_templates(spec, p.x, p.gamma), spec, p)


def build(spec: DeviceSpec, p: norm.Problem, plan: norm.Plan) -> tuple[Block, ...]:
    """One block per core; cores with equally many rows share their program."""
    x1, x2, output, x = (p.matrix(name) for name in ("x1", "x2", "output", "x"))
    views = x1, x2, output, GmView.vector("rstd", FLOAT32, p.rows), x
    return norm.launch_rows("npu_add_rms_norm", TEMPLATES, spec, p, plan, *views)


# ---- oracle ----


def oracle(given: ops.Given) -> tuple[Array, Array, Array]:
    """`x * r * gamma`, r in fp32 with 1 for each dimension of gamma, and `x = x1 + x2`."""
    x1, gamma, columns = given.x1, given.gamma, given.gamma.size
    shape = norm.root_shape(x1, gamma)
    if not x1.size:
        return x1.copy(), np.zeros(shape, np.float32), x1.copy()
    first, second = (x.reshape(-1, columns).astype(np.float32) for x in (x1, given.x2))
    taken = norm.chosen(_templates(given.spec, x1, gamma), given.template)
    with np.errstate(all="ignore"):
        exact = first + second
        total = given.rounded(exact, x1.dtype)
        stored = total.astype(np.float32)
        summed = stored if x1.dtype == np.float16 or taken.name in ROUNDED else exact
        add = norm.lanes_sum
        root = norm.root_of_rows(summed, given.epsilon, taken, add, scales_squares=True)
        values = stored if taken.name == "split_d" else summed
        scaled = given.rounded(values * root[:, None], x1.dtype).astype(np.float32)
        # A product of two fp16 is exact in fp32, so it is rounded once here, too.
        output = given.rounded(scaled * gamma.astype(np.float32).reshape(-1), x1.dtype)
    root = np.zeros_like(root) if norm.Machine.of(given.spec).is_310p else root
    return output.reshape(x1.shape), root.reshape(shape), total.reshape(x1.shape)


# ---- torch ----


def _outputs(given: ops.TorchArguments, _: object) -> tuple[Result, ...]:
    x = given["x1"]
    return (x.shape, x.dtype), (norm.root_shape(x, given["gamma"]), "float32"), (x.shape, x.dtype)


OPERATOR = ops.Operator(
    kernel_type="AddRmsNorm",
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
            schema="npu_add_rms_norm(Tensor x1, Tensor x2, Tensor gamma, float epsilon=1e-06) -> "
            "(Tensor, Tensor, Tensor)",
            aclnn=lambda _: "aclnnAddRmsNorm",
            outputs=_outputs,
        ),
    ),
)
