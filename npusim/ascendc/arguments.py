"""The bytes of kernel arguments: values, and structures that are given field by field."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple

import numpy as np

from npusim.ascendc.errors import AscendCError
from npusim.data.dtypes import BFLOAT16, Array
from npusim.data.errors import shown

__all__ = ["POINTER", "Field", "Layout", "layouts", "packed", "value_bytes"]

POINTER, SIGNED, UNSIGNED, FLOATING, HALF, BRAIN, OTHER = range(7)
"""Kinds of values, by their number in layout.h."""
FORMATS = {4: "f", 8: "d"}
MOST_NAMED = 12
"""The most fields that an error lists."""


class Field(NamedTuple):
    """A field of a structure: its offset and its elements."""

    offset_bytes: int
    element_bytes: int
    length: int
    """The number of its elements."""
    kind: int
    type: str
    """The last word of its type: for a structure, its name."""


class Layout(NamedTuple):
    """A structure with the layout that the compiler chose."""

    name: str
    nbytes: int
    fields: dict[str, Field]


def layouts(printed: str) -> dict[str, Layout]:
    """The structures whose fields a program *printed*, by name."""
    found: dict[str, Layout] = {}
    for line in printed.splitlines():
        name, field, inner, *words = line.split()
        offset, element, whole, kind, nbytes = map(int, words)
        layout = found.setdefault(name, Layout(name, nbytes, {}))
        layout.fields[field] = Field(offset, element, whole // element, kind, inner)
    return found


def packed(
    kernel: str, where: str, name: str, values: Mapping[str, object], known: Mapping[str, Layout]
) -> bytes:
    """The bytes of structure *name* of *known*, with these *values* of its fields.

    *where* is the name of the structure in errors. Missing elements of an array are zero. Raises
    AscendCError for a field that is unknown, missing or does not fit.
    """
    layout = known[name]
    for field in values:
        if field not in layout.fields:
            near = get_close_matches(field, layout.fields, n=1)
            hint = f"did you mean {near[0]}?" if near else "name one of these"
            raise AscendCError(
                f"{kernel}: {where} must have fields of {name}, which are "
                f"{_listed(layout.fields)}, not {shown(field)}; {hint}"
            )
    missing = [field for field in layout.fields if field not in values]
    if missing:
        raise AscendCError(
            f"{kernel}: {where} must have each field of {name}, but lacks {_listed(missing)}; give "
            f"them as well"
        )
    data = bytearray(layout.nbytes)
    for field, value in values.items():
        its = layout.fields[field]
        parts = _elements(kernel, f"{where}.{field}", its, value)
        for number, part in enumerate(parts):
            called = f"{where}.{field}" + (f"[{number}]" if its.length > 1 else "")
            if isinstance(part, Mapping) and its.type in known:
                made = packed(kernel, called, its.type, part, known)
            else:
                made = value_bytes(kernel, called, its.kind, its.element_bytes, part)
            start = its.offset_bytes + number * its.element_bytes
            data[start : start + its.element_bytes] = made
    return bytes(data)


def value_bytes(kernel: str, name: str, kind: int, size: int, value: object) -> bytes:
    """The bytes of a value of this size; raises AscendCError if *value* does not fit."""
    match kind, value:
        case ((1 | 2), int() | np.integer() | np.bool_()):
            low, high = (-(1 << 8 * size - 1), 1 << 8 * size - 1)
            if kind == UNSIGNED:
                low, high = 0, 1 << 8 * size
            if not low <= int(value) < high:
                raise AscendCError(
                    f"{kernel}: {name} must lie in [{low}, {high}), not be {value}; pass what fits"
                )
            return int(value).to_bytes(size, "little", signed=kind == SIGNED)
        case 3, int() | float() | np.number():
            return struct.pack(FORMATS[size], float(value))
        case ((4 | 5), int() | float() | np.number()):
            dtype = np.dtype(np.float16) if kind == HALF else BFLOAT16.numpy
            return np.array(value, dtype).tobytes()
        case _, bytes() if len(value) == size:
            return value
        case _, np.ndarray() if value.nbytes == size:
            array: Array = value
            return array.tobytes()
    what = {SIGNED: "an integer", UNSIGNED: "an integer from 0 on", FLOATING: "a number"}
    must = what.get(kind, f"{size} bytes")
    raise AscendCError(f"{kernel}: {name} must be {must}, not {value!r}; pass one")


def _elements(kernel: str, name: str, field: Field, value: object) -> Sequence[object]:
    """The values in *value* for each element of *field*, or for the first ones."""
    if isinstance(value, np.ndarray):
        value = value.reshape(-1).tolist() if field.kind != OTHER else value.reshape(-1)
    if field.length == 1 and not isinstance(value, list | tuple):
        return [value]
    if not isinstance(value, list | tuple):
        raise AscendCError(
            f"{kernel}: {name} must be a list of {field.length}, not {shown(value)}; pass one"
        )
    flat = np.array(value, object).reshape(-1).tolist()
    if len(flat) > field.length:
        raise AscendCError(
            f"{kernel}: {name} must have at most {field.length} elements, not {len(flat)}; leave "
            f"out the others"
        )
    return flat


def _listed(names: Sequence[str] | Mapping[str, Field]) -> str:
    rest = len(names) - MOST_NAMED
    return ", ".join([*names][:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")
