"""The operators of torch_npu in the namespace `npu`: each call runs on the simulated card.

Errors are those of a card, with torch_npu's first line and CANN's code, followed by npusim's text:
what must hold, what was passed, what to do. The first line has the form of published error reports.
A kernel that traps is reported at once; a card reports it only at the next synchronise. The
operators declare the functions, and the aclnn function that each of them calls.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from itertools import chain
from typing import Any, NoReturn
from warnings import warn

import torch

from npusim import ops
from npusim.data.errors import Code, DocumentWarning, OpError, callers_level
from npusim.data.tensor import Tensor, TensorSpec
from npusim.ops import TorchTensor
from npusim.run.result import Output
from npusim.torch import card, composed, format_casts, formats, hosted, kernels
from npusim.torch.backend import Define
from npusim.torch.clock import clock
from npusim.torch.distributed import operators as fused
from npusim.torch.errors import as_on_card
from npusim.torch.gradients import autograd, is_wanted
from npusim.torch.kernels import tensors_of
from npusim.torch.relabel import overwrite, to_host, to_npu, unwritten
from npusim.torch.schemas import arguments, bind, described, empty, named_tensors
from npusim.torch.values import argument, result
from npusim.torch.views import contiguous

__all__ = ["register"]


def register(define: Define) -> frozenset[str]:
    """Define every operator, and return their names in torch_npu; called once by `install`."""
    library = torch.library.Library("npu", "IMPL")
    _libraries.append(library)
    found = fused.kernels()
    for operator in map(ops.load, ops.names()):
        found += [(each, _real(operator.name, each, _schema(each))) for each in operator.torch]
    for function, real in found:
        is_cast = function.name in format_casts.CASTS
        run = format_casts.by_format(function.name, real) if is_cast else real
        _register(define, library, function, run)
    others = format_casts.register(define) | _register_composed()
    return frozenset(function.name for function, _ in found) | others


def _register_composed() -> frozenset[str]:
    """Define operators that are composed of others or run on the host, and return their names."""
    library = torch.library.Library("npu", "FRAGMENT")
    _libraries.append(library)
    for full, function in composed.declared().items():
        library.define(function.schema)
        run = _with_shapes(function.name, _schema(function), composed.COMPOSED[full])
        library.impl(full, run, "CompositeImplicitAutograd")
        library.impl(full, _refusal(function.name), "CPU")
    hosted.register(library)
    for name in hosted.declared():
        library.impl(name, _refusal(name), "CPU")
    return frozenset(
        function.name
        for functions in (composed.declared(), hosted.declared())
        for function in functions.values()
    )


def _with_shapes(
    name: str, schema: torch.FunctionSchema, function: Callable[..., object]
) -> Callable[..., object]:
    """*function* under *name*; an error of torch says the shapes of its tensors as well."""

    def run(*args: object, **kwargs: object) -> object:
        try:
            return function(*args, **kwargs)
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            is_torchs = type(error) in (IndexError, RuntimeError, TypeError, ValueError)
            if not is_torchs or f"{name}: " in str(error):
                raise
            known = described(bind(schema, args, kwargs), {})
            raise type(error)(
                f"{error}\n{name}: its tensors must fit together, not be {_shapes(known)}; pass "
                "those that its document describes"
            ) from None

    return run


def _schema(function: ops.TorchFunction) -> torch.FunctionSchema:
    return torch._C.parse_schema(f"npu::{function.schema}")


def _register(
    define: Define,
    library: torch.library.Library,
    function: ops.TorchFunction,
    real: Callable[..., object],
) -> None:
    name, schema = function.name, _schema(function)
    if name in composed.PARTS:
        real = _or_parts(name, real, composed.PARTS[name])
    define(function.schema, real=real, fake=_fake(function, schema))
    full = function.schema.partition("(")[0]
    library.impl(full, _refusal(name), "CPU")
    if not schema.is_mutable:
        found = getattr(getattr(torch.ops.npu, name), function.overload or "default")
        is_cast = name in format_casts.CASTS
        kernel = format_casts.differentiable(found) if is_cast else autograd(function, found)
        library.impl(full, kernel, "AutogradPrivateUse1")


def _or_parts(
    name: str, real: Callable[..., object], parts: Callable[..., object]
) -> Callable[..., object]:
    """Run *real*, or *parts* for calls that a card accepts and the kernel of npusim does not.

    If the parts reject the tensors as well, the error of the kernel is raised, unless the parts say
    what *name* must be given.
    """

    def either(*args: object, **kwargs: object) -> object:
        try:
            return real(*args, **kwargs)
        except OpError as error:
            if error.code is not Code.UNSUPPORTED or card.spec().series not in ops.A2_A3:
                raise
            # Its traceback would keep the tensors of all callers until a garbage collection.
            refusal = error.with_traceback(None)
            refusal.__context__ = None
        try:
            return parts(*args, **kwargs)
        except OpError as error:
            # The parts of a gradient speak of the function, and others of themselves.
            if name.startswith(str(error).rpartition("\n")[2].partition(":")[0]):
                raise
            raise refusal from None
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            raise refusal from None

    return either


_libraries: list[torch.library.Library] = []
"""Registrations live as long as their library."""


def _refusal(name: str) -> Callable[..., NoReturn]:
    """The error for CPU tensors; its first line is torch's."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise NotImplementedError(
            f"Could not run 'npu::{name}' with arguments from the 'CPU' backend.\n"
            f"{name}: its tensors must lie on the npu, not on the cpu; move them with .npu()"
        )

    return refuse


# ---- the operators as torch calls them ----


def _fake(function: ops.TorchFunction, schema: torch.FunctionSchema) -> Callable[..., object]:
    """The fake kernel, which returns empty tensors of the shapes of the outputs."""

    def fake(*args: object, **kwargs: object) -> object:
        bound = bind(schema, args, kwargs)
        _, first = next(named_tensors(bound))
        into = [bound[name] for name in function.into]
        if into and len(schema.returns) <= len(into):
            return _returned(schema, into)
        if schema.is_mutable:
            return first
        known = described(arguments(function, bound), {})
        try:
            found = function.outputs(known, torch)
            behind = _behind(function, known, first)
        except (AttributeError, IndexError, ValueError):
            # A tensor is None or has too few dimensions.
            name = function.name
            raise OpError(
                Code.INVALID_PARAMETER,
                f"{name}: its tensors must be given with the dimensions that it takes, not be "
                f"{_shapes(known)}; run it on npu, which says what is wrong",
            ) from None
        outputs = tuple(empty(first, shape, dtype) for shape, dtype in found[len(into) :])
        outputs = (*into, *outputs)
        if _returns_list(schema):
            return list(outputs)
        outputs += behind
        return outputs if len(outputs) > 1 else outputs[0]

    return fake


def _behind(
    function: ops.TorchFunction, known: Mapping[str, object], first: torch.Tensor
) -> tuple[Any, ...]:
    """The further results of a function, after its outputs, on the device of *first*."""
    # An integer that depends on symbolic sizes would fix them; traced by torch_npu it is 0
    # (op-plugin@517f2e7 _meta_registrations.py).
    each = [0 if isinstance(x, torch.SymInt) else x for x in function.behind(known)]
    return tuple(empty(first, *x) if isinstance(x, tuple) else x for x in each)


def _not_written(
    function: ops.TorchFunction, known: Mapping[str, object], first: torch.Tensor
) -> tuple[Any, ...]:
    """The same of a call: no kernel writes these results."""
    found = _behind(function, known, first)
    return tuple(unwritten(x) if isinstance(x, torch.Tensor) else x for x in found)


def _returned(schema: torch.FunctionSchema, tensors: list[torch.Tensor]) -> object:
    """The result of a function that writes to *tensors*: none or some of them, by its schema."""
    found = tuple(tensors[: len(schema.returns)])
    return found if len(found) > 1 else found[0] if found else None


def _is_tensor(returned: Any) -> bool:
    return "Tensor" in str(returned.type)


def _returns_list(schema: torch.FunctionSchema) -> bool:
    """Whether a function returns a list of tensors, even if it has only one."""
    return [str(each.type) for each in schema.returns] == ["List[Tensor]"]


def _shapes(known: Mapping[str, object]) -> str:
    shapes = {name: value.shape for name, value in known.items() if isinstance(value, TorchTensor)}
    return ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items()) or "absent"


def _real(
    op: str, function: ops.TorchFunction, schema: torch.FunctionSchema
) -> Callable[..., object]:
    """Run *op*; in place, this replaces the tensor's memory by that of the result."""

    gives_list = _returns_list(schema)
    is_repeatable = not (function.into or schema.is_mutable or function.wanted)

    def more(bound: dict[str, Any]) -> tuple[Any, ...]:
        """The results after the outputs, for a repeated call."""
        layouts = {name: _layout(value) for name, value in named_tensors(bound)}
        first = next(iter(bound.values()))
        return _not_written(function, described(arguments(function, bound), layouts), first)

    def real(*args: object, **kwargs: object) -> object:
        key = _key(function, args, kwargs) if is_repeatable else None
        if key is not None and (again := card.again(key)) is not None:
            found = _given(again.outputs, gives_list)
            if not function.has_more:
                return found
            each = found if isinstance(found, tuple) else (found,)
            return (*each, *more(bind(schema, args, kwargs)))
        bound = bind(schema, args, kwargs)
        own, first = arguments(function, bound), next(iter(bound.values()))
        own |= {name: is_wanted(inputs) for name, inputs in function.wanted.items()}
        layouts = {name: _layout(value) for name, value in named_tensors(own)}
        known = described(own, layouts)
        acl, refused = function.aclnn(known), function.refused(known)
        for name in function.absent:
            _require_none(op, acl, name, bound[name])
        if (text := function.warns_eager(known)) is not None and not clock.is_in_graph:
            warn(f"{op}: {text}", DocumentWarning, stacklevel=callers_level())
        if text is not None:
            key = None  # it is to warn again
        if function.into:
            done = _run(op, acl, own, refused=refused)
            each = done if isinstance(done, tuple) else (done,)
            into = [bound[name] for name in function.into]
            for tensor, found in zip(into, each[: len(into)], strict=True):
                overwrite(tensor, found)
            others = each[len(into) :], _not_written(function, known, first)
            return _returned(schema, [*into, *chain(*others)])
        if not function.is_done(known):
            found = _run(op, acl, own, key, gives_list, refused)
        elif schema.is_mutable:
            return first
        else:
            # Cloned on the host: a clone of an npu tensor would launch a kernel.
            found = to_npu(to_host(first).clone())
            formats.put(found, formats.get(first))
        if not schema.is_mutable:
            behind = _not_written(function, known, first)
            return (*found, *behind) if behind else found
        first.data = found
        return first

    return real


def _layout(tensor: torch.Tensor) -> str:
    return "FRACTAL_NZ" if formats.get(tensor) == formats.NZ else "ND"


def _key(
    function: ops.TorchFunction, args: tuple[object, ...], kwargs: dict[str, object]
) -> Hashable | None:
    """The key of a call of *function* on shapes alone; None if the call cannot be repeated."""
    if card.computes_values():
        return None
    tensors = tensors_of({"args": [*args], **kwargs})
    if not all(x.is_npu and (x.is_contiguous() or x.mT.is_contiguous()) for x in tensors):
        return None  # copied first, or refused
    try:
        named = tuple([(x, kernels.described(y)) for x, y in kwargs.items()])
        return function.schema, kernels.described([*args]), named
    except TypeError:
        return None


def _run(
    op: str,
    acl: str,
    arguments: kernels.Given,
    key: Hashable = None,
    gives_list: bool = False,
    refused: str | None = None,
) -> Any:
    """Run *op*, for which torch_npu calls the aclnn function *acl* unless it *refused* the call."""
    try:
        taken = {name: _taken(op, name, value) for name, value in arguments.items()}
        outputs, _ = kernels.run(op, taken, kernels.described_all(op, arguments), key)
    except OpError as error:
        raise as_on_card(error, op, acl, refused) from None
    return _given(outputs, gives_list)


def _given(outputs: Mapping[str, Output], gives_list: bool) -> Any:
    """The result of a function of torch_npu that has *outputs*."""
    found = tuple(map(_on_npu, outputs.values()))
    if gives_list:
        return list(found)
    return found if len(found) > 1 else found[0]


def _on_npu(output: Output) -> torch.Tensor:
    """*output* as a tensor on the card, in its format."""
    found = to_npu(result(output))
    is_nz = isinstance(output, Tensor | TensorSpec) and output.layout == "FRACTAL_NZ"
    if is_nz:
        formats.put(found, formats.NZ)
    return found


def _require_none(op: str, acl: str, name: str, value: object) -> None:
    """Raise an error for a parameter that only other chips support."""
    if value is not None:
        text = f"{op}: {name} must be None on the chips that are simulated, not given; leave it out"
        raise as_on_card(OpError(Code.INVALID_PARAMETER, text), op, acl)


def _taken(op: str, name: str, value: object) -> object:
    if isinstance(value, list | tuple):
        return [_taken(op, f"{name}[{place}]", part) for place, part in enumerate(value)]
    if not isinstance(value, torch.Tensor):
        return value
    if value.device.type == "cpu":
        # ATen's message for operators of one device (c10/core, structured checks).
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, "
            f"npu:0 and cpu! (when checking argument for argument {name} in method "
            f"wrapper_PrivateUse1__{op})\n"
            f"{op}: {name} must lie on the npu, not on the cpu; move it with .npu()"
        )
    tensor = formats.as_cast(value)
    if not card.computes_values() and not (tensor.is_contiguous() or tensor.mT.is_contiguous()):
        # A spec cannot describe the strides of other views.
        tensor = contiguous(tensor)
    return argument(op, name, to_host(tensor), formats.get(tensor))
