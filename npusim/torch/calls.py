"""Record the operations of torch that its dispatcher passes to the card.

An operation that torch decomposes earlier, such as `aten::linear`, appears as its parts.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from npusim.torch.clock import Event, clock

__all__ = ["Call", "Calls", "noted"]

INNER = tuple(
    f"{folder}{os.sep}" for folder in (Path(__file__).parents[1], Path(str(torch.__file__)).parent)
)
"""Folders of files whose frames are left out of call stacks."""


@dataclass(slots=True)
class Call:
    """One operation: `aten.add.Tensor` of tensors."""

    operator: str
    """Its name in torch's dispatcher."""
    began_us: float
    """Simulated time when it was called."""
    first: int
    """The number of events that were recorded before."""
    inputs: tuple[torch.Size, ...] = ()
    """The shapes of its tensors."""
    dtypes: tuple[str, ...] = ()
    stack: tuple[str, ...] = ()
    """The stack from which it was called, innermost frame first."""
    after: int = 0
    """The number of events that had been recorded when it returned."""

    @property
    def name(self) -> str:
        """The name in profilers: `aten::add`."""
        namespace, packet = self.operator.split(".")[:2]
        return f"{namespace}::{packet}"


@dataclass(eq=False)
class Calls:
    """The recorded calls, in order, and the events of the clock."""

    events: list[Event] = field(default_factory=list)
    has_shapes: bool = False
    has_stack: bool = False
    kept: list[Call] = field(default_factory=list)
    _is_inside: bool = False

    def start(self) -> None:
        """Start recording calls and events."""
        clock.tell(self.events)
        _keepers.append(self)

    def stop(self) -> None:
        """Stop recording."""
        clock.stop(self.events)
        _keepers[:] = [other for other in _keepers if other is not self]

    def enter(
        self, operator: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Call | None:
        """Record that a call of *operator* begins. Returns None inside another call, which it is
        part of."""
        if self._is_inside:
            return None
        tensors = list(_tensors((*args, *kwargs.values()))) if self.has_shapes else []
        call = Call(
            *(operator, clock.now_us, len(self.events)),
            inputs=tuple(tensor.shape for tensor in tensors),
            dtypes=tuple(str(tensor.dtype).removeprefix("torch.") for tensor in tensors),
            stack=_stack() if self.has_stack else (),
        )
        self.kept.append(call)
        self._is_inside = True
        return call

    def leave(self, call: Call) -> None:
        """Record that *call* has returned or failed."""
        call.after = len(self.events)
        self._is_inside = False


_keepers: list[Calls] = []
"""The active recorders of calls."""


def noted(operator: str | None, run: Callable[..., object]) -> Callable[..., object]:
    """Wrap *run* to record its calls as *operator*, or if None as the operation passed to it."""

    def call(*args: object, **kwargs: object) -> object:
        trace = torch._C._get_tracing_state()
        if trace is not None:
            # While torch.jit traces, the shapes that a kernel reads would be part of the trace.
            _trace_into(None)
            try:
                return call(*args, **kwargs)
            finally:
                _trace_into(trace)
        if not _keepers or clock.is_paused:
            return run(*args, **kwargs)
        name, given = (operator, args) if operator else (str(args[0]), args[1:])
        begun = [(keeper, keeper.enter(name, given, kwargs)) for keeper in _keepers]
        try:
            return run(*args, **kwargs)
        finally:
            for keeper, one in begun:
                if one is not None:
                    keeper.leave(one)

    return call


def _trace_into(trace: object) -> None:
    """Make *trace* that of torch.jit within a kernel, where no operation is traced itself."""
    is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(_TRACER)
    # torch changes its trace only where operations are traced.
    torch._C._dispatch_tls_set_dispatch_key_excluded(_TRACER, False)
    try:
        torch._C._set_tracing_state(trace)
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(_TRACER, is_excluded)


_TRACER = torch._C._parse_dispatch_key("Tracer")


def _tensors(values: Iterable[object]) -> Iterator[torch.Tensor]:
    """The tensors among *values*, including those in lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _stack() -> tuple[str, ...]:
    """The frames of the running script, innermost first, in the format of the vendor's profiler."""
    found, frame = [], inspect.currentframe()
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith((*INNER, "<frozen")):
            found.append(f"{code.co_filename}({frame.f_lineno}): {code.co_name}")
        frame = frame.f_back
    return tuple(found)
