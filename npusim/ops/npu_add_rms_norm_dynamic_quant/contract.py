"""What npu_add_rms_norm_dynamic_quant accepts, and which of the vendor's kernels takes a call.

ops-nn@e5c3fa9 norm/add_rms_norm_dynamic_quant/op_host/arch22.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT4, INT8, DType
from npusim.data.errors import Code, shown
from npusim.data.integers import align_up
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.ops._contract import Contract
from npusim.ops._protocol import present
from npusim.ops._rms_norm import contract as shared
from npusim.ops._rms_norm.contract import check_pair, epsilon_of, template_of
from npusim.ops._rms_norm.tiling import Machine, Plan, Template, chosen, planned
from npusim.ops._row_quant import INT4_PER_INT32
from npusim.ops._support import A2_A3, MAX_RANK, alike

__all__ = [
    "SUPPORT",
    "TARGETS",
    "Output",
    "Problem",
    "check",
    "padded",
    "slice_columns",
    "templates_for",
    "tile",
]

TARGETS = {None: INT8, "int8": INT8, "int4": INT4, "quint4x2": INT4}
"""y_dtype -> what a row is quantised to."""


@dataclass(frozen=True, slots=True)
class Output:
    """One of the two quantised outputs."""

    number: int
    """1 or 2."""
    smooth: Operand | None
    is_taken: bool
    """Whether it is asked for."""

    @property
    def y(self) -> str:
        """Its name as a tensor."""
        return "output" if self.number == 1 else "y2"

    @property
    def scale(self) -> str:
        """The name of its scales."""
        return f"scale{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(shared.Problem):
    """A checked call."""

    beta: Operand | None
    both: tuple[Output, Output]
    is_masked: bool
    """Whether an output_mask says what is asked for: without one both are computed by normal."""
    target: DType
    """int8 or int4."""

    @property
    def taken(self) -> tuple[Output, ...]:
        """The outputs that are asked for."""
        return tuple(output for output in self.both if output.is_taken)


SUPPORT = alike(
    (FLOAT16, BFLOAT16),
    *("x1", "x2", "gamma", "smooth_scale1", "smooth_scale2", "beta"),
    on=A2_A3,
)


def check(contract: Contract) -> Problem:
    """Hold a call against what ties its arguments together; raises OpError."""
    x1, x2, gamma = (contract.operand(name) for name in ("x1", "x2", "gamma"))
    smooth = contract.optional("smooth_scale1"), contract.optional("smooth_scale2")
    beta = contract.optional("beta")
    contract.require(
        2 <= len(x1.shape) <= MAX_RANK,
        f"x1 must have 2 to {MAX_RANK} dimensions, not shape {x1.shape}; reshape it",
    )
    check_pair(contract, x1, x2)
    contract.require(
        x1.spec.size > 0,
        f"x1 must have elements, not shape {x1.shape}; leave the call out",
        Code.TILING_ERROR,
    )
    for operand in (gamma, *present(*smooth, beta)):
        contract.require(
            operand.shape == x1.shape[-1:],
            f"{operand.name} must have shape {x1.shape[-1:]} like the last dimension of x1, not "
            f"{operand.shape}; pass a number for each column",
            Code.TILING_ERROR,
        )
    taken, target = _taken_outputs(contract, smooth), _target(contract, x1)
    templates = templates_for(gamma.spec.size, target, Machine.of(contract.spec), beta is not None)
    both = Output(1, smooth[0], taken[0]), Output(2, smooth[1], taken[1])
    return Problem(
        inputs=present(x1, x2, gamma, *smooth, beta),
        outputs=_outputs(x1, both, target),
        x=x1,
        gamma=gamma,
        beta=beta,
        both=both,
        is_masked=contract.value("output_mask") is not None,
        target=target,
        epsilon=epsilon_of(contract, least="> 0"),
        asked=template_of(contract, templates),
    )


def _taken_outputs(
    contract: Contract, smooth: tuple[Operand | None, Operand | None]
) -> tuple[bool, bool]:
    """Whether y1 and y2 are asked for: by output_mask, or by which scales there are."""
    mask = contract.value("output_mask")
    if mask is None:
        contract.require(
            smooth[0] is not None or smooth[1] is None,
            "smooth_scale1 must be given with a smooth_scale2 unless an output_mask says which "
            "outputs there are, not None; pass it, or an output_mask",
        )
        return True, smooth[1] is not None
    is_pair = isinstance(mask, list | tuple) and len(mask) == 2
    if not is_pair or not all(isinstance(each, bool) for each in mask):
        contract.fail(
            f"output_mask must be two of True and False, or None, not {shown(mask)}; pass for "
            f"example [True, False]"
        )
    first, second = mask
    contract.require(
        first or second,
        "output_mask must ask for an output at least, not [False, False]; set one to True",
    )
    for number, (is_taken, operand) in enumerate(zip(mask, smooth, strict=True), 1):
        contract.require(
            is_taken or operand is None,
            f"smooth_scale{number} must be None where output_mask leaves y{number} out, not a "
            f"tensor; leave it out",
        )
    return first, second


def _target(contract: Contract, x1: Operand) -> DType:
    name = contract.value("y_dtype")
    if name is not None:
        contract.choice("y_dtype", tuple(each for each in TARGETS if each))
    contract.require(
        TARGETS[name] is INT8 or x1.shape[-1] % INT4_PER_INT32 == 0,
        f"the last dimension of x1 must be a multiple of {INT4_PER_INT32} for "
        f"y_dtype={name!r}, not {x1.shape[-1]}; pad it",
    )
    return TARGETS[name]


def _outputs(x1: Operand, both: tuple[Output, ...], target: DType) -> dict[str, TensorSpec]:
    """What comes out; of what is not asked for a single number, which nobody writes."""
    shape, dtype = x1.shape, "int8"
    if target is INT4:
        shape, dtype = (*shape[:-1], shape[-1] // INT4_PER_INT32), "int32"
    rows = x1.shape[:-1]
    return {
        **{each.y: TensorSpec(shape if each.is_taken else (), dtype) for each in both},
        "x": x1.spec,
        **{each.scale: TensorSpec(rows if each.is_taken else (), "float32") for each in both},
    }


# ---- tiling ----

MAX_STEP_ROWS = 16
NORMAL_BYTES, NORMAL_ROW_BYTES, NORMAL_KEPT_BYTES = 16, 8, 768
"""What normal takes of the buffer for a column of a row, for a row, and all in all."""
SINGLE_ROW_BYTES, SINGLE_ROW_KEPT_BYTES = 16, 1024
SLICE = {INT8: 8864, INT4: 8832}
"""Columns of a slice."""
GROUP_ROWS = 128
"""single_row stores the scales of so many rows together."""


def padded(columns: int, target: DType) -> int:
    """Columns of a row in the buffer: whole blocks of what comes out."""
    return align_up(columns, 64 if target is INT4 else 32)


def _normal_rows(columns: int, target: DType, machine: Machine, has_beta: bool) -> int:
    """Rows that normal takes in one step; 0 where not even one fits."""
    whole = padded(columns, target)
    # gamma and two smooth scales, and beta
    vectors_bytes = 2 * whole * (4 if has_beta else 3)
    room = max(0, machine.ub_bytes - vectors_bytes - NORMAL_KEPT_BYTES)
    return min(MAX_STEP_ROWS, room // (NORMAL_BYTES * whole + NORMAL_ROW_BYTES))


def templates_for(
    columns: int, target: DType, machine: Machine, has_beta: bool
) -> tuple[Template, ...]:
    """Which templates take rows of *columns*."""
    row_bytes = SINGLE_ROW_BYTES * padded(columns, target) + SINGLE_ROW_KEPT_BYTES
    has_room = _normal_rows(columns, target, machine, has_beta) > 0
    return (
        Template("normal", "rows that fit into the unified buffer with their vectors", has_room),
        Template(
            "single_row", "rows that fit into the unified buffer", row_bytes <= machine.ub_bytes
        ),
        Template("slice_d", "rows that do not fit into the unified buffer", fits=True),
    )


def slice_columns(columns: int, target: DType) -> int:
    """Columns that slice_d takes at a time; the last slice of a row is what is left."""
    return min(columns, SLICE[target])


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """A step is what normal loads together, of single_row whose scales are stored together."""
    machine, has_beta = Machine.of(spec), p.beta is not None
    taken = chosen(templates_for(p.columns, p.target, machine, has_beta), machine, p.asked)
    if taken.name == "normal":
        row_step = _normal_rows(p.columns, p.target, machine, has_beta)
        return planned(taken, p.rows, machine, row_step, p.columns)
    if taken.name == "single_row":
        return planned(taken, p.rows, machine, GROUP_ROWS, p.columns)
    # Each core has a row of fp32 for each output, again and again.
    row_bytes = FLOAT32.nbytes(len(p.taken) * p.columns)
    column_step = slice_columns(p.columns, p.target)
    return planned(taken, p.rows, machine, 1, column_step, workspace_bytes_of_core=row_bytes)
