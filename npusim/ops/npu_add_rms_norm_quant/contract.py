"""What npu_add_rms_norm_quant accepts, and which of the vendor's kernels takes a call.

How long rows may be depends on which operands there are. ops-nn@e5c3fa9
norm/add_rms_norm_quant/op_host/add_rms_norm_quant_tiling.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT32, DType
from npusim.data.errors import Code
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.ops._contract import Contract
from npusim.ops._protocol import present
from npusim.ops._rms_norm import contract as shared
from npusim.ops._rms_norm.contract import check_gamma, check_pair, epsilon_of, template_of
from npusim.ops._rms_norm.tiling import KEPT_BYTES, Machine, Plan, Template, chosen, planned
from npusim.ops._support import A2_A3, EVERYWHERE, Row

__all__ = ["SUPPORT", "Optional", "Problem", "check", "piece_columns", "templates_for", "tile"]

COLUMNS_310P = 32
"""310P takes rows of a block of int8 at least."""


class Optional(NamedTuple):
    """The operands that need not be given, or arrays in their place."""

    zero_points1: Any
    beta: Any
    scales2: Any
    zero_points2: Any

    @property
    def is_plain(self) -> bool:
        return self.beta is None and self.scales2 is None

    @property
    def second_bytes(self) -> int:
        """What the second scales and zero points take of the buffer for a column, in fp32."""
        return (self.scales2 is not None) * (4 + 4 * (self.zero_points2 is not None))

    @property
    def row_bytes(self) -> int:
        """What all vectors but gamma take for a column, with a second output of 16 bits."""
        first = 4 + 4 * (self.zero_points1 is not None) + 2 * (self.beta is not None)
        return first + self.second_bytes + 2 * (self.scales2 is not None)

    def are_for_one_scale(self, x1: Any, gamma: Any, scales1: Any, *, divides: bool) -> bool:
        """Whether the kernel for a single scale takes the call.

        ops-nn@e5c3fa9 norm/add_rms_norm_quant_v2/op_host/op_api/aclnn_add_rms_norm_quant_v2.cpp.
        """
        columns, points = x1.shape[-1], self.zero_points1
        is_one = scales1.shape == (1,) and points is not None and points.shape == (1,)
        is_alone = self.beta is not None and self.scales2 is None and self.zero_points2 is None
        return is_one and is_alone and divides and gamma.shape in ((columns,), (1, columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(shared.Problem):
    """A checked call."""

    scales1: Operand
    optional: Optional
    divides: bool
    """Whether elements are divided by the scales, not multiplied."""
    per_tensor: bool
    """Whether the kernel for a single scale takes the call."""

    @property
    def quantisers(self) -> tuple[tuple[Operand, Operand | None], ...]:
        """Scales and zero points that are vectors, for the first output and for the second."""
        if self.per_tensor:
            return ()
        points1, _, scales2, points2 = self.optional
        first = self.scales1, points1
        return (first,) if scales2 is None else (first, (scales2, points2))


def _row(on: tuple[str, ...], element: DType, scale: DType, point: DType) -> Row:
    return Row(
        on=on,
        x1=element,
        x2=element,
        gamma=element,
        beta=element,
        scales1=scale,
        scales2=scale,
        zero_points1=point,
        zero_points2=point,
    )


SUPPORT = (
    _row(EVERYWHERE, FLOAT16, FLOAT32, INT32),
    _row(A2_A3, BFLOAT16, BFLOAT16, BFLOAT16),
    _row(A2_A3, BFLOAT16, FLOAT32, INT32),
)


def check(contract: Contract) -> Problem:
    """Hold a call against what ties its arguments together; raises OpError."""
    x1, x2, gamma = (contract.operand(name) for name in ("x1", "x2", "gamma"))
    beta, scales1 = contract.optional("beta"), contract.operand("scales1")
    scales2 = contract.optional("scales2")
    points1, points2 = contract.optional("zero_points1"), contract.optional("zero_points2")
    axis = contract.integer("axis")
    contract.require(axis == -1, f"axis must be -1, not {axis}; leave it out")
    if contract.value("dst_type") is not None:
        contract.choice("dst_type", ("int8",))
    divides = contract.boolean("div_mode")
    check_pair(contract, x1, x2)
    check_gamma(contract, x1, gamma, code=Code.INVALID_PARAMETER)
    is_310p = contract.spec.series not in A2_A3
    contract.require(
        not is_310p or gamma.spec.size >= COLUMNS_310P,
        f"gamma must have at least {COLUMNS_310P} elements on {contract.spec.series}, not "
        f"{gamma.spec.size}; pad it",
    )
    if x1.element is BFLOAT16 and scales1.element is FLOAT32:
        contract.warn(
            "scales1 should be bfloat16 like x1, not float32, which the kernel takes and the "
            "document does not name; convert it"
        )
    optional = Optional(points1, beta, scales2, points2)
    per_tensor = optional.are_for_one_scale(x1, gamma, scales1, divides=divides)
    vectors = (beta,) if per_tensor else (beta, scales1, scales2, points1, points2)
    for operand in present(*vectors):
        contract.require(
            operand.shape == gamma.shape,
            f"{operand.name} must have the shape of gamma, {gamma.shape}, not {operand.shape}; "
            f"pass a number for each of its elements",
        )
    y = TensorSpec(x1.shape, "int8")
    problem = Problem(
        inputs=present(x1, x2, gamma, scales1, scales2, points1, points2, beta),
        outputs={"output": y, "y2": y, "x": x1.spec},
        x=x1,
        gamma=gamma,
        scales1=scales1,
        optional=optional,
        divides=divides,
        per_tensor=per_tensor,
        epsilon=epsilon_of(contract, least=""),
        asked=None,
    )
    rows = problem.rows if problem.columns else 0
    templates = templates_for(rows, problem.columns, optional, Machine.of(contract.spec))
    return replace(problem, asked=template_of(contract, templates))


# ---- tiling ----

PLAIN_NORMAL, PLAIN_SINGLE, PLAIN_PIECE = 8192, 12224, 7680
"""Columns that fit with neither beta nor second scales."""
NORMAL_BYTES, NORMAL_KEPT_BYTES = 20, 256
PIECE_BYTES, PIECE_KEPT_BYTES = 22, 2560
SINGLE_BYTES = 20
"""What the templates take of the buffer for a column without these operands, and all in all."""
UNIT = 32
"""Limits are multiples of 32 columns."""
GROUP_ROWS = 64
"""split_d takes so many rows, a piece of all of them after the other."""


def templates_for(
    rows: int, columns: int, optional: Optional, machine: Machine
) -> tuple[Template, ...]:
    """Which templates take *rows* of *columns*."""
    normal, single, room = PLAIN_NORMAL, PLAIN_SINGLE, machine.ub_bytes - KEPT_BYTES
    if not optional.is_plain:
        bytes_of_column = NORMAL_BYTES + optional.row_bytes
        normal = align_down((room - NORMAL_KEPT_BYTES) // bytes_of_column, UNIT)
        single = align_down(room // (SINGLE_BYTES + optional.second_bytes), UNIT)
    few = f"at most {machine.cores} rows, one a core, of at most {single} elements"
    is_few = rows <= machine.cores and columns <= single
    return (
        Template("single_n", few, is_few, on_310p=False),
        Template("normal", f"rows of at most {normal} elements", columns <= normal),
        Template("split_d", "rows that are longer than the others take", fits=True),
    )


def piece_columns(columns: int, optional: Optional, machine: Machine) -> int:
    """Columns that split_d takes at a time; the last piece of a row is what is left."""
    if optional.is_plain:
        return align_up(ceil_div(columns, ceil_div(columns, PLAIN_PIECE)), 16)
    room = machine.ub_bytes - KEPT_BYTES - PIECE_KEPT_BYTES
    return min(columns, align_down(room // (PIECE_BYTES + optional.row_bytes), UNIT))


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """A step is the rows of which split_d adds up the squares before it scales them; else a row.

    Assumed: that the kernel for a single scale is tiled as the one for a scale a column.
    """
    machine = Machine.of(spec)
    taken = chosen(templates_for(p.rows, p.columns, p.optional, machine), machine, p.asked)
    if taken.name != "split_d":
        return planned(taken, p.rows, machine, row_step=1, column_step=p.columns)
    column_step = piece_columns(p.columns, p.optional, machine)
    return planned(taken, p.rows, machine, GROUP_ROWS, column_step)
