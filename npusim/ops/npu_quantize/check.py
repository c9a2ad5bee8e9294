"""The calls that npu_quantize accepts, per product line, and the tensors as a matrix."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT4, INT8, INT32, UINT8, DType
from npusim.data.errors import Code
from npusim.data.tensor import Operand, Tensor, TensorSpec
from npusim.ops import _vocabulary as ops
from npusim.ops._row_quant import output_of
from npusim.ops._support import Entries
from npusim.ops._vocabulary import (
    A2_A3,
    ATLAS_INFERENCE,
    Row,
    alike,
    listed,
    present,
    same_shape_remedy,
)

TARGETS = {"qint8": INT8, "quint8": UINT8, "int32": INT32, "qint32": INT32, "quint4x2": INT4}
Scaling = Literal["tensor", "column", "row"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call, as a matrix of rows that is scaled as a whole, by column, or by row."""

    input: Operand
    scales: Operand
    zero_points: Operand | None
    target: DType
    divide: bool
    scaling: Scaling
    rows: int
    columns: int
    period: int
    """Scaled by row: number of scales; row r uses scale r mod period."""


HALVES, POINTS = (FLOAT16, BFLOAT16), (INT8, UINT8, INT32)
DIVIDED: Entries = {"div_mode": (True,), "dtype": ("qint8", "quint8", "int32", "qint32")}
MULTIPLIED: Entries = {"div_mode": (False,), "dtype": ("qint8", "quint4x2")}
MULTIPLIED_310P: Entries = {"div_mode": (False,), "dtype": ("qint8",)}
LIKE_SCALES = ("scales", "zero_points")

SUPPORT = (
    Row(on=A2_A3, input=(FLOAT32, *HALVES), scales=FLOAT32, zero_points=POINTS, **DIVIDED),
    Row(on=A2_A3, input=BFLOAT16, scales=BFLOAT16, zero_points=BFLOAT16, **DIVIDED),
    Row(
        on=ATLAS_INFERENCE,
        input=(FLOAT32, FLOAT16),
        scales=FLOAT32,
        zero_points=POINTS,
        **DIVIDED,
    ),
    *alike((FLOAT32, *HALVES), *LIKE_SCALES, on=A2_A3, input=FLOAT32, **MULTIPLIED),
    *alike(HALVES, "input", *LIKE_SCALES, on=A2_A3, **MULTIPLIED),
    *alike((FLOAT32, FLOAT16), *LIKE_SCALES, on=ATLAS_INFERENCE, input=FLOAT32, **MULTIPLIED_310P),
    *alike((FLOAT16,), "input", *LIKE_SCALES, on=ATLAS_INFERENCE, **MULTIPLIED_310P),
)


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    given, dtype = contract.value("input"), contract.value("dtype")
    contract.require(
        not (isinstance(given, Tensor | TensorSpec) and given.layout == "FRACTAL_NZ")
        or (given.dtype, dtype) != ("float32", "quint4x2")
        or contract.spec.series in ATLAS_INFERENCE,
        "input must have layout ND with dtype='quint4x2', not FRACTAL_NZ, whose kernel is not "
        "simulated; pass it through npu_format_cast(..., 2)",
        Code.UNSUPPORTED,
    )
    x = contract.operand("input")
    contract.require(
        len(x.shape) > 0, "input must have at least one dimension, not none; reshape it to (1,)"
    )
    axis = contract.integer("axis")
    divide = contract.boolean("div_mode")
    target = TARGETS[contract.choice("dtype")]
    if divide:
        return _check_divide(contract, x, target, axis)
    return _check_multiply(contract, x, target, axis)


def _check_multiply(contract: ops.Contract, x: Operand, target: DType, axis: int) -> Problem:
    is_310p = contract.spec.series in ATLAS_INFERENCE
    s = contract.operand("scales")
    rank = len(x.shape)
    contract.require(
        not (is_310p and axis == -2),
        f"axis must mean the last dimension on {contract.spec.series}, not -2; swap the last two "
        f"dimensions of input and pass -1",
    )
    lowest = -1 if is_310p or rank == 1 else -2
    before = "" if lowest == -1 else " or -2 for the one before"
    contract.require(
        lowest <= axis <= rank,
        f"axis must lie in [{lowest}, {rank}] with div_mode=False for an input of shape {x.shape}, "
        f"not {axis}; pass -1 for the last dimension{before}",
    )
    position = rank - 2 if axis == -2 else rank - 1
    _check_scale_shape(contract, x, s, position)
    z = _zero_points(contract, s)
    remedy = "pad it, and scales and zero_points along it"
    output = output_of(contract, x, target, "dtype='quint4x2'", remedy)
    s, z = s.cast_to(x.element), z.cast_to(x.element) if z else None
    return _problem(x, s, z, target, False, position, output)


def _check_scale_shape(contract: ops.Contract, x: Operand, s: Operand, position: int) -> None:
    rank, size = len(x.shape), x.shape[position]
    full = tuple(size if index == position else 1 for index in range(rank))
    # Without duplicates: they coincide for a one-dimensional input, or one of size 1 along
    # *position*.
    shapes = tuple(dict.fromkeys(((1,), (size,), (1,) * rank, full)))
    wanted = listed(tuple(str(shape) for shape in shapes))
    contract.require(
        s.shape in shapes,
        f"scales must have shape {wanted} for an input of shape {x.shape} scaled along dimension "
        f"{position}, not {s.shape}; pass one scale, or one for each position",
    )


def _zero_points(contract: ops.Contract, s: Operand) -> Operand | None:
    z = contract.optional("zero_points")
    if z is not None:
        contract.require(
            z.shape == s.shape,
            f"zero_points must have the shape of scales, {s.shape}, not {z.shape}; "
            f"{same_shape_remedy(z, s)}",
        )
    return z


def _check_divide(contract: ops.Contract, x: Operand, target: DType, axis: int) -> Problem:
    s = contract.operand("scales")
    contract.require(
        len(s.shape) == 1,
        f"scales must be one-dimensional with div_mode=True, not of shape {s.shape}; flatten them",
    )
    rank = len(x.shape)
    contract.require(
        s.shape == (1,) or -rank <= axis < rank,
        f"axis must lie in [{-rank}, {rank - 1}] for an input of shape {x.shape}, not {axis}; "
        f"name one of its dimensions",
    )
    position = axis % rank
    size = x.shape[position]
    wanted = "(1,)" if size == 1 else f"(1,) or ({size},)"
    contract.require(
        s.shape[0] in (1, size),
        f"scales must have shape {wanted} for an input of shape {x.shape} scaled along "
        f"dimension {position}, not {s.shape}; pass one scale, or one for each position",
    )
    z = _zero_points(contract, s)
    return _problem(x, s, z, target, True, position, TensorSpec(x.shape, target.name))


def _problem(
    x: Operand,
    s: Operand,
    z: Operand | None,
    target: DType,
    divide: bool,
    position: int,
    output: TensorSpec,
) -> Problem:
    """Map the tensors to a matrix."""
    scaling: Scaling
    if s.spec.size == 1:
        scaling, rows, columns = "tensor", 1, x.spec.size
    elif position == len(x.shape) - 1:
        scaling, rows, columns = "column", prod(x.shape[:-1]), x.shape[-1]
    else:
        scaling = "row"
        rows, columns = prod(x.shape[: position + 1]), prod(x.shape[position + 1 :])
    return Problem(
        inputs=present(x, s, z),
        outputs={"output": output},
        input=x,
        scales=s,
        zero_points=z,
        target=target,
        divide=divide,
        scaling=scaling,
        rows=rows,
        columns=columns,
        period=s.spec.size,
    )
