"""Graphs of `torch.npu`: work that is captured once and then replayed with a single launch.

Inside `with torch.npu.graph(g)` each operation is recorded with its tensors; `g.replay()` runs the
operations again on the same memory, as one launch. On a card, capture computes nothing. Here it
computes, in zero simulated time, so outputs hold the values of the capture until the first replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from npusim.torch import generator
from npusim.torch.clock import clock
from npusim.torch.relabel import overwrite

__all__ = [
    "NPUGraph",
    "TaskGroup",
    "graph",
    "graph_pool_handle",
    "graph_task_group_begin",
    "graph_task_group_end",
    "graph_task_update_begin",
    "graph_task_update_end",
    "is_current_stream_capturing",
    "make_graphed_callables",
]

_numbers = count(1)
_pools = count(1)


class _Step(NamedTuple):
    """One captured operation: its arguments, and the tensors that it created."""

    op: Callable[..., object]
    args: tuple[object, ...]
    kwargs: dict[str, object]
    made: list[torch.Tensor]
    module: str
    """The module that called it, if a recording is active."""
    name: str = ""
    """Its name, if *op* is not an operation of torch."""


class TaskGroup:
    """`torch_npu._C._NPUTaskGroupHandle`: operations of a graph that an update can replace."""

    def __init__(self) -> None:
        self.steps: list[_Step] = []


class _Capture(TorchDispatchMode):
    """Records operations on npu tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = [TaskGroup()]
        """The recorded groups, in order. Operations outside the script's groups have groups too."""
        self.is_in_group = False
        self.is_in_step = False
        """Whether an operation runs that is recorded as a whole, see :func:`as_one_step`."""
        self.draws = generator.Capture(self.note_call)

    def note_call(self, name: str, call: Callable[[], object]) -> None:
        self.note(_Step(call, (), {}, [], clock.module, name))

    def note(self, step: _Step) -> None:
        self.groups[-1].steps.append(step)

    def open(self, is_in_group: bool) -> None:
        """Start another group: one of the script's, or one for the operations between them."""
        self.groups.append(TaskGroup())
        self.is_in_group = is_in_group

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        named = kwargs or {}
        if not self.is_in_step and _needs_host(func, args, named):
            raise RuntimeError(
                "torch.npu.graph: what is captured must not need a value on the host, but "
                ".item(), .cpu() or a condition asks for one; take it out of the graph"
            )
        result = func(*args, **named)
        if not (self.is_in_step or func.is_view) and _is_of_card((args, named, result)):
            made = _made(result, args, named)
            self.note(_Step(func, args, named, made, clock.module))
        return result


def _is_of_card(values: object) -> bool:
    return any(isinstance(leaf, torch.Tensor) and leaf.is_npu for leaf in tree_leaves(values))


def _needs_host(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the host waits for a value, which a capturing stream has not computed."""
    aten = torch.ops.aten
    if func is aten._local_scalar_dense.default:
        return bool(args[0].is_npu)
    if func is aten._to_copy.default:
        is_blocking = not kwargs.get("non_blocking")
        return is_blocking and args[0].is_npu and str(kwargs.get("device", "npu")) == "cpu"
    if func is aten.copy_.default:
        is_blocking = not (args[2] if len(args) > 2 else kwargs.get("non_blocking"))
        return is_blocking and not args[0].is_npu and args[1].is_npu
    return False


_capturing: list[_Capture] = []
"""The capture under way, if there is one."""


def note(name: str, call: Callable[[], object]) -> None:
    """Record *call* in the capture under way, if any, so that each replay calls it."""
    for capture in _capturing:
        capture.note_call(name, call)


def is_in_step() -> bool:
    """Whether an operation runs that the capture under way records as one."""
    return bool(_capturing) and _capturing[-1].is_in_step


def as_one_step(
    name: str, call: Callable[[], tuple[torch.Tensor, ...]]
) -> tuple[torch.Tensor, ...]:
    """Run *call*, which a capture under way records as one operation, and not those in it.

    Each replay calls it again and overwrites its results, so it may read values on the host.
    """
    if not _capturing:
        return call()
    capture = _capturing[-1]
    if capture.is_in_step:
        return call()
    capture.is_in_step = True
    try:
        result = call()
    finally:
        capture.is_in_step = False
    capture.note(_Step(call, (), {}, _made(result, (), {}), clock.module, name))
    return result


class NPUGraph:
    """Work on fixed memory, captured once and replayed any number of times."""

    def __init__(self, keep_graph: bool = False) -> None:  # noqa: ARG002
        self._groups: list[TaskGroup] | None = None
        self._generators: list[generator.CardGenerator] = []
        self._name = f"npu_graph_{next(_numbers)}"
        self._pool = next(_pools)
        self._capture: _Capture | None = None

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> None:  # noqa: ARG002
        """Record operations until :meth:`capture_end`. Raises RuntimeError in another capture."""
        if _capturing:
            raise RuntimeError(
                "torch.npu.NPUGraph: one graph must be captured at a time, but another is under "
                "way; end its capture first"
            )
        self._capture = _Capture()
        _capturing.append(self._capture)
        clock.is_paused = True
        self._capture.draws.begin()
        self._capture.__enter__()

    def capture_end(self) -> None:
        """End the capture. Raises RuntimeError if none has begun."""
        if self._capture is None:
            raise RuntimeError(
                "torch.npu.NPUGraph: a capture must have begun before it ends, but none has; call "
                "capture_begin() first"
            )
        self._capture.__exit__(None, None, None)
        self._capture.draws.end()
        clock.is_paused = False
        _capturing.clear()
        self._generators = [*self._capture.draws.offsets]
        self._groups, self._capture = self._capture.groups, None

    def replay(self) -> None:
        """Run the graph as one launch. Raises RuntimeError if nothing was captured."""
        if self._groups is None:
            raise RuntimeError(
                "torch.npu.NPUGraph: a graph must be captured before replay(), but is not; use "
                "with torch.npu.graph(g)"
            )
        draws = generator.replay(self._generators)
        with torch.no_grad(), clock.graph(self._name), draws:
            outer = clock.module
            for step in self._steps():
                clock.module = step.module
                _again(step)
            clock.module = outer

    def register_generator_state(self, own: generator.CardGenerator) -> None:
        """Do nothing: a graph may draw from any generator without registration."""

    def reset(self) -> None:
        """Discard the captured operations."""
        self._groups = None

    def _steps(self) -> list[_Step]:
        return [step for group in self._groups or () for step in group.steps]

    def pool(self) -> tuple[int, int]:
        """An identifier of its memory pool. It has no effect: each tensor has separate memory."""
        return 0, self._pool

    def debug_dump(self, debug_path: str) -> None:
        """Write its operations to the file *debug_path*, one on each line."""
        lines = [f"{step.name or step.op}\n" for step in self._steps()]
        with open(debug_path, "w", encoding="utf-8") as file:
            file.writelines(lines)


def _made(
    result: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> list[torch.Tensor]:
    """The npu tensors in *result* that are not arguments."""
    given = {id(leaf) for leaf in tree_leaves((args, kwargs))}
    return [
        leaf
        for leaf in tree_leaves(result)
        if isinstance(leaf, torch.Tensor) and leaf.is_npu and id(leaf) not in given
    ]


def _again(step: _Step) -> None:
    """Run *step* on the current contents of its tensors, and overwrite its earlier outputs."""
    result = step.op(*step.args, **step.kwargs)
    if not step.made:
        return
    for old, new in zip(step.made, _made(result, step.args, step.kwargs), strict=True):
        overwrite(old, new)


class graph:  # noqa: N801
    """`with torch.npu.graph(g):` captures the operations inside into *g*."""

    def __init__(
        self,
        npu_graph: NPUGraph,
        pool: object = None,
        stream: object = None,
        capture_error_mode: str = "global",
        **_: object,
    ) -> None:
        self.npu_graph, self.capture_stream, self._pool = npu_graph, stream, pool
        self._error_mode = capture_error_mode

    def __enter__(self) -> NPUGraph:
        self.npu_graph.capture_begin(self._pool, self._error_mode)
        return self.npu_graph

    def __exit__(self, *_: object) -> None:
        self.npu_graph.capture_end()


# ---- groups of operations that change between replays ----

_updates: list[tuple[TaskGroup, _Capture]] = []
"""The update under way, if any: the group to change, and the capture of its new operations."""


def graph_task_group_begin(stream: object) -> None:  # noqa: ARG001
    """Begin a group of operations in the capture under way."""
    if not _capturing or _capturing[-1].is_in_group:
        came = "another group is open" if _capturing else "none is under way"
        raise RuntimeError(
            "torch.npu.graph_task_group_begin: it must be called in a capture and outside of other "
            f"groups, but {came}; call it within torch.npu.graph, after the end of the last group"
        )
    _capturing[-1].open(is_in_group=True)


def graph_task_group_end(stream: object) -> TaskGroup:  # noqa: ARG001
    """End the group and return it, for :func:`graph_task_update_begin`."""
    if not _capturing or not _capturing[-1].is_in_group:
        raise RuntimeError(
            "torch.npu.graph_task_group_end: a group must have begun in the capture, but none has; "
            "call graph_task_group_begin() first"
        )
    group = _capturing[-1].groups[-1]
    _capturing[-1].open(is_in_group=False)
    return group


def graph_task_update_begin(stream: object, handle: TaskGroup) -> None:  # noqa: ARG001
    """Record the operations that follow, to replace those of *handle*, in zero simulated time."""
    if _updates or _capturing:
        raise RuntimeError(
            "torch.npu.graph_task_update_begin: one group must be updated at a time and outside of "
            "captures, but another update or a capture is under way; end it first"
        )
    capture = _Capture()
    _updates.append((handle, capture))
    clock.is_paused = True
    capture.__enter__()


def graph_task_update_end(stream: object) -> None:  # noqa: ARG001
    """End the update: from now on the graph runs its operations instead of the earlier ones."""
    if not _updates:
        raise RuntimeError(
            "torch.npu.graph_task_update_end: an update must have begun before it ends, but none "
            "has; call graph_task_update_begin() first"
        )
    handle, capture = _updates.pop()
    capture.__exit__(None, None, None)
    clock.is_paused = False
    handle.steps = capture.groups[0].steps


def graph_pool_handle() -> tuple[int, int]:
    """An identifier of a new memory pool. It has no effect: each tensor has separate memory."""
    return 0, next(_pools)


def is_current_stream_capturing() -> bool:
    """Whether a capture is under way."""
    return bool(_capturing)


def make_graphed_callables(
    callables: Callable[..., object] | tuple[Callable[..., object], ...],
    sample_args: Sequence[torch.Tensor] | Sequence[Sequence[torch.Tensor]],
    num_warmup_iters: int = 3,  # noqa: ARG001
    allow_unused_input: bool = False,  # noqa: ARG001
    pool: object = None,  # noqa: ARG001
) -> object:
    """Capture each of *callables* as a graph for inputs like *sample_args*, without gradients."""
    if isinstance(callables, tuple):
        return tuple(_graphed(one, args) for one, args in zip(callables, sample_args, strict=True))
    return _graphed(callables, sample_args)


def _graphed(
    call: Callable[..., object], sample_args: Sequence[torch.Tensor]
) -> Callable[..., object]:
    own, inputs = NPUGraph(), [arg.detach().clone() for arg in sample_args]
    with torch.no_grad(), graph(own):
        outputs = call(*inputs)

    def replay(*args: torch.Tensor) -> object:
        for static, given in zip(inputs, args, strict=True):
            static.copy_(given)
        own.replay()
        return outputs

    return replay
