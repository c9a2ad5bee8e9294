"""What npu_moe_gating_top_k_softmax accepts, and how Atlas inference splits it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from npusim.data.dtypes import FLOAT16, FLOAT32, INT32, UINT8, DType
from npusim.data.errors import Code
from npusim.data.integers import align_up
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, FLOATS_PER_REPEAT
from npusim.ops import _vocabulary as ops
from npusim.ops._gates import FLOATS
from npusim.ops._vocabulary import A2_A3, ATLAS_INFERENCE, Operands, Row, present

MOST_CHOSEN = 1024
"""moe_gating_top_k_softmax, op_host."""
MOST_EXPERTS = 4096
"""The longest row that fits the unified buffer whole; longer ones are not simulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call: the *k* best of each row of x `(rows, experts)`."""

    element: DType
    rows: int
    experts: int
    k: int
    has_finished: bool


FINISHED = Operands((UINT8,), shape="*rows")
SUPPORT = tuple(
    Row(on=on, x=Operands(dtypes, ranks=(2, 3), shape="*rows experts"), finished=FINISHED)
    for on, dtypes in ((A2_A3, FLOATS), (ATLAS_INFERENCE, (FLOAT16,)))
)


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    scores = contract.operand("x")
    *leading, experts = scores.shape
    contract.require(
        1 <= experts <= MOST_EXPERTS,
        f"x must have 1 to {MOST_EXPERTS} columns, not {experts}; longer rows are not simulated: "
        f"split them",
        Code.UNSUPPORTED if experts else Code.INVALID_PARAMETER,
    )
    done = contract.optional("finished")
    best, most = contract.integer("k"), min(experts, MOST_CHOSEN)
    contract.require(
        1 <= best <= most, f"k must be from 1 to {most}, not {best}; choose fewer of the experts"
    )
    shape, is_coupled = (*leading, best), contract.spec.series in ATLAS_INFERENCE
    problem = Problem(
        # The kernel of Atlas inference does not read which rows are finished.
        inputs=present(scores, None if is_coupled else done),
        outputs={
            "output": TensorSpec(shape, scores.spec.dtype),
            "expert_idx": TensorSpec(shape, "int32"),
            "row_idx": TensorSpec(shape, "int32"),
        },
        element=scores.element,
        rows=prod(leading),
        experts=experts,
        k=best,
        has_finished=done is not None and not is_coupled,
    )
    if is_coupled and problem.rows:
        _check_310p(contract, problem)
    return problem


def _check_310p(contract: ops.Contract, p: Problem) -> None:
    """Check the limits of the Atlas inference kernel."""
    series = contract.spec.series
    contract.require(
        p.experts % COLUMN_UNIT == 0,
        f"x must have a multiple of {COLUMN_UNIT} columns on {series}, not {p.experts}; pad it "
        f"with experts of -65504",
    )
    need_bytes, most_bytes = needed_bytes(contract.spec, p), BUFFER_BYTES - LEFT_ALONE_BYTES
    contract.require(
        need_bytes <= most_bytes,
        f"x must be so small that a group of rows fits, with room to work, into the {most_bytes} "
        f"bytes that the kernel has on {series}, not need {need_bytes}; pass fewer rows a call, or "
        f"fewer columns",
    )


# ---- Atlas inference: ops-transformer@3a280bc moe/moe_gating_top_k_softmax/op_host,
# moe_gating_top_k_softmax_tiling_310p.cpp, and the tiling of SoftMax (asc-devkit@82b89a1) ----

BUFFER_BYTES, LEFT_ALONE_BYTES = 245760, 1024
"""What the kernel uses of the unified buffer, and how much of it stays unused."""
COLUMN_UNIT = 16
"""Rows are multiples of this, which is a block; k is padded to a whole block."""
ROW_UNIT = 16
"""Rows of a group are a multiple of this for each core."""
WORK = 64
"""float32 elements for each row in which SoftMax reduces (softmax_tiling.cpp)."""
LARGEST_SPLIT = 64 * 256
"""SoftMax processes fewer elements than this together if rows are whole repeats."""
ROWS_OF_A_BLOCK = 8
PROPOSAL_ROOM = 16
"""Elements of a row in proposals, twice, for each of its columns (topk_tiling_impl.cpp)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoupledPlan(ops.Plan):
    """Groups of rows, one after the other."""

    rows_of_group: int
    chosen: int
    """k, padded to whole blocks."""


def coupled(spec: DeviceSpec, p: Problem) -> CoupledPlan:
    """Compute the rows of a group by the vendor's formula, rounded up for all AI cores."""
    chosen = align_up(p.k, COLUMN_UNIT)
    cores = spec.cores[spec.vector_kinds[0]].count
    fitting = BUFFER_BYTES // (BLOCK_BYTES * (p.experts + 3 * chosen))
    rows = align_up(min(p.rows, fitting), ROW_UNIT * cores)
    kept_bytes = p.rows * chosen * (FLOAT16.nbytes(1) + INT32.nbytes(2))
    return CoupledPlan(
        block_dim=1,
        rows_of_group=rows,
        chosen=chosen,
        workspaces={"kept": LEFT_ALONE_BYTES + kept_bytes},
    )


def needed_bytes(spec: DeviceSpec, p: Problem) -> int:
    """Bytes of the buffer for the largest group; SoftMax and TopK share the same space."""
    plan = coupled(spec, p)
    group, rows = plan.rows_of_group, min(p.rows, plan.rows_of_group)
    own_bytes = group * (FLOAT16.nbytes(2 * p.experts + plan.chosen) + INT32.nbytes(plan.chosen))
    totals_bytes = FLOAT16.nbytes(2 * group * COLUMN_UNIT)
    softmax_bytes = totals_bytes + rows * FLOAT32.nbytes(COLUMN_UNIT + WORK + p.experts)
    top_bytes = INT32.nbytes(2 * p.experts) + FLOAT16.nbytes(PROPOSAL_ROOM * p.experts)
    places_bytes = INT32.nbytes(2 * group * plan.chosen)
    return own_bytes + max(softmax_bytes, top_bytes, places_bytes)


def split_of(rows: int, columns: int) -> int:
    """Rows that SoftMax processes together."""
    split = rows
    if rows > ROWS_OF_A_BLOCK and rows % ROWS_OF_A_BLOCK == 0 == columns % FLOATS_PER_REPEAT:
        while split * columns >= LARGEST_SPLIT:
            split //= 2
    return split
