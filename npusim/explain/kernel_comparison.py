"""The comparison of a C++ kernel with an operator, on the same inputs: bits, micro-ops, times.

.. code-block:: python

    add = npusim.ascendc.load("add_custom.cpp").add_custom
    found = npusim.compare(add, "mul", {"x": x, "other": y}, device="Atlas A2", scalars={"n": 64})
    found.is_equal, found.time_difference

The pointers of the kernel correspond, in order, to the operator's tensors: its inputs, then its
outputs. Other pointers, such as a workspace or a tiling, are given by name.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from traceback import extract_tb
from typing import Any

import numpy as np

import npusim
from npusim import devices
from npusim.ascendc import SourceKernel, SourceLaunch
from npusim.data.dtypes import Array, dtype_of
from npusim.data.tensor import GlobalTensor, Tensor, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.isa import Barrier, MicroOp, SetFlag, WaitFlag
from npusim.kernel.program import Program, short_line
from npusim.ops import Plan, Problem
from npusim.run.call import bind, find
from npusim.run.inputs import Value
from npusim.run.runs import Run
from npusim.run.task import allocated
from npusim.run.user_kernel import OwnKernel

__all__ = [
    "Departure",
    "Given",
    "KernelComparison",
    "OutputBits",
    "Step",
    "TilingFunction",
    "compare",
]

TilingFunction = Callable[[Problem, Plan], bytes | Array]
"""Makes an argument of a kernel from the operator's problem and plan."""
Given = Value | bytes | Mapping[str, object] | TilingFunction
"""The value of a pointer that corresponds to no tensor of the operator."""


@dataclass(frozen=True, slots=True)
class OutputBits:
    """An output of the kernel and the operator."""

    name: str
    """Its name in the operator."""
    pointer: str
    """Its name in the kernel."""
    count: int
    """The number of its elements."""
    different: int
    """The number of elements whose bits differ."""
    first: tuple[int, ...] | None
    """The index of the first of them."""
    values: tuple[float, float] | None
    """The values of the kernel and of the operator there."""


@dataclass(frozen=True, slots=True)
class Step:
    """A micro-op of the first core."""

    number: int
    kind: str
    text: str
    file: str
    line: int

    def __str__(self) -> str:
        where = f" (line {self.line} of {self.file})" if self.file else ""
        return f"#{self.number}{where} {self.text}"


@dataclass(frozen=True, slots=True)
class Departure:
    """The first place where the kinds of the micro-ops differ; None where one has ended."""

    kernel: Step | None
    operator: Step | None


@dataclass(frozen=True, eq=False)
class KernelComparison:
    """The results of a kernel and of an operator."""

    kernel: Run
    operator: Run
    outputs: tuple[OutputBits, ...]
    """One for each output of the operator that the kernel stores; none without values."""
    counts: dict[str, tuple[int, int]]
    """Kind of micro-op -> its count on the first core, for the kernel and the operator."""
    departure: Departure | None
    """Where their order diverges, if it does."""

    @property
    def is_equal(self) -> bool:
        """Whether every bit of every output is the same."""
        return not any(output.different for output in self.outputs)

    @property
    def times_us(self) -> tuple[float, float]:
        """The times of the kernel and of the operator's main kernel, with the operator's launch."""
        return self._time_us(self.kernel), self._time_us(self.operator)

    def _time_us(self, run: Run) -> float:
        device, launched = run.device, self.operator.plan
        assert run.plan is not None
        assert launched is not None
        split = run.plan.block_dim, run.plan.is_mix, launched.reads_tiling
        launch_us = device.launch_us(split, run.trace.code if run.trace else {}, run.icache)
        return launch_us + (run.cycles or 0) / device.clock_hz * 1e6

    @property
    def time_difference(self) -> float:
        """The share by which the operator is slower than the kernel; negative if it is faster."""
        kernel_us, operator_us = self.times_us
        return operator_us / kernel_us - 1


def compare(
    kernel: SourceKernel,
    operator: str | OwnKernel,
    arguments: Mapping[str, object],
    *,
    device: str | os.PathLike[str] | DeviceSpec,
    blocks: int | None = None,
    timeout_s: float | None = None,
    pointers: Mapping[str, str | Given] | None = None,
    scalars: Mapping[str, object] | None = None,
) -> KernelComparison:
    """Run *operator* with its *arguments*, and *kernel* on the same inputs.

    The kernel starts as many *blocks* as the operator by default. *pointers* gives the meaning of a
    pointer of the kernel: the name of a tensor of the operator, an array or bytes, None for a null
    pointer, or a function of the operator's problem and plan that returns bytes or an array. Other
    pointers correspond to the operator's remaining tensors in order. *scalars* are the kernel's
    other parameters, which may be such functions too. Raises ValueError for arguments that do not
    fit, and the errors of :func:`npusim.run`.
    """
    spec = devices.load(device)
    rules = find(operator)
    bound: dict[str, Any] = dict(arguments)
    run = npusim.run(operator, device=spec, **bound)
    if run.plan is None:
        raise ValueError(
            f"compare: {run.op} must launch a kernel, but has nothing to do; pass other shapes"
        )
    problem = rules.check(spec, **bind(rules, (), bound))
    launch = replace(kernel[blocks or run.plan.block_dim], timeout_s=timeout_s)
    call = _Call(launch, problem, run.plan)
    standing = call.standing(dict(pointers or {}))
    given = call.arguments(standing, dict(scalars or {}))
    own = npusim.run(launch, device=spec, **given)
    bits = tuple(
        _bits(own, run, problem.outputs[name], name, pointer)
        for pointer, name in standing.items()
        if isinstance(name, str) and name in problem.outputs
        if isinstance(run.outputs[name], np.ndarray | Tensor)
    )
    counts, departure = _micro_ops(own, run)
    return KernelComparison(own, run, bits, counts, departure)


# ---- the arguments of the kernel ----


@dataclass(frozen=True, slots=True)
class _Call:
    """A launch on the inputs of an operator."""

    launch: SourceLaunch
    problem: Problem
    plan: Plan

    def standing(self, said: dict[str, str | Given]) -> dict[str, str | Given]:
        """The meaning of each pointer; raises ValueError if it is ambiguous."""
        who, tensors = self.launch.name, self._tensors
        names = [name for name, is_pointer, _ in self.launch.parameters if is_pointer]
        for name, what in said.items():
            if name not in names:
                raise ValueError(
                    f"compare: {who} must have the pointer {name}, but has {', '.join(names)}; "
                    f"name one of these"
                )
            if isinstance(what, str) and what not in tensors:
                raise ValueError(
                    f"compare: {name} of {who} must be a tensor of the operator, one of "
                    f"{', '.join(tensors)}, not {what}; name one of these, or pass an array"
                )
        free = [name for name in names if name not in said]
        taken = [what for what in said.values() if isinstance(what, str)]
        left = [name for name in tensors if name not in taken]
        if len(free) != len(left) and free:
            raise ValueError(
                f"compare: pointers of {who} must stand for the operator's tensors one by one, but "
                f"{', '.join(free)} are left for {', '.join(left) or 'none'}; say what the others "
                f"are, for example -p {free[-1]}=zeros:64"
            )
        return {name: said[name] if name in said else left.pop(0) for name in names}

    def arguments(
        self, standing: dict[str, str | Given], scalars: dict[str, object]
    ) -> dict[str, Any]:
        """The arguments of the kernel; raises ValueError for missing or unknown scalars."""
        names = [name for name, is_pointer, _ in self.launch.parameters if not is_pointer]
        if set(names) != set(scalars):
            raise ValueError(
                f"compare: {self.launch.name} must be given its scalars, "
                f"{', '.join(names) or 'none'}, not {', '.join(scalars) or 'none'}; pass each by "
                f"its name, for example -a {names[0] if names else 'n'}=64"
            )
        tensors = self._tensors
        return {
            name: tensors[what] if isinstance(what, str) else self._made(name, what)
            for name, what in (*standing.items(), *scalars.items())
        }

    @property
    def _tensors(self) -> dict[str, Array | TensorSpec]:
        """The operator's tensors, inputs first: the bytes of each, if it has values."""
        placed = [operand.place() for operand in self.problem.inputs]
        has_values = all(tensor.data is not None for tensor in placed)
        known = {tensor.name: _bytes(tensor, tensor.nbytes) for tensor in placed}
        for tensor in allocated(self.problem, has_values):
            known.setdefault(tensor.name, _bytes(tensor, self.problem.outputs[tensor.name].nbytes))
        return known

    def _made(self, name: str, what: object) -> object:
        """The result of a function of the operator's problem and plan; other values unchanged."""
        made = self._called(name, what) if callable(what) else what
        if callable(what) and not isinstance(made, bytes | np.ndarray):
            raise ValueError(
                f"compare: {name} of {self.launch.name} must be made of bytes or an array, not "
                f"{type(made).__name__}; have its function return one"
            )
        if isinstance(made, np.ndarray) and dtype_of(made) is None:
            made = made.tobytes()  # of a structure, or of a type that no operator takes
        return np.frombuffer(made, np.uint8) if isinstance(made, bytes) else made

    def _called(self, name: str, function: Callable[..., object]) -> object:
        try:
            return function(self.problem, self.plan)
        except Exception as error:
            *_, last = extract_tb(error.__traceback__)
            raise ValueError(
                f"compare: what makes {name} of {self.launch.name} must run with the operator's "
                f"problem and plan, but line {last.lineno} of {Path(last.filename).name} raises "
                f"{type(error).__name__}: {error}; fix it"
            ) from error


def _bytes(tensor: GlobalTensor, nbytes: int) -> Array | TensorSpec:
    if tensor.data is None:
        return TensorSpec((nbytes,), "uint8")
    return tensor.data[:nbytes].copy()


# ---- results ----


def _bits(own: Run, run: Run, spec: TensorSpec, name: str, pointer: str) -> OutputBits:
    """Where output *name* of both differs; raises ValueError if the kernel does not store it."""
    stored, golden = own.outputs.get(pointer), run.outputs[name]
    if not isinstance(stored, np.ndarray):
        raise ValueError(
            f"compare: {own.op} must store {pointer}, which stands for {name} of {run.op}, but "
            f"stores {', '.join(own.outputs)}; have another pointer stand for {name}"
        )
    storage = stored.view(spec.element.numpy).reshape(spec.storage_shape)
    a = Tensor(spec, storage).numpy()
    b = golden.numpy() if isinstance(golden, Tensor) else np.asarray(golden)
    word = f"u{spec.element.numpy.itemsize}"
    differ = np.ascontiguousarray(a).view(word) != np.ascontiguousarray(b).view(word)
    different = int(differ.sum())
    first, values = None, None
    if different:
        first = tuple(int(i) for i in np.unravel_index(int(np.argmax(differ)), a.shape))
        values = a[first].item(), b[first].item()
    return OutputBits(name, pointer, a.size, different, first, values)


def _micro_ops(own: Run, run: Run) -> tuple[dict[str, tuple[int, int]], Departure | None]:
    """The count of each kind on the first cores, and where their order diverges."""
    programs = [_first_program(each) for each in (own, run)]
    kinds = [[_kind(op) for op in program.ops] for program in programs]
    ours, theirs = map(Counter, kinds)
    found = {kind: (ours[kind], theirs[kind]) for kind in ours | theirs}
    for index, (one, other) in enumerate(zip_longest(*kinds)):
        if one != other:
            return found, Departure(_step(programs[0], index), _step(programs[1], index))
    return found, None


def _first_program(run: Run) -> Program:
    assert run.trace is not None
    return min(run.trace.lanes, key=lambda lane: min(lane.cores)).program


def _kind(op: MicroOp) -> str:
    """The mnemonic without its mode; for flags and barriers, with their pipes."""
    words = str(op).split()
    if isinstance(op, SetFlag | WaitFlag | Barrier):
        return " ".join(words[:2])
    return f"{op.pipe} {words[0].partition('.')[0]}"


def _step(program: Program, index: int) -> Step | None:
    """Micro-op *index* of *program*, if it exists."""
    if index >= len(program):
        return None
    op = program.ops[index]
    ((call, begin, _),) = program.between(index, index + 1)
    lines = call.lines
    file, line = short_line(lines[index - begin]) if lines else ("", 0)
    return Step(index, _kind(op), f"{op.pipe}: {op}", file, line)
