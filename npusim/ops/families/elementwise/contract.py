"""The calls of the family that are accepted, and their problems for the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT32, INT8, UINT8, DType
from npusim.data.errors import shown
from npusim.data.tensor import Operand, TensorSpec
from npusim.ops import _protocol
from npusim.ops._contract import MAX_RANK, Contract, listed
from npusim.ops._support import A2_A3, ATLAS_INFERENCE, EVERYWHERE, Entries, Row
from npusim.ops.families.elementwise.chain import Extent
from npusim.ops.families.elementwise.expression import Expression
from npusim.ops.families.elementwise.expressions import EXPONENTS, EXPRESSIONS


@dataclass(frozen=True, slots=True)
class Axis:
    """Adjacent axes of the result along which the same operands are broadcast."""

    size: int
    has: tuple[bool, ...]
    """Whether each operand has it; others are broadcast along it."""


Axes = tuple[Axis, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call."""

    name: str
    """The name of the row in the table."""
    axes: Axes
    """Axes of the result, the last one varying fastest; at least one."""
    extents: tuple[Extent, ...]
    """The part of a tile that each operand has."""
    computed_in: DType
    attributes: tuple[float | str | None, ...] = ()
    """Other parameters of the steps: bounds of `clamp`, a factor, the name of a form or of a
    product line."""
    has_number: bool = False
    """Whether the second operand is a number, which the host uploads."""

    @property
    def expression(self) -> Expression:
        return EXPRESSIONS[self.name]


def support(expression: Expression) -> tuple[Row, ...]:
    """The types that an operator accepts: one for all operands, unless it *mixes* two."""
    known = expression.computed_in
    if "dtype dtype" in expression.parameters:
        return tuple(
            Row(on=on, x=dtypes, dtype=tuple(each.name for each in dtypes if each.bits > BYTE_BITS))
            for on, dtypes in (
                (A2_A3, tuple(known)),
                (ATLAS_INFERENCE, tuple(each for each in known if each is not BFLOAT16)),
            )
        )
    others: Entries = {"condition": (UINT8, INT8), "approximate": ("none", "tanh")}
    named = {name: entry for name, entry in others.items() if name in expression.parameters}
    values = [name for name in expression.operands if name != "condition"]
    alike = [(each,) * len(values) for each in known]
    lines = {types: A2_A3 if BFLOAT16 in types else EVERYWHERE for types in alike}
    found: list[Row] = []
    for types, on in (lines | expression.mixes).items():
        entries: Entries = {**dict(zip(values, types, strict=True)), **named}
        found.append(Row(on=on, **entries))
    return tuple(found)


BYTE_BITS = 8


def check(contract: Contract) -> Problem:
    """Check that the kernel accepts a call; raises OpError."""
    expression, given = EXPRESSIONS[contract.op], contract.arguments
    x = contract.operand("x")
    # A tensor to be filled only gives its shape and type; a kernel does not read it.
    names = ("value",) if "value" in given else expression.operands
    operands = [_operand(contract, name, x) for name in names]
    shape = x.shape if "value" in given else _broadcast(contract, operands)
    if "shape" in given:
        shape = _target(contract, x, given["shape"])
    axes = _merged(shape, operands)
    attributes = _attributes(contract, x)
    if expression.by_series:
        attributes = (*attributes, contract.spec.series)
    has_number = _is_number(given.get("other"))
    is_mixed = not has_number and _is_mixed(operands)
    output = FLOAT32.name if is_mixed else _output(contract, expression, x)
    return Problem(
        inputs=tuple(operands),
        outputs={"output": TensorSpec(shape, output)},
        name=contract.op,
        axes=axes,
        extents=tuple(_extent(contract, axes, i, x) for i, x in enumerate(operands)),
        computed_in=FLOAT32 if is_mixed else expression.computed_in[x.element],
        attributes=attributes,
        has_number=has_number,
    )


def _is_mixed(operands: list[Operand]) -> bool:
    """Whether operands are of two floating-point types."""
    return len({x.element for x in operands if x.element.is_float}) > 1


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool | np.generic)


def _operand(contract: Contract, name: str, x: Operand) -> Operand:
    """The tensor *name*, or the number, which the host uploads."""
    is_number = _is_number(contract.arguments[name]) or name == "value"
    return _number_operand(contract, name, x) if is_number else contract.operand(name)


def _number_operand(contract: Contract, name: str, x: Operand) -> Operand:
    """The number *name* as a tensor of one element, of the type of *x* or float32."""
    kinds = EXPRESSIONS[contract.op].wide_numbers
    is_wide = x.element is BFLOAT16 and isinstance(contract.arguments[name], kinds)
    dtype = FLOAT32 if is_wide else x.element
    number = _number(contract, name, dtype)
    return Operand(name, TensorSpec((1,), dtype.name), np.array([number], dtype.numpy))


def _number(contract: Contract, name: str, dtype: DType) -> float:
    """The argument *name* as a number that *dtype* can represent, rounded if that is a float."""
    value = contract.value(name)
    contract.require(
        isinstance(value, int | float) and not isinstance(value, bool),
        f"{name} must be a number, not {shown(value)}; pass one",
    )
    contract.require(
        isinstance(value, float) or abs(value) < 2**63,
        f"{name} must fit into 64 bits, not be {shown(value)}; pass a smaller one",
    )
    if dtype.is_float:
        with np.errstate(over="ignore"):
            return float(np.array([float(value)]).astype(dtype.numpy)[0])
    limits = np.iinfo(dtype.numpy)
    contract.require(
        isfinite(value) and value == int(value) and limits.min <= value <= limits.max,
        f"{name} must be a whole number that {dtype.name} has, not {shown(value)}; round or clip "
        f"it",
    )
    return int(value)


def _attributes(contract: Contract, x: Operand) -> tuple[float | str | None, ...]:
    """Parameters of the steps other than types."""
    given = contract.arguments
    if "alpha" in given:
        is_wide = x.element is BFLOAT16
        return (_number(contract, "alpha", FLOAT32 if is_wide else x.element),)
    if "exponent" in given:
        power = given["exponent"]
        contract.require(
            power in EXPONENTS,
            f"exponent must be {listed(tuple(f'{each:g}' for each in EXPONENTS))}, not "
            f"{shown(power)}: others are not simulated; choose one of these",
        )
        return (float(power),)
    if "approximate" in given:
        return (contract.choice("approximate"),)
    if "low" not in given:
        return ()
    low, high = (
        None if given[bound] is None else _number(contract, bound, x.element)
        for bound in ("low", "high")
    )
    contract.require(
        low is not None or high is not None,
        "low or high must be given, not neither; pass one of them",
    )
    return low, high


def _output(contract: Contract, expression: Expression, x: Operand) -> str:
    """The type of the result."""
    if expression.gives_bool:
        return UINT8.name
    return contract.choice("dtype") if "dtype" in contract.arguments else x.spec.dtype


def _broadcast(contract: Contract, operands: list[Operand]) -> tuple[int, ...]:
    try:
        return tuple(np.broadcast_shapes(*(x.shape for x in operands)))
    except ValueError:
        shapes = " and ".join(f"{x.name} {x.shape}" for x in operands)
        contract.fail(
            f"shapes must be equal or 1 along each axis, counted from the last one, not {shapes}; "
            f"reshape one of them"
        )


def _target(contract: Contract, x: Operand, shape: Any) -> tuple[int, ...]:
    """*shape* as sizes to which *x* can be broadcast."""
    contract.require(
        len(shape) <= MAX_RANK,
        f"shape must be at most {MAX_RANK} sizes, not {shown(shape)}; pass a tuple of them",
    )
    sizes = tuple(shape)
    behind = sizes[len(sizes) - len(x.shape) :] if len(sizes) >= len(x.shape) else ()
    contract.require(
        len(behind) == len(x.shape)
        and all(size >= 0 for size in sizes)
        and all(own in (1, size) for own, size in zip(x.shape, behind, strict=True)),
        f"shape must end in the sizes of x, {x.shape}, any 1 of which may be another size, not be "
        f"{sizes}; reshape x",
    )
    return sizes


# ---- axes ----


def _merged(shape: tuple[int, ...], operands: list[Operand]) -> Axes:
    """The axes of *shape* that are longer than 1, merged where the result is the same."""
    found: list[Axis] = []
    for place, size in enumerate(shape):
        if size == 1:
            continue
        behind = len(shape) - place
        has = tuple(len(x.shape) >= behind and x.shape[-behind] == size for x in operands)
        if found and found[-1].has == has:
            found[-1] = Axis(found[-1].size * size, has)
        else:
            found.append(Axis(size, has))
    return tuple(found) or (Axis(1, (True,) * len(operands)),)


def _extent(contract: Contract, axes: Axes, index: int, x: Operand) -> Extent:
    """The part of a tile, the last two of *axes*, that operand *index* has."""
    if not any(axis.has[index] for axis in axes):
        return "number"
    has_columns = axes[-1].has[index]
    has_rows = len(axes) > 1 and axes[-2].has[index]
    contract.require(
        has_columns or has_rows,
        f"{x.name} must have one of the last two axes along which others are broadcast, not "
        f"{x.shape}; expand it first",
    )
    if has_columns and (has_rows or len(axes) == 1):
        return "tile"
    return "row" if has_columns else "column"
