"""Calls as text: rows that list the tensors of a call, if m, k and n do not describe it.

shape    the tensors in the order of the operator's parameters, `3x4 , 4` for two; a number in
         memory is a tensor of one element
x_dtype  their types, `float32/bfloat16`, or one for all
w_layout NZ if the first tensor is stored in fractals
variant  arguments that are not tensors, by the name of the parameter, `dim 1, start 0`; several
         numbers, `dims 1 0 2`, are a list; None for a missing tensor
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from npusim import ops
from npusim.data.arguments import Arguments
from npusim.data.tensor import TensorSpec
from npusim.validation.columns import icache_of, l2_of, operands
from npusim.validation.rows import Row, RowError
from npusim.validation.timed import Call

__all__ = ["call_of", "columns_of", "options_of"]

CONSTANTS = {"None": None, "True": True, "False": False}
Parameters = Sequence[inspect.Parameter]


def options_of(row: Row) -> dict[str, Any]:
    """The arguments in the column variant."""
    parts = [part.partition(" ") for part in row.variant.split(", ") if part]
    if any(not name.isidentifier() or not value or "," in value for name, _, value in parts):
        raise RowError(
            f"validate: row {row.id}: variant must be names and values such as dim 1, start 0 for "
            f"{row.op}, not {row.variant!r}; fix the cell"
        )
    return {name: _value(text) for name, _, text in parts}


def _value(text: str) -> Any:
    if text in CONSTANTS:
        return CONSTANTS[text]
    words = text.split()
    try:
        numbers = [int(word) for word in words]
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text
    return numbers[0] if len(numbers) == 1 else numbers


def call_of(row: Row) -> Call:
    """The call of *row*; raises RowError if its cells do not describe a call."""
    options = options_of(row)
    tensors = operands(row)
    args: list[TensorSpec] = []
    for place, parameter in enumerate(_parameters(row.op)):
        if not tensors:
            break
        name = parameter.name
        if name in options or not _takes_tensors(parameter):
            continue
        if "Sequence" in parameter.annotation:
            options[name], tensors = tensors, []
        elif place == len(args) and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            args.append(tensors.pop(0))
        else:
            options[name] = tensors.pop(0)
    if tensors:
        raise RowError(
            f"validate: row {row.id}: shape must have as many tensors as {row.op} takes, but "
            f"{len(tensors)} of {row.shape!r} are left; take them out"
        )
    try:
        ops.signature(ops.load(row.op)).bind(*args, **options)
    except TypeError as error:
        raise RowError(
            f"validate: row {row.id}: shape and variant must be a call of {row.op}, but: {error}; "
            f"fix the cells"
        ) from None
    return Call(row.op, tuple(args), row.device, l2_of(row), icache_of(row), options)


def columns_of(op: str, arguments: Arguments) -> dict[str, Any] | None:
    """The columns of a call of *op* with *arguments*, by name; None if text cannot describe it."""
    tensors: list[TensorSpec] = []
    words: list[str] = []
    skipped: list[str] = []
    for parameter in _parameters(op):
        name = parameter.name
        value = arguments.get(name, parameter.default)
        given = list(value) if isinstance(value, list | tuple) else [value]
        if given and all(isinstance(each, TensorSpec) for each in given):
            tensors += given
            words += skipped
            skipped = []
        elif value is None and _takes_tensors(parameter):
            (words if parameter.default is parameter.empty else skipped).append(f"{name} None")
        elif value is not parameter.default and value != parameter.default:
            if not all(isinstance(each, int | float | str) for each in given):
                return None
            words.append(f"{name} {' '.join(map(str, given))}")
    return _spelled(tensors, words)


def _spelled(tensors: Sequence[TensorSpec], words: Sequence[str]) -> dict[str, Any] | None:
    turned = any(each.transposed for each in tensors)
    in_fractals = [each.layout != "ND" for each in tensors]
    if not tensors or turned or any(in_fractals[1:]):
        return None
    dtypes = [each.dtype for each in tensors]
    return {
        "shape": " , ".join("x".join(map(str, each.shape)) or "1" for each in tensors),
        "x_dtype": dtypes[0] if len(set(dtypes)) == 1 else "/".join(dtypes),
        "w_layout": "NZ" if in_fractals[0] else "",
        "variant": ", ".join(words),
    }


def _parameters(op: str) -> Parameters:
    return tuple(ops.signature(ops.load(op)).parameters.values())


def _takes_tensors(parameter: inspect.Parameter) -> bool:
    return "Array" in parameter.annotation
