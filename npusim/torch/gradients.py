"""Backward through operators: by the gradient operator of the card that an operator declares.

Operators without one are for inference only, and backward through them raises an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from npusim.ops import TorchFunction
from npusim.ops._torch import Gradient
from npusim.torch.schemas import bind, named_tensors

__all__ = ["autograd", "is_wanted"]


def autograd(function: TorchFunction, op: torch._ops.OpOverload) -> Callable[..., object]:
    """The autograd kernel of *op*, which runs *function*."""
    if function.gradient is None:
        return _inference_only(function.name, op)
    differentiable = _Differentiable(op, function.gradient)
    schema = op._schema

    def kernel(*args: object, **kwargs: object) -> object:
        bound = bind(schema, args, kwargs)
        needing = [name for name, x in named_tensors(bound) if x.requires_grad]
        if not needing or not torch.is_grad_enabled():
            return differentiable.run(bound.values())
        differentiable.require(needing)
        return _Recorded.apply(differentiable, *bound.values())

    return kernel


_wanted: list[frozenset[str]] = []
"""The inputs whose gradients the running backward pass needs, innermost last."""


def is_wanted(inputs: Iterable[str]) -> bool:
    """Whether backward needs the gradient of one of *inputs*; True outside of backward."""
    return not _wanted or not _wanted[-1].isdisjoint(inputs)


@dataclass(frozen=True, slots=True)
class _Differentiable:
    """An operator whose gradients another operator computes."""

    op: torch._ops.OpOverload
    gradient: Gradient

    def run(self, values: Iterable[object]) -> object:
        """The operator itself, given *values* in the order of its schema."""
        with torch._C._AutoDispatchBelowAutograd():
            return _called(self.op, values)

    def require(self, names: Iterable[str]) -> None:
        """Raise NotImplementedError if an input in *names* has no gradient."""
        for name in names:
            if name not in self.gradient.inputs:
                full = self.op._schema.name.partition("::")[2]
                raise NotImplementedError(
                    f"the derivative for '{name}' of '{full}' is not implemented.\n"
                    f"{full}: a tensor that needs a gradient must be "
                    f"{', '.join(self.gradient.inputs)}, not {name}; detach it"
                )

    def backward(
        self, known: Mapping[str, object], grads: Sequence[torch.Tensor | None]
    ) -> dict[str, object]:
        """Compute the gradients of inputs, by name, from *grads*, those of the outputs.

        *known* has the arguments and results of forward, by name.
        """
        first = grads[self.gradient.outputs[0]]
        known = {**known, "grad": first, **{f"grads[{i}]": x for i, x in enumerate(grads)}}
        op = getattr(torch.ops.npu, self.gradient.function).default
        found = _called(op, [known[name] for name in self.gradient.arguments])
        each = found if isinstance(found, tuple | list) else (found,)
        return dict(zip(self.gradient.inputs, each, strict=True))


def _called(op: torch._ops.OpOverload, values: Iterable[object]) -> object:
    """Call *op* with *values*, which are in the order of its schema."""
    found = list(zip(op._schema.arguments, values, strict=True))
    args = [value for each, value in found if not each.kwarg_only]
    return op(*args, **{each.name: value for each, value in found if each.kwarg_only})


class _Recorded(torch.autograd.Function):
    """A call of an operator that saves the tensors and values that its gradient needs."""

    @staticmethod
    def forward(context: Any, differentiable: _Differentiable, *values: object) -> object:
        gradient = differentiable.gradient
        context.differentiable = differentiable
        context.names = [each.name for each in differentiable.op._schema.arguments]
        known = dict(zip(context.names, values, strict=True))
        outputs = differentiable.run(values)
        each = outputs if isinstance(outputs, tuple) else (outputs,)
        known |= {"result": each[0], **{f"result{i}": output for i, output in enumerate(each)}}
        asked = {name: known[name] for name in gradient.arguments if name in known}
        unread = {name for name, other in gradient.unread_without if known[other] is None}
        context.unread = {name: _form(asked.pop(name)) for name in unread}
        tensors = {name: x for name, x in asked.items() if isinstance(x, torch.Tensor)}
        context.tensors = tuple(tensors)
        context.others = {name: value for name, value in asked.items() if name not in tensors}
        context.save_for_backward(*tensors.values())
        others = [output for place, output in enumerate(each) if place not in gradient.outputs]
        context.mark_non_differentiable(*(x for x in others if isinstance(x, torch.Tensor)))
        # backward makes zeros only for the gradients that the operator needs.
        context.set_materialize_grads(False)
        context.forms = {place: _form(each[place]) for place in gradient.outputs}
        return outputs

    @staticmethod
    def backward(context: Any, *given: torch.Tensor | None) -> tuple[object, ...]:
        grads = [*given]
        for place, (shape, dtype, device) in context.forms.items():
            if grads[place] is None:
                grads[place] = torch.zeros(shape, dtype=dtype, device=device)
        known = context.others | dict(zip(context.tensors, context.saved_tensors, strict=True))
        for name, (shape, dtype, device) in context.unread.items():
            known[name] = torch.empty(shape, dtype=dtype, device=device)
        needed = zip(context.names, context.needs_input_grad[1:], strict=True)
        wanted = frozenset(name for name, is_needed in needed if is_needed)
        _wanted.append(wanted)
        try:
            found = context.differentiable.backward(known, grads)
        finally:
            _wanted.pop()
        return None, *(found[name] if name in wanted else None for name in context.names)


def _form(x: torch.Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return x.shape, x.dtype, x.device


class _NoBackward(torch.autograd.Function):
    """An output whose derivative by its inputs is not implemented: backward raises an error."""

    @staticmethod
    def forward(
        context: torch.autograd.function.FunctionCtx,
        name: str,
        output: torch.Tensor,
        *_: torch.Tensor,
    ) -> torch.Tensor:
        context.name = name
        return output

    @staticmethod
    def backward(context: torch.autograd.function.FunctionCtx, *_: torch.Tensor) -> NoReturn:
        name = context.name
        raise NotImplementedError(
            f"the derivative for '{name}' is not implemented.\n"
            f"{name}: no gradient must go through it, since it has none here; "
            f"call it under torch.no_grad(), or detach its tensors"
        )


def _inference_only(name: str, op: torch._ops.OpOverload) -> Callable[..., object]:
    """The autograd kernel of *op*: backward through its floating-point outputs raises an error."""

    def kernel(*args: object, **kwargs: object) -> object:
        with torch._C._AutoDispatchBelowAutograd():
            outputs = op(*args, **kwargs)
        if not torch.is_grad_enabled():
            return outputs
        given = dict(enumerate((*args, *kwargs.values())))
        inputs = [x for _, x in named_tensors(given) if x.requires_grad]
        if not inputs:
            return outputs
        if isinstance(outputs, torch.Tensor):
            return _refusing(name, outputs, inputs)
        refusing = (_refusing(name, output, inputs) for output in outputs)
        return list(refusing) if isinstance(outputs, list) else tuple(refusing)

    return kernel


def _refusing(name: str, output: torch.Tensor, inputs: Iterable[torch.Tensor]) -> torch.Tensor:
    if not isinstance(output, torch.Tensor) or not output.is_floating_point():
        return output
    refusing: torch.Tensor = _NoBackward.apply(name, output, *inputs)
    return refusing
