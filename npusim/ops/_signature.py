"""The parameters of an operator, from the schema of its function in torch_npu.

A schema is a line such as those of op_plugin_functions.yaml:

    npu_swiglu(Tensor self, int dim=-1) -> Tensor

Operators that only the simulator has are described the same way. Their types may be alternatives,
as in `Tensor|float other`.
"""

from __future__ import annotations

import inspect
from ast import literal_eval
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

NO_DEFAULT = inspect.Parameter.empty
"""Default of a parameter that is required."""

PYTHON_TYPES = {
    "Tensor": "Array",
    "Tensor[]": "Sequence[Array]",
    "SymInt": "int",
    "int[]": "Sequence[int]",
    "SymInt[]": "Sequence[int]",
    "bool[2]": "Sequence[bool]",
    "Scalar": "float",
    "dtype": "str",
}
"""Types in schemas -> Python types, where their names differ."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of an operator."""

    name: str
    type: str
    """Its type in the schema: `Tensor`, `Tensor?`, `Tensor[]`, `int`, `str?`, ...; `dtype` where
    torch_npu has an int that denotes one."""
    default: object = NO_DEFAULT
    by_name: bool = False
    """Whether it is keyword-only."""

    @property
    def is_tensor(self) -> bool:
        """Whether it takes a tensor or a list of tensors."""
        return self.type.startswith("Tensor")

    @property
    def is_list(self) -> bool:
        """Whether it takes a list of tensors."""
        return self.type.startswith("Tensor[]")

    @property
    def may_be_none(self) -> bool:
        """Whether it accepts None."""
        return self.type.endswith("?")

    @property
    def words(self) -> tuple[str, ...]:
        """The types of it or its elements: `("Tensor", "float")` for `Tensor|float`."""
        return tuple(word.partition("[")[0] for word in self.type.removesuffix("?").split("|"))

    @property
    def is_sequence(self) -> bool:
        """Whether it takes a list."""
        return "[" in self.type

    @property
    def length(self) -> int | None:
        """Required length of a list, as in `bool[2]`; None is any."""
        inner = self.type.partition("[")[2].partition("]")[0]
        return int(inner) if inner else None

    @property
    def annotation(self) -> str:
        """Its type in Python syntax: `Array | None` for `Tensor?`."""
        words = [PYTHON_TYPES.get(word, word) for word in self.type.removesuffix("?").split("|")]
        return " | ".join([*words, "None"] if self.may_be_none else words)

    @property
    def in_python(self) -> inspect.Parameter:
        """The same for `inspect`."""
        kind = inspect.Parameter.KEYWORD_ONLY if self.by_name else _BY_PLACE
        return inspect.Parameter(self.name, kind, default=self.default, annotation=self.annotation)


_BY_PLACE = inspect.Parameter.POSITIONAL_OR_KEYWORD


def name_of(schema: str) -> str:
    """The function's name in *schema*, without its overload.

    >>> name_of("npu_grouped_matmul.List(Tensor[] x) -> Tensor[]")
    'npu_grouped_matmul'
    """
    return schema.partition("(")[0].partition(".")[0]


@lru_cache(maxsize=512)  # a few for each operator
def parameters_of(schema: str) -> tuple[Parameter, ...]:
    """The parameters of *schema*, or of a list of parameters without a function around it.

    >>> [each.name for each in parameters_of("f(Tensor(a!) x, *, int? dim=None) -> Tensor(a!)")]
    ['x', 'dim']
    """
    inner = schema.partition("(")[2].rpartition(") ->")[0] if ") ->" in schema else schema
    found: list[Parameter] = []
    by_name = False
    for part in filter(None, inner.split(", ")):
        if part == "*":
            by_name = True
            continue
        declared, equals, default = part.partition("=")
        kind, _, name = declared.rpartition(" ")
        value = _value(default) if equals else NO_DEFAULT
        found.append(Parameter(name, _without_alias(kind), value, by_name))
    return tuple(found)


def _without_alias(kind: str) -> str:
    """*kind* without the mark of a tensor that is written to: `Tensor` for `Tensor(a!)`."""
    head, bracket, rest = kind.partition("(")
    return head + rest.partition(")")[2] if bracket else kind


def _value(text: str) -> object:
    """A default; a list becomes a tuple, which is immutable."""
    value = literal_eval(text)
    return tuple(value) if isinstance(value, list) else value


def of_python(declared: inspect.Parameter) -> Parameter:
    """A parameter of a Python function, with its annotation as a schema type.

    One without an annotation or a default is a tensor.
    """
    annotation = declared.annotation
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    if annotation is declared.empty:
        text = "Array" if declared.default is declared.empty else ""
    may_be_none = "?" if "None" in text else ""
    if "Array" in text or "TensorSpec" in text:
        kind = "Tensor[]" if "Sequence[" in text else "Tensor"
    else:
        kind = "|".join(word for word in text.split(" | ") if word != "None")
    by_name = declared.kind is declared.KEYWORD_ONLY
    return Parameter(declared.name, kind + may_be_none, declared.default, by_name)


def renamed(
    parameters: tuple[Parameter, ...], names: Mapping[str, str], absent: tuple[str, ...]
) -> tuple[Parameter, ...]:
    """*parameters* with other *names*, without those that are *absent*."""
    kept = (each for each in parameters if each.name not in absent)
    return tuple(replace(each, name=names.get(each.name, each.name)) for each in kept)


def python_signature(parameters: tuple[Parameter, ...]) -> inspect.Signature:
    """*parameters* as a signature of `inspect`."""
    return inspect.Signature([each.in_python for each in parameters])
