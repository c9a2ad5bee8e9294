"""The inputs that an operator supports, as rows of a table.

A row says which types, layouts and ranks of tensors, which values of attributes and which product
lines go together. Refusals and the operator's page are derived from the rows.

    support=(
        Row(on=A2_A3, x=(FLOAT16, BFLOAT16, FLOAT32)),
        Row(on=ATLAS_INFERENCE, x=(FLOAT16, FLOAT32)),
    )

Sizes that tensors have in common have one name, as in `Operands((FLOAT16,), shape="rows columns")`
for x and `Operands((FLOAT16,), shape="columns")` for a bias.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from npusim.data.dtypes import DType
from npusim.data.errors import Code, shown
from npusim.ops._signature import Parameter

A2_A3 = ("Atlas A2", "Atlas A3")
ATLAS_INFERENCE = ("Atlas inference",)
EVERYWHERE = (*A2_A3, *ATLAS_INFERENCE)
"""All product lines, by their names in device files."""

MAX_RANK = 8
"""aclnn accepts tensors of up to eight dimensions (ops-nn, aclnn parameter checks)."""
MAX_TENSORS = 128
"""Most tensors in a list (aclnn_grouped_matmul.cpp)."""

Presence = Literal["required", "optional", "absent"]


def listed(names: tuple[str, ...], last: str = "or") -> str:
    """Names as a list in a sentence.

    >>> listed(("float32", "float16", "bfloat16"))
    'float32, float16 or bfloat16'
    """
    return f" {last} ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def dimensions(least: int, most: int) -> str:
    """A range of dimensions in words.

    >>> [dimensions(*ranks) for ranks in ((1, 8), (0, 7), (2, 2), (2, 6))]
    ['at least one dimension', 'at most 7 dimensions', 'two dimensions', '2 to 6 dimensions']
    """
    if least == most:
        return f"{_WORDS.get(most, most)} dimension{'s' * (most > 1)}"
    if most == MAX_RANK:
        return f"at least {_WORDS.get(least, least)} dimension{'s' * (least > 1)}"
    return f"{least} to {most} dimensions" if least else f"at most {most} dimensions"


_WORDS = {1: "one", 2: "two", 3: "three", 4: "four"}


@dataclass(frozen=True, slots=True)
class Operands:
    """What a tensor, or each tensor of a list, may be in a row."""

    dtypes: tuple[DType, ...] = ()
    layouts: tuple[str, ...] = ("ND",)
    ranks: tuple[int, int] = (0, MAX_RANK)
    """The fewest and the most dimensions."""
    shape: str = ""
    """Names of its sizes, as in `rows columns`: the same name is the same size in all tensors of a
    call, a number stands for itself, and `*rows` for any number of sizes."""
    shape_code: Code = Code.INVALID_PARAMETER
    """CANN's return code for another shape."""
    presence: Presence = "optional"
    """Whether it must be given, if the signature allows None."""
    most: int = MAX_TENSORS
    """Most tensors in a list."""

    def __post_init__(self) -> None:
        if self.shape.count("*") > 1:
            raise TypeError(
                f"Operands: a shape must have one name at most that stands for any number of "
                f"sizes, not {self.shape!r}; name the others one by one"
            )
        if self.shape:
            least = len(self.shape.replace("*", "").split()) - ("*" in self.shape)
            most = self.ranks[1] if "*" in self.shape else least
            object.__setattr__(self, "ranks", (max(least, self.ranks[0]), most))

    def takes(self, dtype: DType, layout: str, rank: int) -> bool:
        """Whether such a tensor is accepted."""
        least, most = self.ranks
        return dtype in self.dtypes and layout in self.layouts and least <= rank <= most


ABSENT = Operands(presence="absent")


def required(*dtypes: DType, **more: Any) -> Operands:
    """A tensor of one of *dtypes* that is required in a row, though the signature allows None."""
    return Operands(dtypes, presence="required", **more)


Entries = dict[str, Any]
"""Arguments of a :class:`Row` that several rows share."""


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Row:
    """A supported combination; rows compare by identity.

    Each tensor is an :class:`Operands`, a type or a tuple of types; an optional tensor that the row
    does not name must be None. An attribute that the row names must have one of the values in the
    tuple.
    """

    on: tuple[str, ...]
    """Product lines."""
    template: str | None
    """The kernel that accepts it, if types alone decide."""
    facts: Any
    """Data that the operator's own code attaches to the row."""
    entries: Mapping[str, Any]
    """Parameter -> an `Operands`, or the allowed values of an attribute."""

    def __init__(
        self,
        /,
        *,
        on: tuple[str, ...] = EVERYWHERE,
        template: str | None = None,
        facts: object = None,
        **entries: object,
    ) -> None:
        object.__setattr__(self, "on", on)
        object.__setattr__(self, "template", template)
        object.__setattr__(self, "facts", facts)
        found = {name: _entry(entry) for name, entry in entries.items()}
        object.__setattr__(self, "entries", found)

    def operands(self, name: str) -> Operands:
        """What the tensor called *name* may be."""
        entry = self.entries.get(name, ABSENT)
        assert isinstance(entry, Operands)
        return entry

    def values(self, name: str) -> tuple[Any, ...] | None:
        """Allowed values of the attribute called *name*; None is any."""
        entry: tuple[Any, ...] | None = self.entries.get(name)
        return entry


def _entry(entry: object) -> object:
    if isinstance(entry, DType):
        return Operands((entry,))
    if isinstance(entry, tuple) and entry and all(isinstance(each, DType) for each in entry):
        return Operands(entry)
    return entry


def alike(
    dtypes: tuple[DType, ...],
    *names: str,
    on: tuple[str, ...] = EVERYWHERE,
    template: str | None = None,
    shapes: Mapping[str, str] | None = None,
    **others: object,
) -> tuple[Row, ...]:
    """A row for each of *dtypes*, shared by all tensors of *names*; *others* are the same in all.

    *shapes* has the names of their sizes, see `Operands.shape`.

    >>> from npusim.data.dtypes import FLOAT16, FLOAT32
    >>> [row.entries["gamma"].dtypes for row in alike((FLOAT16, FLOAT32), "x", "gamma")]
    [(float16,), (float32,)]
    """
    shapes = shapes or {}
    entries = (
        {name: Operands((dtype,), shape=shapes.get(name, "")) for name in names} for dtype in dtypes
    )
    return tuple(Row(on=on, template=template, **each, **others) for each in entries)


def check_support(who: str, support: tuple[Row, ...], parameters: tuple[Parameter, ...]) -> None:
    """Raise TypeError unless the rows of operator *who* match its *parameters*."""
    if not support:
        raise TypeError(
            f"{who}: an operator must have at least one row of support, not none; say which types "
            f"of its tensors go together, as in support=(Row(x=(FLOAT16, FLOAT32)),)"
        )
    known = {each.name: each for each in parameters}
    for row in support:
        strange = [series for series in row.on if series not in EVERYWHERE]
        if strange or not row.on:
            raise TypeError(
                f"{who}: a row of support must be on {listed(EVERYWHERE)}, not on "
                f"{', '.join(map(shown, strange)) or 'none'}; name product lines"
            )
        for name, entry in row.entries.items():
            if name not in known:
                raise TypeError(
                    f"{who}: a row of support must name parameters of the operator, "
                    f"{', '.join(known)}, not {name}; correct the name"
                )
            _check_entry(who, known[name], entry)
        for each in parameters:
            needs = each.is_tensor and not each.may_be_none
            if needs and each.name not in row.entries:
                raise TypeError(
                    f"{who}: a row of support must name each tensor that must be given, but one "
                    f"lacks {each.name}; add its types"
                )


def _check_entry(who: str, parameter: Parameter, entry: object) -> None:
    holds = isinstance(entry, Operands) if parameter.is_tensor else type(entry) is tuple and entry
    if not holds:
        must = "types or Operands" if parameter.is_tensor else "a tuple of values"
        raise TypeError(
            f"{who}: a row of support must give {parameter.name} {must}, not {shown(entry)}; "
            f"correct it"
        )


class Fact(NamedTuple):
    """A property of an argument of a call."""

    parameter: str
    kind: Literal["type", "layout", "rank", "length", "given", "left out", "value"]
    value: Any = None
    """The type, ...; for a rank `(type, layout, dimensions)`, for a length that of a list."""

    def holds(self, row: Row) -> bool:
        """Whether *row* accepts it."""
        name, value = self.parameter, self.value
        match self.kind:
            case "type":
                return value in row.operands(name).dtypes
            case "layout":
                return value in row.operands(name).layouts
            case "rank":
                return row.operands(name).takes(*value)
            case "length":
                return bool(value <= row.operands(name).most)
            case "given":
                return row.operands(name).presence != "absent"
            case "left out":
                return row.operands(name).presence != "required"
        return value in (row.values(name) or (value,))

    def in_words(self, name: str) -> str:
        """A description, for a tensor called *name*: `x of float16`."""
        match self.kind:
            case "type":
                return f"{name} of {self.value}"
            case "layout":
                return f"{name} in {self.value}"
            case "rank":
                return f"{name} of {dimensions(self.value[2], self.value[2])}"
            case "length":
                return f"{self.value} tensors of {name}"
            case "given":
                return f"{name} given"
            case "left out":
                return f"no {name}"
        return f"{name}={self.value}"


@lru_cache(maxsize=4096)  # a few per tensor of each operator; every call looks them up
def rows_with(rows: tuple[Row, ...], fact: Fact) -> tuple[Row, ...]:
    """Those of *rows* that accept *fact*."""
    return tuple(row for row in rows if fact.holds(row))


@dataclass(slots=True)
class Narrowing:
    """The rows of support that still match a call, while its arguments are checked one by one."""

    series: str
    rows: tuple[Row, ...]
    """The rows of the product line."""
    left: tuple[Row, ...]
    """The rows that accept all arguments checked so far."""
    seen: list[tuple[str, Fact]] = field(default_factory=list)
    """The facts that narrowed them, and the name of the argument: `x[1]` in a list."""
    names: set[str] = field(default_factory=set)
    """Names of the arguments checked so far."""
    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The sizes of tensors, by name: one, or several for `*rows`."""
    origins: dict[str, str] = field(default_factory=dict)
    """The tensor in which each of these names first occurred."""

    def note(self, name: str, fact: Fact) -> None:
        """Keep the rows that accept *fact* about the argument called *name*."""
        left = rows_with(self.left, fact)
        if len(left) < len(self.left):
            self.seen.append((name, fact))
            self.left = left

    def other_shape(self, name: str, shape: tuple[int, ...]) -> str | None:
        """The required shape of the tensor called *name*, for a refusal; None if *shape* fits."""
        words = self.left[0].operands(name).shape.split()
        if not words:
            return None
        known = self.sizes | {word: (int(word),) for word in words if word.isdigit()}
        found = _by_name(words, shape)
        if found and all(known.get(word, size) == size for word, size in found.items()):
            self.sizes |= found
            self.origins = dict.fromkeys(words, name) | self.origins
            return None
        must = [str(size) for word in words for size in known.get(word, (word,))]
        text = f"({', '.join(must)}{',' * (len(must) == 1)})"
        like = dict.fromkeys(self.origins[word] for word in words if word in self.sizes)
        return f"{text} like {listed(tuple(like), 'and')}" if like else text

    def when(self, admitted: Callable[[tuple[Row, ...]], object]) -> str:
        """What narrows *admitted*, as `with x of float16 on Atlas A2`, for a refusal.

        It names the fewest of the arguments checked that explain it, early ones first.
        """
        now = _unordered(admitted(self.left))
        causes = list(self.seen)
        for each in reversed(self.seen):
            others = [other for other in causes if other is not each]
            if _unordered(admitted(self._left(others))) == now:
                causes = others
        words = tuple(fact.in_words(name) for name, fact in causes)
        condition = f" with {listed(words, 'and')}" if words else ""
        return f"{condition} on {self.series}"

    def _left(self, seen: list[tuple[str, Fact]]) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if all(fact.holds(row) for _, fact in seen))


def _by_name(words: list[str], shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """The sizes in *shape*: one per name, several for `*rows`; empty if they do not match."""
    many, found, at = len(shape) - len(words) + 1, {}, 0
    if many < 0 or (many != 1 and not any(word.startswith("*") for word in words)):
        return {}
    for word in words:
        end = at + (many if word.startswith("*") else 1)
        found[word], at = shape[at:end], end
    return found


def _unordered(found: Any) -> object:
    return frozenset(found) if isinstance(found, tuple) else found


# ---- allowed values, over several rows ----


@lru_cache(maxsize=4096)
def dtypes_of(rows: tuple[Row, ...], name: str) -> tuple[DType, ...]:
    """The types that the tensor called *name* may have."""
    return tuple(dict.fromkeys(each for row in rows for each in row.operands(name).dtypes))


@lru_cache(maxsize=4096)
def layouts_of(rows: tuple[Row, ...], name: str) -> tuple[str, ...]:
    """The layouts that the tensor called *name* may have."""
    entries = (row.operands(name) for row in rows)
    return tuple(dict.fromkeys(each for entry in entries for each in entry.layouts))


@lru_cache(maxsize=4096)
def ranks_of(rows: tuple[Row, ...], name: str) -> tuple[int, int]:
    """The fewest and the most dimensions that the tensor called *name* may have."""
    ranks = [row.operands(name).ranks for row in rows]
    return min(least for least, _ in ranks), max(most for _, most in ranks)


def lengths_of(rows: tuple[Row, ...], name: str) -> int:
    """The most tensors that the list called *name* may have."""
    return max(row.operands(name).most for row in rows)


@lru_cache(maxsize=4096)
def values_of(rows: tuple[Row, ...], name: str) -> tuple[object, ...] | None:
    """Allowed values of the attribute called *name*; None is any."""
    found: list[Any] = []
    for row in rows:
        values = row.values(name)
        if values is None:
            return None
        found += [value for value in values if value not in found]
    return tuple(found)
