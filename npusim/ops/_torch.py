"""What `npusim.torch` registers for an operator, declared without importing torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from npusim.ops._signature import Parameter, name_of, parameters_of, renamed

INT4_PER_INT32 = 8


Size = Any
"""A size of a tensor: an int, or a symbol while torch traces."""


@dataclass(frozen=True, slots=True)
class TorchTensor:
    """A torch tensor without values; sizes may be symbols."""

    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    dtype: str
    layout: str
    """ND or FRACTAL_NZ; always ND while torch traces."""


TorchArguments = Mapping[str, Any]
"""Parameter, by the operator's name -> a TorchTensor, a list of them, the name of a dtype, or else
the value."""
Result = tuple[tuple[Size, ...], str]
"""Shape and dtype."""


class Sizes(Protocol):
    """Functions of torch for sizes that may be symbols; the module `torch` itself."""

    def broadcast_shapes(self, *shapes: Size) -> Size: ...

    def sym_max(self, a: Size, b: Size) -> Size: ...


def _never(_: TorchArguments) -> bool:
    return False


def _nothing(_: TorchArguments) -> str | None:
    return None


_GRADIENT = re.compile(r"(?P<inputs>[\w, ]+): (?P<function>\w+)\((?P<arguments>[^()]*)\)")
_FOUND = re.compile(r"grad|grads\[\d\]|result\d?")
"""Inputs of a gradient function other than the arguments of the call."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """The function of torch_npu that computes the gradients of inputs of another one.

    Raises TypeError if *text* does not have the format.
    """

    text: str
    """A line as in op-plugin's derivatives.yaml, `"self: npu_swiglu_backward(grad, self, dim)"`:
    inputs, the function that gives their gradients in that order, and its arguments. `grad` is the
    gradient of the first output that has one, `grads[1]` that of the second output, `result1` the
    second output itself."""
    outputs: tuple[int, ...] = (0,)
    """Indices of the outputs that have gradients."""
    unread_without: tuple[tuple[str, str], ...] = ()
    """Pairs of arguments: of the first only shape and type are needed if the second is None, so
    forward does not save it."""

    def __post_init__(self) -> None:
        if _GRADIENT.fullmatch(self.text) is None:
            raise TypeError(
                f'a gradient must be like "self: npu_swiglu_backward(grad, self, dim)", not '
                f"{self.text!r}; write it so"
            )

    def _part(self, name: str) -> str:
        found = _GRADIENT.fullmatch(self.text)
        assert found is not None
        return found[name]

    @property
    def function(self) -> str:
        """The function that computes the gradients."""
        return self._part("function")

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs that have gradients, by the names of the schema."""
        return tuple(self._part("inputs").split(", "))

    @property
    def arguments(self) -> tuple[str, ...]:
        """The function's arguments, by position."""
        return tuple(self._part("arguments").split(", "))

    def check(self, parameters: tuple[str, ...]) -> None:
        """Raise TypeError if it uses a name that is not in *parameters* and not set by a call."""
        named = (*self.inputs, *(each for each in self.arguments if not _FOUND.fullmatch(each)))
        named += tuple(name for pair in self.unread_without for name in pair)
        unknown = [name for name in named if name not in parameters]
        if unknown:
            raise TypeError(
                f"{self.text}: a gradient must name parameters of its function, "
                f"{', '.join(parameters)}, not {', '.join(unknown)}; name one of these"
            )


def _nothing_behind(_: TorchArguments) -> tuple[Result | int, ...]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFunction:
    """A function of torch_npu that runs the operator."""

    schema: str
    """op-plugin's schema (op_plugin_functions.yaml): a dtype is an int there, and torch also
    accepts `torch.qint8` for one."""
    aclnn: Callable[[TorchArguments], str]
    """The function of aclnn that torch_npu calls, which error messages name."""
    outputs: Callable[[TorchArguments, Sizes], tuple[Result, ...]]
    """Shapes and dtypes of the outputs, for tensors without values; other conditions of a call are
    checked when it runs."""
    behind: Callable[[TorchArguments], tuple[Result | int, ...]] = _nothing_behind
    """Return values after the outputs: numbers, and empty tensors of a shape and a dtype."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Parameter of the schema -> the operator's name, if different."""
    dtypes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Parameter that is a dtype -> names of dtypes that the operator spells differently."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Parameter -> the type that the operator accepts, if wider than torch_npu's."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Parameter -> the meaning of None, if the operator does not accept None."""
    into: tuple[str, ...] = ()
    """Parameters whose tensors receive the outputs of the same name in place."""
    absent: tuple[str, ...] = ()
    """Parameters that only chips after A3 accept: None here."""
    warns_eager: Callable[[TorchArguments], str | None] = _nothing
    """Restriction of the document on calls outside a compiled graph; None if there is none."""
    refused: Callable[[TorchArguments], str | None] = _nothing
    """The first line of torch_npu's error for arguments that it refuses itself, where others reach
    aclnn; None if it passes them on."""
    is_done: Callable[[TorchArguments], bool] = _never
    """Whether the first tensor already is the result, so that nothing runs."""
    gradient: Gradient | None = None
    """Computes the gradients of its inputs; None if it is for inference."""

    wanted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Attribute that torch_npu does not have -> inputs of the function whose gradient this one
    computes: whether the gradient of one of them is needed. A direct call computes all."""

    def __post_init__(self) -> None:
        if self.gradient is not None:
            self.gradient.check(tuple(each.name for each in parameters_of(self.schema)))

    @property
    def has_more(self) -> bool:
        """Whether it returns something behind the outputs."""
        return self.behind is not _nothing_behind

    @property
    def name(self) -> str:
        """The name of the function in the namespace `npu`."""
        return name_of(self.schema)

    @property
    def overload(self) -> str:
        """Its overload among functions of that name; empty for the one without."""
        return self.schema.partition("(")[0].partition(".")[2]

    @property
    def declared(self) -> tuple[Parameter, ...]:
        """The parameters of the schema that reach the operator, by the operator's names."""
        found = tuple(replace(each, type=self._type(each)) for each in parameters_of(self.schema))
        return renamed(found, self.names, self.absent)

    def _type(self, parameter: Parameter) -> str:
        """The operator's type of *parameter*: a dtype is an int in schemas."""
        if parameter.name in self.dtypes:
            return parameter.type.replace("int", "dtype")
        return self.types.get(parameter.name, parameter.type)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters of the schema that reach the operator, by the operator's names."""
        return tuple(each.name for each in self.declared)


def quantised(x: TorchTensor, dtype: str | None) -> Result:
    """*x* quantised to *dtype*, int8 if that is None; int4 is packed eight to an int32."""
    if dtype == "quint4x2":
        return (*x.shape[:-1], x.shape[-1] // INT4_PER_INT32), "int32"
    stored = {"qint8": "int8", "quint8": "uint8", "qint32": "int32"}
    return x.shape, "int8" if dtype is None else stored.get(dtype, dtype)


def columns_of(weight: TorchTensor) -> Size:
    """n of a `(k, n)` weight; int32 packs eight int4 along the contiguous axis."""
    columns = weight.shape[-1]
    rows, (outer, inner) = weight.shape[-2], weight.strides[-2:]
    # As in npusim.data.tensor.is_transposed; a single number fits both orders.
    is_turned = outer == 1 and inner == rows and not (rows == 1 and columns == 1)
    return columns * INT4_PER_INT32 if weight.dtype == "int32" and not is_turned else columns
