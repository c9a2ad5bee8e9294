"""What the rows of support do not take is refused, by every operator and in words that are true.

Good calls of each operator are broken in one place: a type, a layout, the dimensions, what is left
out or given, an attribute. What a refusal says is held against the rows one by one: the facts that
it names are those of the call, with them the rows admit what it lists, and with one fact fewer they
would admit more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from calls import CALLS
from chips import THREE

from npusim import OpError, TensorSpec, devices, ops
from npusim.data.dtypes import DTYPES
from npusim.data.errors import shown
from npusim.devices.schema import DeviceSpec
from npusim.ops import Operator, Row

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

Call = dict[str, Any]
NUMBERS = {1: "one", 2: "two", 3: "three", 4: "four"}
FACTS = {
    "left out": r"no (?P<name>\w+)",
    "given": r"(?P<name>\w+) given",
    "value": r"(?P<name>\w+)=(?P<value>.+)",
    "rank": r"(?P<name>\w+) of (?P<value>\w+) dimensions?",
    "type": r"(?P<name>\w+) of (?P<value>\w+)",
    "layout": r"(?P<name>\w+) in (?P<value>\w+)",
}


class Fact(NamedTuple):
    """One of those that a refusal names after `with`."""

    kind: str
    name: str
    value: str = ""

    def is_true(self, call: Call) -> bool:
        """Whether it is one of *call*; what the vendor takes None for is not known here."""
        given = call[self.name]
        match self.kind:
            case "left out" | "given":
                return (given is None) == (self.kind == "left out")
            case "value":
                return given is None or str(given) in (self.value, f"[{self.value[1:-1]}]")
            case "rank":
                return self.value == NUMBERS.get(rank := len(given.shape), str(rank))
        return self.value == (dtype_of if self.kind == "type" else layout_of)(given)

    def takes(self, row: Row, call: Call) -> bool:
        """Whether *row* goes with it."""
        if self.kind == "value":
            values = row.entries.get(self.name)
            return values is None or self.value in map(str, values)
        entry = row.operands(self.name)
        match self.kind:
            case "left out" | "given":
                return entry.presence != ("required" if self.kind == "left out" else "absent")
            case "rank":
                return takes_tensor(row, self.name, call[self.name])
        return self.value in (map(str, entry.dtypes) if self.kind == "type" else entry.layouts)


def fact(words: str) -> Fact | None:
    """What *words* say; None if that is none of the facts that rows know."""
    found = ((kind, re.fullmatch(form, words)) for kind, form in FACTS.items())
    return next((Fact(kind, **match.groupdict()) for kind, match in found if match), None)


def dtype_of(value: Any) -> str:
    return str(value.dtype)


def layout_of(value: Any) -> str:
    return getattr(value, "layout", "ND")


def takes_tensor(row: Row, name: str, value: Any) -> bool:
    entry, rank = row.operands(name), len(value.shape)
    is_of = dtype_of(value) in map(str, entry.dtypes) and layout_of(value) in entry.layouts
    return is_of and entry.ranks[0] <= rank <= entry.ranks[1]


def fits(row: Row, name: str, value: Any) -> bool:
    """Whether *row* takes *value* as the argument called *name*."""
    entry = row.entries.get(name)
    if isinstance(entry, tuple):
        return value is None or name in IN_OTHER_WORDS or shown(value) in map(shown, entry)
    if value is None:
        return entry is None or entry.presence != "required"
    return not hasattr(value, "dtype") or takes_tensor(row, name, value)


def rows_of(operator: Operator) -> list[Row]:
    """Its rows, in which what the signature does not let be None is required."""
    must = [each.name for each in operator.parameters if each.is_tensor and not each.may_be_none]
    return [
        Row(
            on=row.on,
            **row.entries
            | {name: replace(row.operands(name), presence="required") for name in must},
        )
        for row in operator.support
    ]


IN_OTHER_WORDS = {"group_sizes"}
"""Attributes whose rows are not in the words of the caller."""


# ---- what a refusal lists, held against the rows ----


def admitted(rows: list[Row], name: str, what: str) -> str:
    """What *rows* admit of *name*, in order of appearance, as refusals word it."""
    if what == "value":
        return "be " + listed(value for row in rows for value in row.entries.get(name, ()))
    entries = [row.operands(name) for row in rows]
    if what == "type":
        return "be " + listed(dtype for entry in entries for dtype in entry.dtypes)
    if what == "layout":
        return "have layout " + listed(layout for entry in entries for layout in entry.layouts)
    if what == "rank":
        return dimensions(min(e.ranks[0] for e in entries), max(e.ranks[1] for e in entries))
    only = {entry.presence for entry in entries}
    return (
        {"required": "be given", "absent": "be None"}.get(only.pop(), "") if len(only) == 1 else ""
    )


def listed(values: Iterable[Any]) -> str:
    *first, last = dict.fromkeys(map(str, values))
    return f"{', '.join(first)} or {last}" if first else last


def alternatives(must: str) -> list[str]:
    return re.split(", | or ", must.removeprefix("be ").removeprefix("have layout "))


def dimensions(least: int, most: int) -> str:
    if least == most or most == 8:
        how_many = f"{NUMBERS.get(least, least)} dimension{'' if least == 1 else 's'}"
        return f"have {how_many}" if least == most else f"have at least {how_many}"
    return f"have {least} to {most} dimensions" if least else f"have at most {most} dimensions"


def remedies(operator: Operator, name: str, what: str, value: Any, admits: str) -> tuple[str, ...]:
    """What to do about *value*, of which the rows admit *admits* alone."""
    names = alternatives(admits)
    match what:
        case "value":
            only = (f"pass {names[0]}", f"pass {names[0]!r}")
            return only if len(names) == 1 else ("choose one of these",)
        case "rank":
            return ("reshape it",)
        case "presence":
            return (
                ("leave it out",)
                if value is not None
                else ("pass a tensor", "pass a list of tensors")
            )
        case "layout":
            number, rank = 2 if "ND" in names else 29, len(value.shape)
            can_cast = rank <= 6 and dtype_of(value) in CASTABLE
            return (
                f"pass it through npu_format_cast(..., {number})" if can_cast else "make it in ND",
            )
    return (conversion(operator.name, name, value, names),)


CASTABLE = ("float32", "float16", "bfloat16", "int8", "int32")


def conversion(op: str, name: str, value: Any, names: list[str]) -> str:
    """How *value* gets one of the types *names*."""
    came, shape = dtype_of(value), value.shape
    is_factor, is_packing = name in ("x1", "x2", "weight"), op == PACKING
    is_words = name in ("scale", "antiquant_scale") and came in ("int64", "uint64")
    if came == "int4" and "int32" in names and shape and not is_packing:
        packed = (*shape[:-1], -(-shape[-1] // 8))
        return f"pass them packed, eight to an int32, as {packed}: see {PACKING}"
    if is_factor and came == "int8" and names == ["int32"]:
        return f"pack its numbers, as int32, with {PACKING}"
    if came == "int32" and names == ["int8"]:
        return "pass its numbers, which int32 holds packed, as int8"
    if is_words and op in PRODUCTS and "int64" not in names:
        return "pass the numbers that npu_trans_quant_param packed"
    if is_factor and "float" in came and "float" not in names[0] and not is_packing:
        return "quantise it"
    return "convert it"


PACKING = "npu_convert_weight_to_int4pack"
PRODUCTS = ("npu_quant_matmul", "npu_weight_quant_batchmatmul", "npu_grouped_matmul")


def kind_of(operator: Operator, name: str, must: str, came: str, value: Any) -> str:
    """Which entry of the rows a refusal is about; empty if it is a rule of the operator's code."""
    is_tensor = next(each.is_tensor for each in operator.parameters if each.name == name)
    if not is_tensor:
        is_listed = any(name in row.entries for row in operator.support)
        is_same = came == shown(value) or value is None or name in IN_OTHER_WORDS
        return "value" if is_listed and is_same and must.startswith("be ") else ""
    if (must, came) in (("be given", "None"), ("be None", "given")):
        return "presence"
    if must.startswith("have layout "):
        return "layout" if came == layout_of(value) else ""
    if must == "have at least two dimensions" and came == str(len(value.shape)) in "01":
        return "matrix"
    if re.fullmatch("have .* dimensions?", must):
        return "rank" if came == f"shape {value.shape}" else ""
    is_type = hasattr(value, "dtype") and came == dtype_of(value)
    return "type" if is_type and must.startswith("be ") else ""


def is_of_rows(
    operator: Operator, every: list[Row], series: str, call: Call, error: OpError
) -> bool:
    """Whether the rows refuse, not a rule of the operator's code; what they say must be true."""
    found = re.fullmatch(
        rf"{operator.name}: (\w+)(?:\[0\])? must (.+?)(?: with (.+?))?(?: on (Atlas .+?))?, "
        rf"not (.+?); (.+) \[{int(error.code)}\]",
        str(error),
    )
    if found is None or found[1] not in call:
        return False
    name, must, said, line, came, remedy = found.groups()
    value, what = call[name], kind_of(operator, name, must, came, call[name])
    if what == "matrix":
        assert (remedy, int(error.code)) == ("reshape it", 161002), error
        return True
    facts = [fact(each) for each in re.split(r", (?![^(]*\))| and ", said)] if said else []
    rows = [row for row in every if series in row.on]
    is_own = (what == "value" and " for " in remedy) or not what or None in facts
    if is_own or (not line and any(fits(row, name, value) for row in rows)):
        return False

    def with_facts(facts: list[Any]) -> str:
        left = [row for row in rows if all(each.takes(row, call) for each in facts)]
        return admitted(left, name, what)

    assert [each for each in facts if not each.is_true(call)] == [], error
    admits = with_facts(facts)
    if line:
        assert line == series, error
        for each in facts:
            fewer = [other for other in facts if other is not each]
            assert with_facts(fewer) != admits, f"{error}: {each} says nothing"
    else:
        # True of every row, on each product line.
        assert (facts, what == "type") == ([], False), error
        assert {admitted([row], name, what) for row in every} == {admits}, error
    code = 161001 if value is None and what == "presence" else 161002
    assert (must, int(error.code)) == (admits, code), error
    assert came not in alternatives(admits), error
    assert remedy in remedies(operator, name, what, value, admits), error
    return True


# ---- good calls, broken in one place ----


def broken(operator: Operator, call: Call) -> Iterator[tuple[str, Any]]:
    """A parameter and another value of it."""
    for each in operator.parameters:
        name, value = each.name, call[each.name]
        if not each.is_tensor:
            values = {value for row in operator.support for value in row.entries.get(name, ())}
            yield from ((name, other) for other in values)
            if values:
                yield name, OUTSIDE.get(type(min(values)))
            continue
        was = value if hasattr(value, "dtype") else TensorSpec((2, 64), "float32")
        shape, dtype, layout = was.shape, dtype_of(was), layout_of(was)
        yield name, None
        yield from ((name, TensorSpec(shape, other.name)) for other in DTYPES)
        yield name, np.broadcast_to(np.float64(1), shape)
        matrix = shape if len(shape) >= 2 else (1, *shape, 1)[-2:]
        yield name, TensorSpec(matrix, dtype, "ND" if layout != "ND" else "FRACTAL_NZ")
        least = 0 if layout == "ND" else 2
        yield from ((name, TensorSpec((2,) * rank, dtype, layout)) for rank in range(least, 9))


OUTSIDE = {str: "other", int: 97, bool: None}
"""A value that no row lists."""
RULES = (
    r"not simulated",
    r"npu_fused_infer_attention_score: antiquant_scale must be given alone, or ",
    r"npu_grouped_matmul: group_list_type must be 0(, 1)? or .*; pass 0 for ends, 1 for rows",
    r"npu_quant_matmul: (offset|pertoken_scale) must be given, ",
    r"npu_quant_matmul: x2 must have as many rows as x1 has columns",
)
"""What refuses before the rows are asked."""


@pytest.mark.parametrize("name", CALLS)
def test_what_no_row_takes_is_refused_in_words_that_are_true(name: str) -> None:
    operator, given = ops.load(CALLS[name][0]), CALLS[name][1]
    call = {each.name: given.get(each.name, each.default) for each in operator.parameters}
    every, others = rows_of(operator), list[str]()
    for device in map(devices.load, THREE):
        rows = [row for row in every if device.series in row.on]
        fit = {
            name: [
                row
                for row in rows
                if all(fits(row, *each) for each in call.items() if each[0] != name)
            ]
            for name in call
        }
        for parameter, value in broken(operator, call) if is_good(operator, device, call) else ():
            wrong = call | {parameter: value}
            is_taken = any(fits(row, parameter, value) for row in fit[parameter])
            try:
                operator.check(device, **wrong)
            except OpError as error:
                if not is_of_rows(operator, every, device.series, wrong, error) and not is_taken:
                    others.append(str(error))
            else:
                assert is_taken, (parameter, value)
    assert [each for each in others if not re.search("|".join(RULES), each)] == []


def is_good(operator: Operator, device: DeviceSpec, call: Call) -> bool:
    try:
        operator.check(device, **call)
    except OpError:
        return False
    return True
