"""What `npusim.torch` registers for an operator, declared without torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from npusim.ops._signature import Parameter, name_of, parameters_of, renamed

INT4_PER_INT32 = 8


Size = Any
"""A size of a tensor: an int, or a symbol of torch while it traces."""


@dataclass(frozen=True, slots=True)
class TorchTensor:
    """A tensor of torch without its values; sizes may be torch's symbols."""

    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    dtype: str
    layout: str
    """ND or FRACTAL_NZ; ND where torch only traces."""


TorchArguments = Mapping[str, Any]
"""Parameter, by the operator's name -> a TorchTensor, a list of them, the name of a dtype, else the
value."""
Result = tuple[tuple[Size, ...], str]
"""Shape and dtype."""


class Sizes(Protocol):
    """What torch offers for sizes that may be symbols; the module `torch` itself."""

    def broadcast_shapes(self, *shapes: Size) -> Size: ...

    def sym_max(self, a: Size, b: Size) -> Size: ...


def _never(_: TorchArguments) -> bool:
    return False


def _nothing(_: TorchArguments) -> str | None:
    return None


_GRADIENT = re.compile(r"(?P<inputs>[\w, ]+): (?P<function>\w+)\((?P<arguments>[^()]*)\)")
_FOUND = re.compile(r"grad|grads\[\d\]|result\d?")
"""What a gradient is found from besides the arguments of the call."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """The function of torch_npu that finds the gradients of inputs of another one.

    Raises TypeError where *text* is no such line.
    """

    text: str
    """A line such as those of op-plugin's derivatives.yaml, `"self: npu_swiglu_backward(grad,
    self, dim)"`: inputs, the function that gives their gradients in that order, and what it is
    given. `grad` is the gradient of the first output that has one, `grads[1]` that of the second
    output, `result1` the second output itself."""
    outputs: tuple[int, ...] = (0,)
    """Places of the outputs that have gradients."""

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
        """The function that finds the gradients."""
        return self._part("function")

    @property
    def inputs(self) -> tuple[str, ...]:
        """What they are the gradients of, by the names of the schema."""
        return tuple(self._part("inputs").split(", "))

    @property
    def arguments(self) -> tuple[str, ...]:
        """What the function is given, by position."""
        return tuple(self._part("arguments").split(", "))

    def check(self, parameters: tuple[str, ...]) -> None:
        """Raise TypeError where it names what is none of *parameters*, nor found from a call."""
        named = (*self.inputs, *(each for each in self.arguments if not _FOUND.fullmatch(each)))
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
    """op-plugin's (op_plugin_functions.yaml): a dtype is an int there, and torch takes
    `torch.qint8` for one as well."""
    aclnn: Callable[[TorchArguments], str]
    """The function of aclnn that torch_npu calls, which errors name."""
    outputs: Callable[[TorchArguments, Sizes], tuple[Result, ...]]
    """Shapes and dtypes of what comes out, for tensors without values; what else a call must
    fulfil is checked when it runs."""
    behind: Callable[[TorchArguments], tuple[Result | int, ...]] = _nothing_behind
    """What is returned behind the outputs: numbers, and empty tensors of a shape and a dtype."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Parameter of the schema -> the operator's, where it is another."""
    dtypes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Parameter that is a dtype -> names of dtypes that the operator spells otherwise."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Parameter -> what the operator takes for it, where that is more than torch_npu does."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Parameter -> what None stands for, where the operator does not take None."""
    into: tuple[str, ...] = ()
    """Parameters whose tensors take the outputs of their names, where they lie: the kernel writes
    to them in place."""
    absent: tuple[str, ...] = ()
    """Parameters that only chips after A3 take: None here."""
    warns_eager: Callable[[TorchArguments], str | None] = _nothing
    """What the document says against a call outside of a compiled graph; None if nothing."""
    is_done: Callable[[TorchArguments], bool] = _never
    """Whether the first tensor is the result already, so that nothing runs."""
    gradient: Gradient | None = None
    """What finds the gradients of its inputs; None where it is for inference."""

    wanted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Attribute that torch_npu does not have -> inputs of the function whose gradient this one
    finds: whether that of one of them is wanted. Called by itself, it finds all."""

    def __post_init__(self) -> None:
        if self.gradient is not None:
            self.gradient.check(tuple(each.name for each in parameters_of(self.schema)))

    @property
    def name(self) -> str:
        """The name of the function in the namespace `npu`."""
        return name_of(self.schema)

    @property
    def overload(self) -> str:
        """Which of the functions of that name it is; empty for the one without a name."""
        return self.schema.partition("(")[0].partition(".")[2]

    @property
    def declared(self) -> tuple[Parameter, ...]:
        """The parameters of the schema that reach the operator, by the operator's names."""
        found = tuple(replace(each, type=self._type(each)) for each in parameters_of(self.schema))
        return renamed(found, self.names, self.absent)

    def _type(self, parameter: Parameter) -> str:
        """The type of *parameter* as the operator has it: a dtype is an int in schemas."""
        if parameter.name in self.dtypes:
            return parameter.type.replace("int", "dtype")
        return self.types.get(parameter.name, parameter.type)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Those of the schema that reach the operator, by the operator's names."""
        return tuple(each.name for each in self.declared)


def quantised(x: TorchTensor, dtype: str | None) -> Result:
    """*x* with its numbers as *dtype*, int8 if that is None: int4 packed eight to an int32."""
    if dtype == "quint4x2":
        return (*x.shape[:-1], x.shape[-1] // INT4_PER_INT32), "int32"
    stored = {"qint8": "int8", "quint8": "uint8", "qint32": "int32"}
    return x.shape, "int8" if dtype is None else stored.get(dtype, dtype)


def columns_of(weight: TorchTensor) -> Size:
    """n of a `(k, n)` weight; int32 packs eight int4 along the contiguous axis."""
    columns = weight.shape[-1]
    rows, (outer, inner) = weight.shape[-2], weight.strides[-2:]
    # As npusim.data.tensor.is_transposed; a single number lies both ways.
    is_turned = outer == 1 and inner == rows and not (rows == 1 and columns == 1)
    return columns * INT4_PER_INT32 if weight.dtype == "int32" and not is_turned else columns
