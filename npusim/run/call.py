"""Runs an operator, or a custom kernel, on a simulated chip: check, tile, build, then play."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from npusim import chip, devices, ops
from npusim.ascendc import ProgramLaunch, SourceLaunch, named, names_source
from npusim.chip import L2_STATES, Arrival, Engine, L2State, Progress, engine_named
from npusim.data.arguments import Arguments
from npusim.data.dtypes import Array
from npusim.data.errors import Code, OpError, TrapError, shown
from npusim.data.tensor import GlobalTensor, Tensor, TensorSpec, is_transposed
from npusim.devices.schema import DeviceSpec, ICache
from npusim.kernel.builder import deeper
from npusim.ops import warnings_given
from npusim.run import source_kernel, user_kernel
from npusim.run.memory_cache import CACHE
from npusim.run.options import CACHE_VARIABLE, Launching, Options
from npusim.run.repeats import key_of_call, repeated
from npusim.run.result import Call, Output, Result, without_values
from npusim.run.task import CyclesOn, Task, allocated, place
from npusim.run.views import copies_before
from npusim.trace import Trace

if TYPE_CHECKING:
    from npusim.run.disk_cache import Stored

__all__ = ["bind", "find", "play", "traps_as_errors"]


def play(
    op: str | user_kernel.OwnKernel,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    device: str | os.PathLike[str] | DeviceSpec,
    options: Options,
    progress: Progress | None = None,
) -> Result:
    """Run operator *op* on *device* with its own *args* and *kwargs*: see :func:`npusim.run`."""
    options.check(progress)
    engine, spec = engine_named(options.engine), devices.load(device)
    is_alone = not progress and options.card is None
    key = key_of_call(op, spec, args, kwargs, options, engine) if is_alone else None
    known: Result | None = None if key is None else CACHE.named(key)
    if known is not None:
        return repeated(known, spec)
    warned = warnings_given()
    found = _played(op, args, kwargs, spec, options, engine, progress)
    if warned != warnings_given():
        # A call that warned should warn again.
        return replace(found, cached_as=None)
    if key is not None and found.cached_as is not None:
        CACHE.name(key, found.cached_as, repeated(found, spec))
    return found


def _played(
    op: str | user_kernel.OwnKernel,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    spec: DeviceSpec,
    options: Options,
    engine: Engine,
    progress: Progress | None,
) -> Result:
    """A call that was not cached, or that computes values."""
    asked, operator = op, find(op)
    op, bound = operator.name, bind(operator, args, kwargs)
    with deeper(options.deeper):  # custom kernels are written in this call
        problem = _checked(operator, spec, bound, options.l2)
    with_values = options.values and all(each.array is not None for each in problem.inputs)
    arguments = _described(bound, problem)
    seen = {name: bound[name] for name in operator.value_dependent_inputs if name in bound}
    if options.copies is None:
        options = replace(options, copies=copies_before(spec, problem, bound))
    stored = _stored_in(options.cache)
    task = Task(operator, spec, problem, progress, stored, options.deeper, options.is_checked)
    plan = task.plan
    earlier = _earlier(operator, problem, spec, arguments, options) if plan else ()
    launching = _launching(task, bound, options)
    if launching is not None:
        options = replace(options, l2=launching.l2, card=None)
    icache = _icache(options.icache, options.l2)
    states: dict[str, Any] = {"l2": options.l2, "icache": icache, "timed": options.timing}
    whole = partial(Result, op=op, device=spec, arguments=arguments, **states)
    if plan is None:
        outputs = _without_kernel(operator, problem, bound, with_values)
        return whole(outputs=outputs, plan=None, trace=None)
    outputs, trace = _outcome(task, problem, options, engine, with_values)
    found: dict[str, Any] = {}
    if launching is not None and trace is not None:
        outputs = launching.ended(trace, outputs)
        found = launching.found if options.icache is None else {}
    return whole(
        **found,
        outputs=outputs,
        plan=plan,
        trace=trace,
        engine=engine if options.timing else None,
        earlier=earlier,
        is_own_kernel=isinstance(problem, user_kernel.UserProblem),
        kernel_type=task.kernel_type,
        call=Call(
            op=asked,
            operator=operator,
            device=spec,
            arguments=arguments | seen,
            options=options,
            play=play,
        ),
        cycles_on=CyclesOn(task, options.l2, options.every_core) if options.timing else None,
        cached_as=None if with_values else task.key,
    )


def _launching(task: Task, bound: Arguments, options: Options) -> Launching | None:
    """The launch of *task* on the card of *options*; None without a card."""
    if task.plan is None or options.card is None or not options.timing:
        return None
    return options.card.launch(task.kernel, task.problem, task.plan, bound)


def _stored_in(folder: str | os.PathLike[str] | Literal[False] | None) -> Stored | None:
    """The times in *folder*, or in the one that the environment names, if any."""
    if folder is False or (folder is None and not os.environ.get(CACHE_VARIABLE)):
        return None
    from npusim.run.disk_cache import stored_in  # imports what reads and writes folders

    return stored_in(folder)


def _described(bound: Arguments, problem: ops.Problem) -> Arguments:
    """*bound* without values; an array in the memory order of a transposed matrix becomes one."""
    found = {name: without_values(value) for name, value in bound.items()}
    for operand in problem.inputs:
        value = bound.get(operand.name)
        if not isinstance(value, np.ndarray):
            continue
        is_view = value.ndim > 1 and not value.flags.c_contiguous
        if operand.spec.transposed or (is_view and is_transposed(value)):
            found[operand.name] = replace(found[operand.name], transposed=True)
    return found


def _outcome(
    task: Task, problem: ops.Problem, options: Options, engine: Engine, with_values: bool
) -> tuple[dict[str, Output], Trace | None]:
    """Outputs of the kernel of *task*, specs unless *with_values*, and its times, if requested."""
    outputs: dict[str, Output] = dict(problem.outputs)
    if with_values or not options.timing:
        task.check()
    with traps_as_errors(task.kernel[0]):
        if with_values:
            assert task.plan is not None
            outputs = _computed(task, task.plan, problem, options)
        trace = task.trace(options.l2, options.every_core, engine) if options.timing else None
    return outputs, trace


def _computed(
    task: Task, plan: ops.Plan, problem: ops.Problem, options: Options
) -> dict[str, Output]:
    """The values of all outputs."""
    tensors = place(problem, plan, True)
    task.compute(tensors, chip.Model(options.cube_order, options.byte_exact))
    return _found(problem, tensors)


@contextmanager
def traps_as_errors(op: str) -> Iterator[None]:
    """Convert a trap of a kernel of *op* to an error with CANN's code."""
    try:
        yield
    except TrapError as trap:
        raise OpError(Code.AICORE_EXCEPTION, f"{op}: {trap}") from None


def _checked(
    operator: ops.Operator, spec: DeviceSpec, bound: dict[str, object], l2: L2State
) -> ops.Problem:
    """The problem for *operator* of its arguments, checked to fit the chip and *l2*."""
    problem = operator.check(spec, **bound)
    _check_l2(l2, problem)
    _check_capacity(operator.name, problem, spec)
    return problem


def _earlier(
    operator: ops.Operator,
    problem: ops.Problem,
    spec: DeviceSpec,
    arguments: dict[str, object],
    options: Options,
) -> tuple[Result, ...]:
    """Kernels launched before, for their times alone; of inputs named in the L2, their own."""
    found = []
    l2, icache = options.l2, _icache(options.icache, options.l2)
    for op, own in (*(options.copies or ()), *operator.prologue(problem, arguments)):
        state = l2
        if isinstance(l2, tuple):
            state = tuple(name for name in l2 if name in own)
        elif isinstance(l2, Mapping):
            state = {name: share for name, share in l2.items() if name in own}
        own_options = replace(options, values=False, l2=state, icache=icache, copies=())
        found.append(play(op, (), own, spec, own_options))
    return tuple(found)


def find(op: str | user_kernel.OwnKernel) -> ops.Operator:
    """The operator to run: *op* itself, the one of that name, or a custom kernel.

    A custom kernel is a function, or FILE.py:FUNCTION. Raises ValueError for an unknown
    operator, KernelError for a kernel that cannot be found.
    """
    if isinstance(op, ops.Operator):
        return op
    if isinstance(op, SourceLaunch | ProgramLaunch):
        return source_kernel.operator(op)
    if not isinstance(op, str):
        return user_kernel.operator(op) if callable(op) else ops.load(op)
    if names_source(op):
        return source_kernel.operator(named(op))
    is_in_a_file = ":" in op or op.endswith(".py")
    return user_kernel.operator(user_kernel.load(op)) if is_in_a_file else ops.load(op)


def _without_kernel(
    operator: ops.Operator, problem: ops.Problem, bound: Arguments, with_values: bool
) -> dict[str, Output]:
    """The result without a kernel, when there is nothing to do or the host does it."""
    if not with_values:
        return dict(problem.outputs)
    if problem.is_empty:
        return _found(problem, allocated(problem, True))
    result = operator.reference(**bound)
    outputs = result if isinstance(result, tuple) else (result,)
    return dict(zip(problem.outputs, outputs, strict=True))


def _check_l2(l2: L2State, problem: ops.Problem) -> None:
    if isinstance(l2, Arrival):
        return
    names = [operand.name for operand in problem.inputs]
    has_names = isinstance(l2, tuple | Mapping)
    known: Sequence[object] = names if has_names else L2_STATES
    words = tuple(l2) if has_names else (l2,)
    if not all(isinstance(word, str) and word in known for word in words):
        raise ValueError(
            f"run: l2 must be {', '.join(L2_STATES)}, or a tuple of inputs out of "
            f"{', '.join(names)}, or shares of these by name, not {shown(l2)}; use one of these"
        )
    for name, share in l2.items() if isinstance(l2, Mapping) else ():
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise ValueError(
                f"run: the share of {name} in l2 must be a number from 0 to 1, not "
                f"{shown(share)}; 1 is all of it"
            )


def _icache(icache: ICache | None, l2: L2State) -> ICache:
    """The state of the instruction caches: the given one, or else what goes with *l2*."""
    if icache is None:
        return "warm" if l2 in ("warm", "repeat") else "cold"
    if icache not in get_args(ICache):
        raise ValueError(f"run: icache must be cold or warm, not {shown(icache)}; use one of these")
    return icache


MOST_SHOWN = 300
"""Most characters of parameters that an error repeats."""


def bind(
    operator: ops.Operator, args: tuple[object, ...], kwargs: dict[str, object]
) -> dict[str, object]:
    """Parameter -> its argument in a call of *operator*; raises TypeError if they do not fit."""
    op = operator.name
    kwargs = _without_absent(operator, kwargs)
    signature = ops.signature(operator)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        bare = signature.replace(
            parameters=[p.replace(annotation=p.empty) for p in signature.parameters.values()],
            return_annotation=signature.empty,
        )
        remedy = _binding_remedy(bare, args, kwargs)
        raise TypeError(
            f"{op}: arguments must fit {op}{_in_short(bare)}, but: {error}; {remedy}"
        ) from None
    bound.apply_defaults()
    return ops.normalize(operator, dict(bound.arguments))


def _in_short(bare: Signature) -> str:
    """The parameters *bare*; only the required ones if there are many."""
    if len(str(bare)) <= MOST_SHOWN:
        return str(bare)
    needed = [name for name, each in bare.parameters.items() if each.default is each.empty]
    return f"({', '.join(needed)}, ...)"


def _binding_remedy(wanted: Signature, args: tuple[object, ...], kwargs: dict[str, object]) -> str:
    """What to change in a call whose arguments do not fit the parameters *wanted*."""
    kinds = {name: parameter.kind for name, parameter in wanted.parameters.items()}
    by_place = [name for name, kind in kinds.items() if kind is not Parameter.KEYWORD_ONLY]
    if len(args) > len(by_place):
        named = ", ".join(name for name in kinds if name not in by_place)
        rest = f"; pass {named if len(named) <= MOST_SHOWN else 'the others'} by name"
        rest = rest if named else ""
        return f"pass at most {len(by_place)} by position{rest}"
    for name in kwargs:
        if name not in kinds:
            missing = [other for other in kinds if other not in (*by_place[: len(args)], *kwargs)]
            near = get_close_matches(name, missing, n=1)
            return f"did you mean {near[0]}?" if near else f"leave {name} out"
        if name in by_place[: len(args)]:
            return f"pass {name} once"
    return "add it"


def _without_absent(operator: ops.Operator, kwargs: dict[str, object]) -> dict[str, object]:
    """*kwargs* without the parameters that only other chips have, which must be None."""
    absent = {name for function in operator.torch for name in function.absent}
    for name in sorted(absent & set(kwargs)):
        if kwargs[name] is not None:
            raise OpError(
                Code.INVALID_PARAMETER,
                f"{operator.name}: {name} must be None on the chips that are simulated, not given; "
                f"leave it out",
            )
    return {name: value for name, value in kwargs.items() if name not in absent}


def _check_capacity(op: str, problem: ops.Problem, spec: DeviceSpec) -> None:
    sizes = {operand.name: operand.spec.nbytes for operand in problem.inputs}
    sizes |= {name: output.nbytes for name, output in problem.outputs.items()}
    total, capacity = sum(sizes.values()), spec.gm.capacity_bytes
    if total > capacity:
        listed = ", ".join(f"{name} {nbytes}" for name, nbytes in sizes.items())
        raise OpError(
            Code.OUT_OF_MEMORY,
            f"{op}: its tensors must fit into the {capacity} bytes of global memory of "
            f"{spec.name}, not take {total} ({listed}); split the call",
        )


def _found(problem: ops.Problem, tensors: list[GlobalTensor]) -> dict[str, Output]:
    """The outputs, which come first among *tensors*."""
    specs = problem.outputs
    return {tensor.name: _values(tensor, specs[tensor.name]) for tensor in tensors[: len(specs)]}


def _values(tensor: GlobalTensor, spec: TensorSpec) -> Array | Tensor:
    """The output as an array, or as a Tensor if its layout is a fractal one."""
    assert tensor.data is not None
    storage = tensor.data[: spec.nbytes].view(spec.element.numpy).reshape(spec.storage_shape)
    found = Tensor(spec, storage)
    return found.numpy() if spec.layout == "ND" else found
