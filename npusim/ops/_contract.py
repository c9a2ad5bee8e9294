"""Checks of arguments shared by operators, and the messages of refusals.

A check requests each argument by its name: `contract.operand("x")`. What it may be is in the rows
of support, see :mod:`npusim.ops._support`; code is only needed for conditions between arguments.

Messages have the form *operator: what must hold, not what came; what to do*, and carry the code
that CANN returns (op-plugin and ops-nn: 161001 for a missing tensor, 161002 for a wrong one).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NoReturn

import numpy as np

from npusim.data.arguments import is_masked
from npusim.data.dtypes import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    INT8,
    INT32,
    Array,
    DType,
    dtype_of,
)
from npusim.data.errors import Code, OpError, shown
from npusim.data.tensor import Operand, Tensor, TensorSpec, is_transposed, lies_both_ways
from npusim.devices.schema import DeviceSpec
from npusim.ops._attributes import KINDS, KindError, one, value_of
from npusim.ops._remedies import dtype_remedy
from npusim.ops._signature import Parameter
from npusim.ops._support import (
    EVERYWHERE,
    MAX_RANK,
    MAX_TENSORS,
    Fact,
    Narrowing,
    Row,
    dimensions,
    dtypes_of,
    layouts_of,
    lengths_of,
    listed,
    ranks_of,
    rows_with,
    values_of,
)
from npusim.ops._warnings import warn_of_document

__all__ = ["MAX_RANK", "Contract", "listed"]

CASTABLE = (FLOAT32, FLOAT16, BFLOAT16, INT8, INT32)
"""Types that npu_format_cast accepts, on some product line."""
MAX_CAST_RANK = 6


ARGUMENT: Final = object()
"""Default that stands for the argument of that name."""


@dataclass(frozen=True, slots=True)
class Contract:
    """The checks of one operator on one device; each raises OpError unless its condition holds."""

    op: str
    spec: DeviceSpec
    names: Mapping[str, str] = field(default_factory=dict)
    """Parameter, as refusals call it -> the operator's name of it, if they differ."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of the call, by name, without gaps."""
    support: tuple[Row, ...] = ()
    """The operator's rows, on all product lines."""
    _narrowing: Narrowing = field(init=False)

    def __post_init__(self) -> None:
        rows = tuple(row for row in self.support if self.spec.series in row.on)
        object.__setattr__(self, "_narrowing", Narrowing(self.spec.series, rows, rows))

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of support that fit everything requested so far; at least one."""
        return self._narrowing.left

    def when(self, name: str) -> str:
        """What decides the types of *name*, for a refusal: ` with x of int8 on Atlas A2`."""
        return self._narrowing.when(lambda rows: dtypes_of(rows, _in_table(name)))

    def value(self, name: str) -> Any:
        """The argument called *name*, unchecked."""
        if name not in self.arguments:
            raise TypeError(
                f"{self.op}: its contract must ask for one of {', '.join(self.arguments)}, not "
                f"{name}; add it to the signature"
            )
        return self.arguments[name]

    def require_series(self, elsewhere: str, unsimulated: tuple[str, ...] = ()) -> None:
        """Refuse a product line without a row of support; *elsewhere* says what to do there.

        Those in *unsimulated* have a kernel that npusim does not simulate.
        """
        has = tuple(s for s in EVERYWHERE if any(s in row.on for row in self.support))
        is_known = self.spec.series in unsimulated
        why = "whose kernel for it is not simulated" if is_known else "which has no such kernel"
        self.require(
            self.spec.series in has or not self.support,
            f"the chip must be of {listed(has)}, not {self.spec.name} of {self.spec.series}, "
            f"{why}; {elsewhere}",
            Code.UNSUPPORTED,
        )

    def require_types(self, attributes: tuple[Parameter, ...]) -> None:
        """Refuse an argument that does not have the type of its attribute."""
        for attribute in attributes:
            try:
                value_of(attribute, self.arguments[attribute.name])
            except KindError as error:
                self.fail(str(error))

    def require_presence(self, tensors: tuple[str, ...]) -> None:
        """Check the *tensors* that were not requested: given though no row has them, or missing."""
        for name in tensors:
            if self.rows and name not in self._narrowing.names:
                self._presence(name, is_out=_is_left_out(self.arguments[name]))

    def fail(self, text: str, code: Code = Code.INVALID_PARAMETER) -> NoReturn:
        """Refuse the call; *text* gives the rule, the value and the remedy."""
        raise OpError(code, f"{self.op}: {self._in_own_names(text)}")

    def _in_own_names(self, text: str) -> str:
        for name, own in self.names.items():
            text = re.sub(rf"\b{name}\b", own, text)
        return text

    def require(self, holds: bool, text: str, code: Code = Code.INVALID_PARAMETER) -> None:
        """Refuse with *text* unless *holds*."""
        if not holds:
            self.fail(text, code)

    def require_filled(self, *operands: Operand) -> None:
        """Refuse a tensor without elements."""
        for each in operands:
            self.require(
                0 not in each.shape,
                f"{each.name} must not be empty, not of shape {each.shape}; leave the call out",
            )

    def require_shape(
        self,
        operand: Operand,
        *shapes: tuple[int, ...],
        when: str = "",
        remedy: str,
        code: Code = Code.INVALID_PARAMETER,
    ) -> None:
        """Refuse *operand* unless it has one of *shapes*; *when* is the reason for them."""
        wanted = listed(tuple(map(str, dict.fromkeys(shapes))))
        text = f"{operand.name} must have shape {wanted}{when}, not {operand.shape}; {remedy}"
        self.require(operand.shape in shapes, text, code)

    def warn(self, text: str) -> None:
        """Warn, at the line that called npusim, that the vendor's document excludes the call."""
        warn_of_document(f"{self.op}: {self._in_own_names(text)}")

    def operand(self, name: str, value: object = ARGUMENT) -> Operand:
        """A required tensor of one of its types, in ND, with at most eight dimensions.

        A view is first made contiguous by separate launches: see :mod:`npusim.run.views`. *value*
        replaces the argument, or is a part of it.
        """
        found = self._supported(name, self.value(name) if value is ARGUMENT else value)
        if not found.spec.transposed:
            return found
        return Operand(name, replace(found.spec, transposed=False), found.array)

    def matrix(self, name: str, value: object = ARGUMENT) -> Operand:
        """A required tensor of one of its types and layouts with at least two dimensions.

        An array whose last two dimensions are swapped in memory counts as transposed, see
        :func:`npusim.data.tensor.is_transposed`; a TensorSpec of a single row or column is treated
        like an array. The array of an operand in FRACTAL_NZ is its storage.
        """
        value = self.value(name) if value is ARGUMENT else value
        found = self._supported(name, value, is_matrix=True)
        if isinstance(value, np.ndarray):
            return replace(found, spec=replace(found.spec, transposed=is_transposed(value)))
        if lies_both_ways(found.spec):
            return replace(found, spec=replace(found.spec, transposed=False))
        return found

    def _require_two_dimensions(self, operand: Operand) -> None:
        self.require(
            len(operand.shape) >= 2,
            f"{operand.name} must have at least two dimensions, not {len(operand.shape)}; "
            f"reshape it",
        )

    def _supported(self, name: str, value: object, *, is_matrix: bool = False) -> Operand:
        """*value* as a tensor that a row of support accepts; narrows the rows to those that do."""
        narrowing, of = self._narrowing, _in_table(name)
        if value is not None:
            self._presence(of, is_out=False)
        found = self._tensor(name, value, dtypes_of(narrowing.left, of), lambda: self.when(name))
        element, layout, rank = found.element, found.spec.layout, len(found.shape)
        narrowing.note(name, Fact(of, "type", element))
        if is_matrix:
            self._require_two_dimensions(found)
        layouts = layouts_of(narrowing.left, of)
        if layout not in layouts:
            self._require_layout(found, layouts, self._narrowed(layouts_of, of))
        narrowing.note(name, Fact(of, "layout", layout))
        if must := narrowing.other_shape(of, found.shape):
            text = f"{name} must have shape {must}, not {found.shape}; pass one of that shape"
            self.fail(text, narrowing.left[0].operands(of).shape_code)
        least, most = ranks_of(narrowing.left, of)
        if not least <= rank <= most:
            self.fail(
                f"{name} must have {dimensions(least, most)}{self._narrowed(ranks_of, of)}, not "
                f"shape {found.shape}; reshape it"
            )
        narrowing.note(name, Fact(of, "rank", (element, layout, rank)))
        return found

    def _narrowed(self, admitted: Callable[[tuple[Row, ...], str], object], name: str) -> str:
        """What decides the result of *admitted* for *name*; empty if all rows agree."""
        now = admitted(self._narrowing.left, name)
        if all(admitted((row,), name) == now for row in self.support):
            return ""
        return self._narrowing.when(lambda rows: admitted(rows, name))

    def _presence(self, name: str, *, is_out: bool) -> None:
        """Refuse None or a tensor as *name* if no remaining row accepts it."""
        narrowing = self._narrowing
        narrowing.names.add(name)
        fact = Fact(name, "left out" if is_out else "given")
        if not rows_with(narrowing.left, fact):
            when = self._narrowed(lambda rows, _: not rows_with(rows, fact), name)
            if is_out:
                self.fail(f"{name} must be given{when}, not None; pass a tensor", Code.NULL_POINTER)
            self.fail(f"{name} must be None{when}, not given; leave it out")
        narrowing.note(name, fact)

    def _tensor(
        self, name: str, value: object, dtypes: tuple[DType, ...], when: Callable[[], str]
    ) -> Operand:
        """*value* in any layout: an array, a Tensor or a TensorSpec of one of *dtypes*."""
        self.require(
            value is not None,
            f"{name} must be given, not None; pass a tensor",
            Code.NULL_POINTER,
        )
        array: Array | None = None
        if isinstance(value, TensorSpec):
            spec = value
        elif isinstance(value, Tensor):
            spec, array = value.spec, value.numpy() if value.layout == "ND" else value.storage
        elif is_masked(value):
            self.fail(f"{name} must be an array without a mask, not a MaskedArray; fill it first")
        elif isinstance(value, np.ndarray):
            dtype = dtype_of(value)
            if dtype is None or dtype not in dtypes:
                came, shape = value.dtype, value.shape
                self.fail(
                    f"{name} must be {_listed_types(dtypes)}{when()}, not {came}; "
                    f"{dtype_remedy(self.op, name, came.name, shape, dtypes)}"
                )
            spec, array = TensorSpec(value.shape, dtype.name), value
        else:
            self.fail(
                f"{name} must be a numpy array or a TensorSpec, not {type(value).__name__}; "
                f"make it one of them"
            )
        if spec.element not in dtypes:
            self.fail(
                f"{name} must be {_listed_types(dtypes)}{when()}, not {spec.dtype}; "
                f"{dtype_remedy(self.op, name, spec.dtype, spec.shape, dtypes, spec.transposed)}"
            )
        self.require(
            len(spec.shape) <= MAX_RANK,
            f"{name} must have at most {MAX_RANK} dimensions, not {len(spec.shape)}; reshape it",
        )
        return Operand(name, spec, array)

    def _require_layout(self, operand: Operand, layouts: tuple[str, ...], when: str = "") -> None:
        layout = operand.spec.layout
        can_cast = operand.element in CASTABLE and len(operand.shape) <= MAX_CAST_RANK
        number = 2 if "ND" in layouts else 29
        remedy = f"pass it through npu_format_cast(..., {number})" if can_cast else "make it in ND"
        self.require(
            layout in layouts,
            f"{operand.name} must have layout {listed(layouts)}{when}, not {layout}; {remedy}",
        )

    def optional(self, name: str, value: object = ARGUMENT) -> Operand | None:
        """A tensor that may be None if a row of support says so."""
        value = self.value(name) if value is ARGUMENT else value
        if value is None:
            self._presence(name, is_out=True)
            return None
        return self.operand(name, value)

    def operands(self, name: str) -> tuple[Operand, ...]:
        """A list of tensors, each as for :meth:`operand`."""
        return self._list(name, self.operand)

    def matrices(self, name: str) -> tuple[Operand, ...]:
        """A list of tensors, each as for :meth:`matrix`."""
        return self._list(name, self.matrix)

    def optional_operands(self, name: str) -> tuple[Operand, ...]:
        """A list of tensors that may be None or empty; an empty tuple if it is left out."""
        if _is_left_out(self.value(name)):
            self._presence(name, is_out=True)
            return ()
        return self.operands(name)

    def _list(self, name: str, take: Callable[[str, Any], Operand]) -> tuple[Operand, ...]:
        """Each tensor of a list through *take*, at most as many as a row of support accepts."""
        found = tuple(take(own, value) for own, value in self.tensors(name))
        most = lengths_of(self.rows, name)
        if len(found) > most:
            many = "one tensor" if most == 1 else f"at most {most} tensors"
            remedy = "stack them" if most == 1 else "split the call"
            when = self._narrowed(lengths_of, name)
            self.fail(f"{name} must be {many}{when}, not {len(found)}; {remedy}")
        self._narrowing.note(name, Fact(name, "length", len(found)))
        return found

    def tensors(self, name: str) -> list[tuple[str, Any]]:
        """A list of tensors, each with its name; a single tensor is a list of one.

        In a list of several, names have an index, as in `x[1]`.
        """
        value = self.value(name)
        self.require(
            value is not None,
            f"{name} must be given, not None; pass a list of tensors",
            Code.NULL_POINTER,
        )
        if not isinstance(value, list | tuple):
            return [(name, value)]
        self.require(
            0 < len(value) <= MAX_TENSORS,
            f"{name} must be a list of 1 to {MAX_TENSORS} tensors, not of {len(value)}; "
            f"{'pass a tensor' if not value else 'split the call'}",
        )
        if len(value) == 1:
            return [(name, value[0])]
        return [(f"{name}[{place}]", one) for place, one in enumerate(value)]

    def integer(self, name: str) -> int:
        """An integer attribute, one of those in the rows of support if they list any."""
        return int(self.one_of(name, self.whole(name, self.value(name))))

    def whole(self, name: str, value: object) -> int:
        """*value* as a 64-bit integer; refusals call it *name*."""
        try:
            return int(one(name, value, KINDS["int"]))
        except KindError as error:
            self.fail(str(error))

    def axis(self, name: str, of: Operand) -> int:
        """An attribute that is a dimension of *of*, as a non-negative index."""
        rank, axis = len(of.shape), self.integer(name)
        self.require(
            -rank <= axis < rank,
            f"{name} must lie in [{-rank}, {rank - 1}] for {of.name} of shape {of.shape}, not "
            f"{axis}; pass -1 for the last dimension",
        )
        return axis % rank

    def indices(
        self,
        name: str,
        values: Array | None,
        named: range,
        what: str,
        of: str = "",
        remedy: str = "a card would read elsewhere: correct them",
    ) -> tuple[int, ...] | None:
        """*values* of the tensor called *name*, if available: each must be an index of *what*."""
        if values is None:
            return None
        for number in map(int, (values.min(), values.max()) if values.size else ()):
            self.require(
                number in named,
                f"{name} must name {what} in [{named.start}, {named.stop}){of and f' of {of}'}, "
                f"not {number}; {remedy}",
            )
        return tuple(values.ravel().tolist())

    def boolean(self, name: str) -> bool:
        """A boolean attribute, as the rows of support allow."""
        return bool(self.one_of(name, self.value(name)))

    def choice(self, name: str, choices: tuple[str, ...] | None = None) -> str:
        """An attribute with one of a few names: *choices*, or those in the rows of support."""
        value = self.value(name)
        if choices is None:
            return str(self.one_of(name, value))
        if not isinstance(value, str) or value not in choices:
            remedy = "choose one of these" if len(choices) > 1 else f"pass {choices[0]!r}"
            self.fail(f"{name} must be {listed(choices)}, not {shown(value)}; {remedy}")
        return value

    def one_of(self, name: str, value: object) -> Any:
        """*value* of attribute *name* if a row of support lists it, or if none lists values."""
        narrowing = self._narrowing
        values = values_of(narrowing.left, name)
        if values is None or not narrowing.left:
            return value
        if not any(type(value) is type(each) and value == each for each in values):
            words = listed(tuple(map(str, values)))
            when = self._narrowed(values_of, name)
            remedy = "choose one of these" if len(values) > 1 else f"pass {values[0]!r}"
            self.fail(f"{name} must be {words}{when}, not {shown(value)}; {remedy}")
        narrowing.note(name, Fact(name, "value", value))
        return value


def _listed_types(dtypes: tuple[DType, ...]) -> str:
    return listed(tuple(dtype.name for dtype in dtypes))


def _is_left_out(value: object) -> bool:
    """Whether *value*, a tensor or a list of them, is absent: an empty list counts as None."""
    return value is None or (isinstance(value, list | tuple) and not value)


def _in_table(name: str) -> str:
    """The parameter of the tensor called *name*: `x` for `x[1]`."""
    return name.partition("[")[0]
