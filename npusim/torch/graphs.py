"""Graphs of `torch.npu`: work that is captured once, and then launched whole.

What runs inside `with torch.npu.graph(g)` is noted operation by operation, on the tensors that it
was given; `g.replay()` runs the operations again on the same memory, as one launch. On a card
capture computes nothing; here it does, in no simulated time, so outputs hold the values of the
capture until the first replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from npusim.torch.clock import clock
from npusim.torch.relabel import overwrite

__all__ = [
    "NPUGraph",
    "graph",
    "graph_pool_handle",
    "is_current_stream_capturing",
    "make_graphed_callables",
]

_numbers = count(1)
_pools = count(1)


class _Step(NamedTuple):
    """One operation: what it was called with, and the tensors that it made."""

    op: Callable[..., object]
    args: tuple[object, ...]
    kwargs: dict[str, object]
    made: list[torch.Tensor]
    module: str
    """The module that it was called in, if somebody records."""
    name: str = ""
    """What it is called where *op* does not say."""


class _Capture(TorchDispatchMode):
    """Notes operations on npu tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[_Step] = []

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        named = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError(
                "torch.npu.graph: what is captured must not need a value on the host, but "
                ".item() or a condition asks for one; take it out of the graph"
            )
        result = func(*args, **named)
        if not func.is_view:
            made = _made(result, args, named)
            self.steps.append(_Step(func, args, named, made, clock.module))
        return result


_capturing: list[_Capture] = []
"""The capture under way, if there is one."""


def note(name: str, call: Callable[[], object]) -> None:
    """Let the capture under way, if there is one, make *call* when its graph is replayed."""
    for capture in _capturing:
        capture.steps.append(_Step(call, (), {}, [], clock.module, name))


class NPUGraph:
    """Work on fixed memory: captured once, launched any number of times."""

    def __init__(self, keep_graph: bool = False) -> None:  # noqa: ARG002
        self._steps: list[_Step] | None = None
        self._name = f"npu_graph_{next(_numbers)}"
        self._pool = next(_pools)
        self._capture: _Capture | None = None

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> None:  # noqa: ARG002
        """Note what runs until :meth:`capture_end`. Raises RuntimeError in another capture."""
        if _capturing:
            raise RuntimeError(
                "torch.npu.NPUGraph: one graph must be captured at a time, but another is under "
                "way; end its capture first"
            )
        self._capture = _Capture()
        _capturing.append(self._capture)
        clock.is_paused = True
        self._capture.__enter__()

    def capture_end(self) -> None:
        """End the capture. Raises RuntimeError where none has begun."""
        if self._capture is None:
            raise RuntimeError(
                "torch.npu.NPUGraph: a capture must have begun before it ends, but none has; call "
                "capture_begin() first"
            )
        self._capture.__exit__(None, None, None)
        clock.is_paused = False
        _capturing.clear()
        self._steps, self._capture = self._capture.steps, None

    def replay(self) -> None:
        """Run it, as one launch. Raises RuntimeError where nothing was captured."""
        if self._steps is None:
            raise RuntimeError(
                "torch.npu.NPUGraph: a graph must be captured before replay(), but is not; use "
                "with torch.npu.graph(g)"
            )
        with torch.no_grad(), clock.graph(self._name):
            outer = clock.module
            for step in self._steps:
                clock.module = step.module
                _again(step)
            clock.module = outer

    def reset(self) -> None:
        """Forget what was captured."""
        self._steps = None

    def pool(self) -> tuple[int, int]:
        """A name for its memory, which other graphs may share; here each tensor has its own."""
        return 0, self._pool

    def debug_dump(self, debug_path: str) -> None:
        """Write its operations, one a line, to the file *debug_path*."""
        lines = [f"{step.name or step.op}\n" for step in self._steps or ()]
        with open(debug_path, "w", encoding="utf-8") as file:
            file.writelines(lines)


def _made(
    result: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> list[torch.Tensor]:
    """The npu tensors of *result* that are none of the arguments."""
    given = {id(leaf) for leaf in tree_leaves((args, kwargs))}
    return [
        leaf
        for leaf in tree_leaves(result)
        if isinstance(leaf, torch.Tensor) and leaf.is_npu and id(leaf) not in given
    ]


def _again(step: _Step) -> None:
    """Run *step* on what lies in its tensors now; what it makes goes where it went before."""
    result = step.op(*step.args, **step.kwargs)
    if not step.made:
        return
    for old, new in zip(step.made, _made(result, step.args, step.kwargs), strict=True):
        overwrite(old, new)


class graph:  # noqa: N801
    """`with torch.npu.graph(g):` captures what runs inside into *g*."""

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


def graph_pool_handle() -> tuple[int, int]:
    """A name for memory that graphs share; here each tensor has its own."""
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
    """Each of *callables* as a graph for inputs like its *sample_args*, without gradients."""
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
