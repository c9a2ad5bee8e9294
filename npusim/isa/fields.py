"""Checks of the fields of a record, derived from their annotations, so that none is forgotten.

A micro-op is a dataclass: ``count: int`` and ``op: Literal["min", "max"]`` say what an instruction
can encode, and ``Annotated[int, Range(1, 4095)]`` the range of its field. :func:`misfit` checks a
record and its operands against all of that before anything computes with it.

>>> from npusim.isa.operands import Global
>>> misfit(Global("x", 0, 32, bursts=0.5))
'bursts must be an integer from 1 to 4294967295, not 0.5; pass an int that fits'
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from itertools import repeat
from operator import attrgetter, call
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from npusim.data.dtypes import BUFFER_DTYPES, DType

__all__ = ["BYTES", "COUNT", "SIGNED_64", "UNSIGNED_64", "OneOf", "Range", "misfit"]


@dataclass(frozen=True, slots=True)
class Range:
    """Integers from *low* to *high*."""

    low: int
    high: int

    def __str__(self) -> str:
        return f"an integer from {self.low} to {self.high}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of *names*."""

    names: tuple[str, ...]


SIGNED_64 = Range(-(2**63), 2**63 - 1)
"""The values of a scalar register."""
UNSIGNED_64 = Range(0, 2**64 - 1)
"""The values of a quantisation parameter."""
COUNT = Range(1, 2**32 - 1)
"""Repetitions: 32 bits are the widest field of a copy (DataCopyExtParams)."""
BYTES = Range(0, 2**32 - 1)
"""Distances in bytes: the same 32 bits."""
ADDRESS = Range(-(2**47), 2**47 - 1)
"""The range of integers without a narrower annotation: an address of 48 bits."""


def misfit(record: object) -> str | None:
    """Describe the first field of *record* that violates its annotation, or return None.

    *record* is an instance of a dataclass. The text gives the field, the values it allows, the
    value found and the remedy.
    """
    form = _FORMS.get(type(record)) or _form_of_class(type(record))
    if form.fits(record):
        return None
    return _complaint(form, record, "")


@dataclass(frozen=True, slots=True)
class _Form:
    """The check for one annotation."""

    fits: Callable[[Any], bool]
    wanted: str
    parts: Callable[[Any], Iterable[tuple[str, Any, _Form]]] = lambda _: ()
    """Returns the path, the value and the form of each part of a value."""
    remedy: str = "pass one"


def _complaint(form: _Form, value: object, path: str) -> str:
    for name, part, inner in form.parts(value):
        if not inner.fits(part):
            return _complaint(inner, part, f"{path}{name}" if path else name.lstrip("."))
    return f"{path or 'it'} must be {form.wanted}, not {_shown(value)}; {form.remedy}"


LONGEST = 60
"""Longest number or name that a message shows in full."""


def _shown(value: object) -> str:
    """*value* for a message: the value if it is short, else its type."""
    if isinstance(value, int) and value.bit_length() > 3 * LONGEST:
        return f"one of {value.bit_length()} bits"
    if value is None or isinstance(value, int | float | str | np.integer | np.floating):
        text = repr(value)
        return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return type(value).__name__


# ---- forms ----


def _form(annotation: Any) -> _Form:
    """The form for *annotation*, which must be resolved."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        limit = next(x for x in arguments if isinstance(x, Range | OneOf))
        return _integer(limit) if isinstance(limit, Range) else _choice(limit.names)
    if origin is Literal:
        return _choice(arguments)
    if origin in (Union, types.UnionType):
        return _union(tuple(_form(argument) for argument in arguments))
    if origin is tuple:
        assert arguments[1:] == (...,), "a tuple of a certain length needs its own form"
        return _tuple(_form(arguments[0]))
    if origin is dict:
        return _dict(_form(arguments[0]), _form(arguments[1]))
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    return _form_of_class(annotation) if _is_value(annotation) else _instance(annotation)


def _is_value(kind: type) -> bool:
    """Whether an instance of *kind* is a plain record, whose fields have not been checked yet."""
    return is_dataclass(kind) and "__eq__" in vars(kind) and "__post_init__" not in vars(kind)


def _instance(kind: type) -> _Form:
    return _Form(lambda value: isinstance(value, kind), _a(kind))


def _a(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"


def _integer(within: Range) -> _Form:
    low, high = within.low, within.high

    def fits(value: object) -> bool:
        if type(value) is int:
            return low <= value <= high
        # numpy computes sizes as int64; narrower integers would overflow on the way.
        return type(value) is np.int64 and bool(low <= value <= high)

    wanted = "an integer of at most 48 bits" if within is ADDRESS else str(within)
    return _Form(fits, wanted, remedy="pass an int that fits")


def _is_real(value: object) -> bool:
    # An integer too large for a float would become infinite.
    if type(value) is int:
        return abs(value) <= UNSIGNED_64.high
    return isinstance(value, float | np.integer | np.floating)


_PLAIN: dict[object, _Form] = {
    int: _integer(ADDRESS),
    float: _Form(_is_real, "a number"),
    bool: _Form(lambda value: type(value) is bool, "True or False"),
    # Names and reasons are printed, so every character must be visible.
    str: _Form(lambda value: type(value) is str and value.isprintable(), "a printable string"),
    types.NoneType: _Form(lambda value: value is None, "None"),
    DType: _Form(
        lambda value: isinstance(value, DType) and value in BUFFER_DTYPES,
        f"one of the types {', '.join(dtype.name for dtype in BUFFER_DTYPES)}",
        remedy="use one of these",
    ),
}


def _choice(known: tuple[str, ...]) -> _Form:
    return _Form(
        lambda value: type(value) is str and value in known,
        f"one of {', '.join(known)}",
        remedy="use one of these",
    )


def _union(forms: tuple[_Form, ...]) -> _Form:
    tests = tuple(form.fits for form in forms)

    def parts(value: object) -> Iterable[tuple[str, Any, _Form]]:
        # A value has one class, so at most one form has parts for it.
        return next((found for form in forms if (found := tuple(form.parts(value)))), ())

    wanted = " or ".join(form.wanted for form in forms)
    return _Form(lambda value: any(map(call, tests, repeat(value))), wanted, parts)


def _tuple(each: _Form) -> _Form:
    def fits(value: object) -> bool:
        return type(value) is tuple and all(map(each.fits, value))

    def parts(value: object) -> Iterable[tuple[str, Any, _Form]]:
        if type(value) is tuple:
            yield from ((f"[{index}]", part, each) for index, part in enumerate(value))

    return _Form(fits, f"a tuple, each {each.wanted}", parts)


def _dict(key: _Form, each: _Form) -> _Form:
    def fits(value: object) -> bool:
        if type(value) is not dict:
            return False
        return all(map(key.fits, value)) and all(map(each.fits, value.values()))

    def parts(value: object) -> Iterable[tuple[str, Any, _Form]]:
        if type(value) is dict:
            for name, part in value.items():
                yield ".keys()", name, key
                yield f"[{_shown(name)}]", part, each

    return _Form(fits, f"a dictionary, each {each.wanted}", parts)


_FORMS: dict[type, _Form] = {}
"""The forms of classes already analysed."""


def _form_of_class(kind: Any) -> _Form:
    """An instance of *kind*, a dataclass, whose fields satisfy their annotations."""
    if kind in _FORMS:
        return _FORMS[kind]
    hints = get_type_hints(kind, include_extras=True)
    forms = [(field.name, _form(hints[field.name])) for field in fields(kind)]
    tests = tuple(form.fits for _, form in forms)
    names = [name for name, _ in forms]
    # attrgetter returns a tuple only for several names.
    values_of = attrgetter(*names) if len(names) > 1 else None

    def fits(value: object) -> bool:
        # Runs for every micro-op of every body, so there is no loop over tests here.
        if type(value) is not kind:
            return False
        values = values_of(value) if values_of else [getattr(value, name) for name in names]
        return all(map(call, tests, values))

    def parts(value: object) -> Iterable[tuple[str, Any, _Form]]:
        if type(value) is kind:
            yield from ((f".{name}", getattr(value, name), form) for name, form in forms)

    _FORMS[kind] = _Form(fits, _a(kind), parts)
    return _FORMS[kind]
