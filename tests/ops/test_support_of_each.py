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
from calls import CALLS, OF_EACH
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
                return entry.ranks[0] <= len(call[self.name].shape) <= entry.ranks[1]
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
    if isinstance(value, str) and not isinstance(entry, tuple):
        return entry is None
    if isinstance(entry, tuple):
        return value is None or name in IN_OTHER_WORDS or shown(value) in map(shown, entry)
    if value is None:
        return entry is None or entry.presence != "required"
    if isinstance(value, np.ma.MaskedArray):
        return False
    return not hasattr(value, "dtype") or takes_tensor(row, name, value)


def rows_of(operator: Operator) -> list[Row]:
    """Its rows, in which what the signature does not let be None is required."""
    must = [each.name for each in operator.parameters if each.is_tensor and not each.may_be_none]
    return [
        Row(
            on=row.on,
            **dict(row.entries)
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
    *first, last = dict.fromkeys(map(str, values)) or ("nothing",)
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
        return f"pack its elements, as int32, with {PACKING}"
    if came == "int32" and names == ["int8"]:
        return "pass its elements, which int32 holds packed, as int8"
    if is_words and op in PRODUCTS and "int64" not in names:
        return "pass the words that npu_trans_quant_param packed"
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
    if isinstance(value, str) or (must, came) in NO_TENSORS:
        return must if (must, came) in NO_TENSORS else ""
    rank = len(value.shape) if value is not None else 0
    if (must, came) in (
        ("have at least two dimensions", f"{min(rank, 1)}"),
        ("have at most 8 dimensions", "9"),
    ):
        return "every rank" if int(came) == rank else ""
    if re.fullmatch("have .* dimensions?", must):
        return "rank" if came == f"shape {value.shape}" else ""
    is_type = hasattr(value, "dtype") and came == dtype_of(value)
    return "type" if is_type and must.startswith("be ") else ""


NO_TENSORS = {
    ("be a numpy array or a TensorSpec", "str"): "make it one of them",
    ("be an array without a mask", "a MaskedArray"): "fill it first",
}
EVERYWHERE = {"every rank": "reshape it"} | {must: do for (must, _), do in NO_TENSORS.items()}
"""What holds for every row of every operator -> what to do."""


def sizes(words: str, shape: tuple[int, ...]) -> dict[str, Any] | None:
    """The sizes of *shape* by their names; None where there are too few or too many."""
    before, star, after = words.partition("*")
    first = dict(zip(before.split(), shape, strict=False))
    if not star:
        return first if len(before.split()) == len(shape) else None
    many, *last = after.split()
    end = len(shape) - len(last)
    if end < len(first):
        return None
    return first | {many: shape[len(first) : end]} | dict(zip(last, shape[end:], strict=True))


def is_other_shape(row: Row, name: str, call: Call) -> bool:
    """Whether the tensor called *name* has other sizes than *row* and the other tensors want."""
    own = sizes(row.operands(name).shape, call[name].shape)
    if own is None or any(word.isdigit() and int(word) != own[word] for word in own):
        return True
    others = [
        sizes(entry.shape, call[other].shape) or {}
        for other, entry in row.entries.items()
        if not isinstance(entry, tuple) and entry.shape and call[other] is not None
    ]
    return any(other.get(word, own[word]) != own[word] for other in others for word in own)


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
    if must.startswith("have shape ") and any(row.operands(name).shape for row in every):
        assert (came, remedy) == (str(value.shape), "pass one of that shape"), error
        assert all(is_other_shape(row, name, call) for row in every), error
        return True
    if what in EVERYWHERE:
        assert (remedy, int(error.code)) == (EVERYWHERE[what], 161002), error
        return True
    facts: list[Any] = (
        [fact(each) for each in re.split(r", (?![^(]*\))| and ", said)] if said else []
    )
    rows = [row for row in every if series in row.on]
    is_own = (what == "value" and " for " in remedy) or not what or None in facts
    if is_own or (not line and any(fits(row, name, value) for row in rows)):
        return False

    def rows_with(facts: list[Any]) -> list[Row]:
        return [row for row in rows if all(each.takes(row, call) for each in facts)]

    assert [each for each in facts if not each.is_true(call)] == [], error
    admits = admitted(rows_with(facts), name, what)
    if line:
        assert line == series, error
        for each in facts:
            fewer = [other for other in facts if other is not each]
            more = admitted(rows_with(fewer), name, what)
            assert sorted(alternatives(more)) != sorted(alternatives(admits)), f"{error}: {each}"
    else:
        # True of every row, on each product line.
        assert (facts, what == "type") == ([], False), error
        assert {admitted([row], name, what) for row in every} == {admits}, error
    code = 161001 if value is None and what == "presence" else 161002
    assert int(error.code) == code, error
    if must != admits:
        # In the order of the rows that other arguments leave.
        others = [each for each in call if each != name]
        left = ([row for row in rows_with(facts) if fits(row, o, call[o])] for o in others)
        assert must in {admitted(rows, name, what) for rows in left if rows}, error
    assert sorted(alternatives(must)) == sorted(alternatives(admits)), error
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
        if not any(row.operands(name).dtypes for row in operator.support):
            yield name, TensorSpec((2, 64), "float32")
            continue
        was = value if hasattr(value, "dtype") else TensorSpec((2, 64), "float32")
        shape, dtype, layout = was.shape, dtype_of(was), layout_of(was)
        yield name, None
        yield name, "no tensor"
        yield from ((name, TensorSpec(shape, other.name)) for other in DTYPES)
        yield from ((name, np.broadcast_to(np.ones((), of), shape)) for of in ("f8", ">i2", object))
        yield name, np.ma.masked_array(np.ones(shape, "f4"))
        matrix = shape if len(shape) >= 2 else (1, *shape, 1)[-2:]
        yield name, TensorSpec(matrix, dtype, "ND" if layout != "ND" else "FRACTAL_NZ")
        least = 0 if layout == "ND" else 2
        yield from ((name, TensorSpec((2,) * rank, dtype, layout)) for rank in range(least, 10))


OUTSIDE = {str: "other", int: 97, bool: None}
"""A value that no row lists."""
RULES = (
    r"not simulated",
    r"npu_fused_infer_attention_score(_v2)?: pse_shift, paddings, prefixes and scales of the ",
    r"npu_\w+_attention(_score|_score_v2)?: (paddings|prefixes|dequant_scale_query) must be None",
    r"npu_grouped_matmul: group_list_type must be 0(, 1)? or .*; pass 0 for ends, 1 for rows",
    r"npu_quant_matmul: (offset|pertoken_scale) must be given, ",
    r"npu_quant_matmul: x2 must have as many rows as x1 has columns",
    r"npu_quantize: scales must be one-dimensional with div_mode=True",
)
"""What refuses before the rows are asked."""


NEED_OTHER_SHAPES = {
    "npu_anti_quant",
    "npu_dequant_swiglu_quant",
    "npu_fused_infer_attention_score",
    "npu_grouped_matmul",
    "npu_grouped_matmul_swiglu_quant",
    "npu_incre_flash_attention",
    "npu_moe_init_routing_v2",
    "npu_quant_matmul",
    "npu_reshape_and_cache",
    "npu_scatter_pa_kv_cache",
    "npu_transpose_batchmatmul",
    "npu_weight_quant_batchmatmul",
}
"""Operators of which some row goes with no call of `CALLS` whose types alone are changed."""


def good_calls(operator: Operator, device: DeviceSpec, rows: list[Row]) -> list[Call]:
    """Those of `CALLS` that the chip takes, and one for each row that goes with none of them."""
    known = [given for op, given in CALLS.values() if op == operator.name]
    calls = [
        {each.name: given.get(each.name, each.default) for each in operator.parameters}
        for given in known
    ]
    found = [call for call in calls if is_good(operator, device, call)]
    everything = {name: value for given in known for name, value in given.items()}
    for row in rows:
        if not any(fits_all(row, call) for call in found):
            changed = (fitted(row, call, everything) for call in calls)
            good = (each for each in changed if is_good(operator, device, each))
            found += [call for call in good if fits_all(row, call)][:1]
    reached = [row for row in rows if any(fits_all(row, call) for call in found)]
    assert reached == rows or operator.name in NEED_OTHER_SHAPES
    return found


def fits_all(row: Row, call: Call) -> bool:
    return all(fits(row, name, value) for name, value in call.items())


def fitted(row: Row, call: Call, everything: Call) -> Call:
    """*call* with the types and the values of *row*; what it needs more is of *everything*."""
    found = dict(call)
    for name, entry in row.entries.items():
        if isinstance(entry, tuple):
            found[name] = call[name] if fits(row, name, call[name]) else entry[0]
            continue
        needs = call[name] is None and entry.presence == "required"
        value: Any = everything.get(name) if needs else call[name]
        if hasattr(value, "dtype") and not fits(row, name, value) and entry.dtypes:
            dtype, layout = dtype_of(value), layout_of(value)
            value = TensorSpec(
                value.shape,
                dtype if dtype in map(str, entry.dtypes) else entry.dtypes[0].name,
                layout if layout in entry.layouts else entry.layouts[0],
            )
        found[name] = value
    absent = (name for name, value in call.items() if hasattr(value, "dtype"))
    return found | {name: None for name in absent if name not in row.entries}


def is_good(operator: Operator, device: DeviceSpec, call: Call) -> bool:
    try:
        operator.check(device, **call)
    except OpError:
        return False
    return True


@pytest.mark.parametrize("device", [*THREE[:2], pytest.param(THREE[2], marks=pytest.mark.nightly)])
@pytest.mark.parametrize("op", ops.names())
def test_what_no_row_takes_is_refused(op: str, device: str) -> None:
    operator, spec = ops.load(op), devices.load(device)
    every, rules = rows_of(operator), list[str]()
    rows = [row for row in every if spec.series in row.on]
    for call in good_calls(operator, spec, rows):
        others = {
            name: [
                row for row in rows if fits_all(row, {n: v for n, v in call.items() if n != name})
            ]
            for name in call
        }
        for name, value in broken(operator, call):
            wrong = call | {name: value}
            is_taken = any(fits(row, name, value) for row in others[name])
            try:
                operator.check(spec, **wrong)
            except OpError as error:
                if not is_of_rows(operator, every, spec.series, wrong, error) and not is_taken:
                    rules.append(str(error))
            else:
                assert is_taken, (name, value)
    assert [each for each in rules if not re.search("|".join(RULES), each)] == []


def test_kernels_that_a_card_has_are_not_denied() -> None:
    """vllm-ascend's calls and aclnnMoeTokenUnpermute.md name them on Atlas inference."""
    known = {op for op in ops.names() if "Atlas inference" in ops.load(op).unsimulated}
    backward = {"npu_rms_norm_backward", "npu_rotary_mul_backward"}
    assert known == {"npu_incre_flash_attention", "npu_moe_token_unpermute", *backward}


@pytest.mark.parametrize("op", ops.names())
def test_a_product_line_without_a_row_is_refused(op: str) -> None:
    operator = ops.load(op)
    lines = list(dict.fromkeys(line for row in operator.support for line in row.on))
    has = [line for line in ("Atlas A2", "Atlas A3", "Atlas inference") if line in lines]
    for device in map(devices.load, THREE):
        if device.series not in lines:
            is_known = device.series in operator.unsimulated
            why = "whose kernel for it is not simulated" if is_known else "which has no such kernel"
            message = (
                f"{op}: the chip must be of {listed(has)}, not {device.name} of {device.series}, "
                f"{why}; {operator.elsewhere} [361001]"
            )
            with pytest.raises(OpError, match=f"^{re.escape(message)}$"):
                operator.check(device, **OF_EACH[op])


IN_OWN_WORDS = ("acl_format", "block_size", "dtype", "query_quant_mode", "key_quant_mode",
                "value_quant_mode")  # fmt: skip
"""Whole numbers of which a rule says more, or nothing where they do not matter."""


@pytest.mark.parametrize("op", ops.names())
def test_a_float_or_a_bool_is_no_integer(op: str) -> None:
    operator, given = ops.load(op), OF_EACH[op]
    device = next(each for each in map(devices.load, THREE) if is_good(operator, each, given))
    must = {
        "int": ("an integer", "pass one without quotes or a point", (1.5, "1", True, [1])),
        "bool": ("True or False", "pass one of them", (1, None, "True")),
    }
    for each in operator.parameters:
        be, remedy, wrong = must.get(each.type, ("", "", ()))
        for value in wrong if each.name not in IN_OWN_WORDS else ():
            message = f"{op}: {each.name} must be {be}, not {value!r}; {remedy} [161002]"
            with pytest.raises(OpError, match=f"^{re.escape(message)}$"):
                operator.check(device, **given | {each.name: value})
        right = given.get(each.name, each.default)
        if each.type in must and isinstance(right, int) and each.name not in IN_OWN_WORDS:
            of_numpy = np.bool_(right) if each.type == "bool" else np.int64(right)
            operator.check(device, **given | {each.name: of_numpy})
