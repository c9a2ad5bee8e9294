"""A call that is made repeatedly: everything except the values is computed once.

    again = prepared("mul", spec, {"x": x, "other": y})      # as npusim.run, for its time alone
    again.run.time_us
    again.outputs({"x": other_x, "other": other_y})          # the values of tensors of those shapes

Arguments, contract, tiling and times of a call depend on shapes, types and attributes, and on the
values of no tensors but the `value_dependent_inputs` of the operator. So a caller whose calls
differ in nothing else, such as torch, can avoid all of that. Micro-ops compute the values, as in
any run. Values that the contract reads are checked again whenever it would find out something
else: see `contract_reads`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npusim import chip, ops
from npusim.data.dtypes import INT4, Array
from npusim.data.tensor import GlobalTensor, Operand, Tensor, allocated_bytes
from npusim.devices.schema import DeviceSpec
from npusim.run.call import bind, find, play, traps_as_errors
from npusim.run.options import Options
from npusim.run.result import Result
from npusim.run.task import CyclesOn, Task
from npusim.run.views import by_operand
from npusim.values.buffers import UNWRITTEN

__all__ = ["Prepared", "prepared", "time_key"]

AtOnce = Callable[[ops.Given, Any, Any], Array | tuple[Array, ...] | None]
Bytes = NDArray[np.uint8]
MOST_CHECKED = 256
"""Findings of a contract that a prepared call remembers: those of the layers of a model."""


class Prepared:
    """The data shared by calls of the same shapes, types and attributes, and of the same values
    where the kernel of the operator depends on them."""

    def __init__(
        self,
        run: Result,
        task: Task,
        problem: ops.Problem,
        operator: ops.Operator,
        bound: Mapping[str, object],
    ) -> None:
        self.run = run
        """The run of each of them, with outputs without values."""
        self._at_once = operator.at_once if _has_arrays_only(bound) else None
        self._operator = operator
        self._is_shared = operator.time_key is not None
        """Whether it may make calls whose programs are not those of its task."""
        lists = {name: x for name, x in bound.items() if isinstance(x, list)}
        self._lists = {name: len(x) for name, x in lists.items() if x and _is_tensor(x[0])}
        of_a_call = {name for name in bound if _is_tensor(bound[name])} | {*self._lists}
        self._bound = {name: None if name in of_a_call else x for name, x in bound.items()}
        """Arguments by name, without the tensors of one call."""
        self._task = task
        self._replay = None if self._at_once else task.replay()
        self._specs = {operand.name: operand.spec for operand in problem.inputs}
        given = by_operand(bound)
        self._made = {x.name for x in problem.inputs if not _is_given(x, given)}
        """Operands that the contract makes, from attributes and from values that it reads."""
        self._checked = {operator.found(bound): self._placed(problem)}
        """What the contract finds out from values -> the operands that it makes."""
        self._as_they_lie = {
            name
            for name, spec in self._specs.items()
            if spec.layout == "ND" and not spec.transposed and spec.element is not INT4
        }
        """Operands whose contiguous arrays are their bytes."""
        self._workspaces = run.plan.workspaces if run.plan else {}
        self._outputs = [
            (name, spec, allocated_bytes(spec.nbytes), slice(0, spec.nbytes))
            for name, spec in problem.outputs.items()
        ]

    @property
    def nbytes(self) -> int:
        """Approximate memory that it holds."""
        own = self._replay.nbytes if self._replay else 0
        return own + self._task.nbytes(self.run.trace)

    def of_values(self, arguments: dict[str, object]) -> Prepared | None:
        """Prepare *arguments* that differ in the values on which the kernel depends, and in no
        more. Their programs are not checked. None if the call warns, or launches other kernels."""
        warned = ops.warnings_given()
        options = Options(values=False, is_checked=False)
        run = play(self._operator, (), arguments, self.run.device, options)
        is_alike = len(run.earlier) == len(self.run.earlier) and run.outputs == self.run.outputs
        is_silent = warned == ops.warnings_given()
        if not (is_alike and is_silent and isinstance(run.cycles_on, CyclesOn)):
            return None
        again = copy(self)
        again.run, again._task = run, run.cycles_on.task
        again._replay = None if again._at_once else again._task.replay()
        if self._made or self._operator.contract_reads:
            # What the contract found out may depend on these values, too.
            again._checked = {}
        return again

    def outputs(self, tensors: Mapping[str, Array | Tensor]) -> dict[str, Array]:
        """The outputs for *tensors*, by operand; shapes and types are not checked.

        Raises OpError if the contract refuses values that it reads.
        """
        arguments = self._arguments(tensors)
        made = self._check(arguments)
        if self._at_once is not None:
            found = self._whole(self._at_once, arguments)
            if found is not None:
                return found
            assert not self._is_shared, f"at_once of {self._operator.name} must apply to every call"
            self._at_once, self._replay = None, self._task.replay()
        data = {**made}
        for name, tensor in tensors.items():
            if name in self._specs and name not in made:
                data[name] = self._in_memory(name, tensor)
        for name, nbytes in self._workspaces.items():
            data[name] = np.full(nbytes, UNWRITTEN, np.uint8)
        for name, _, nbytes, _ in self._outputs:
            data[name] = np.zeros(nbytes, np.uint8)
        if self._replay is None:
            globals_ = [GlobalTensor(name, bytes_.size, bytes_) for name, bytes_ in data.items()]
            with traps_as_errors(self._operator.name):
                self._task.compute(globals_, chip.Model())
        else:
            self._replay.run(data)
        return {
            name: data[name][own].view(spec.element.numpy).reshape(spec.shape)
            for name, spec, _, own in self._outputs
        }

    def _in_memory(self, name: str, tensor: Array | Tensor) -> Bytes:
        """The bytes of operand *name*; a transposed matrix is placed in its memory order."""
        array = tensor.storage if isinstance(tensor, Tensor) else tensor
        if name in self._as_they_lie and array.flags.c_contiguous:
            return array.reshape(-1).view(np.uint8)
        return _bytes(Operand(name, self._specs[name], array))

    def _arguments(self, tensors: Mapping[str, Array | Tensor]) -> dict[str, Any]:
        """The arguments of a call with *tensors*."""
        arguments: dict[str, Any] = {**self._bound, **tensors}
        for name, length in self._lists.items():
            # Same names as `by_operand` gives the elements of a list.
            parts = [f"{name}[{place}]" for place in range(length)] if length > 1 else [name]
            arguments[name] = [arguments.pop(part) for part in parts]
        return arguments

    def _check(self, arguments: Mapping[str, Any]) -> Mapping[str, Bytes]:
        """Check the values of *arguments* that the contract reads; the operands that it makes."""
        found = self._operator.found(arguments)
        if (known := self._checked.get(found)) is not None:
            return known
        warned = ops.warnings_given()
        made = self._placed(self._operator.check(self.run.device, **arguments))
        if warned == ops.warnings_given():  # a call that warned should warn again
            if len(self._checked) == MOST_CHECKED:
                self._checked.clear()
            self._checked[found] = made
        return made

    def _placed(self, problem: ops.Problem) -> dict[str, Bytes]:
        return {each.name: _bytes(each) for each in problem.inputs if each.name in self._made}

    def _whole(self, at_once: AtOnce, arguments: Mapping[str, Any]) -> dict[str, Array] | None:
        """The outputs by a few calls of numpy; None if their types differ from the call's."""
        given = ops.Given(self._operator.name, arguments, self.run.device)
        found = at_once(given, self._task.problem, self.run.plan)
        if found is None:
            return None
        each = found if isinstance(found, tuple) else (found,)
        made = {}
        for (name, spec, _, _), array in zip(self._outputs, each, strict=True):
            if array.dtype != spec.element.numpy or array.shape != spec.shape:
                return None
            # A view would share memory with the input.
            made[name] = array if array.flags.owndata else array.copy()
        return made


def prepared(op: str, spec: DeviceSpec, arguments: dict[str, object]) -> Prepared | None:
    """A call of operator *op* with *arguments*, by the values of those that its kernel depends on.

    None if it warns, which each call must do again, if its kernel has operands that the contract
    makes from tensors without declaring it, if it writes in place or to fractals, or if none runs.
    Raises what :func:`npusim.run` raises.
    """
    operator, warned = find(op), ops.warnings_given()
    run = play(op, (), arguments, spec, Options(values=False))
    bound = bind(operator, (), arguments)
    problem = operator.check(spec, **bound)
    is_plain = _are_known(operator, problem, run, bound) and all(
        out.layout == "ND" for out in problem.outputs.values()
    )
    is_silent = warned == ops.warnings_given()
    if run.plan is None or problem.updated or not (is_plain and is_silent):
        return None
    task = Task(operator, spec, problem)
    return Prepared(run, task, problem, operator, bound)


def time_key(op: str, spec: DeviceSpec, arguments: dict[str, object]) -> Hashable | None:
    """A key that calls with arguments of these shapes, types and attributes share if their times
    are the same, whatever their values; None if operator *op* has none.

    Calls with equal keys can be made by one :class:`Prepared`. Raises OpError like the call.
    """
    operator = find(op)
    bound = bind(operator, (), arguments)
    # Its programs would compute the values of the call that they were written for.
    if operator.time_key is None or not _has_arrays_only(bound):
        return None
    problem = operator.check(spec, **bound)
    plan = operator.plan(spec, problem)
    return None if plan is None else operator.time_key(spec, problem, plan)


def _has_arrays_only(bound: Mapping[str, object]) -> bool:
    """Whether a call can pass all tensors; a Tensor in *bound* would be that of the first call."""
    return not any(isinstance(x, Tensor) for x in by_operand(bound).values())


def _are_known(
    operator: ops.Operator, problem: ops.Problem, run: Result, bound: Mapping[str, object]
) -> bool:
    """Whether each operand is a tensor of the call, or made from what all calls have in common."""
    given = by_operand(bound)
    others = [x.name for x in problem.inputs if not _is_given(x, given)]
    if not others:
        return True
    seen = {*operator.value_dependent_inputs, *operator.converted}
    common = {**run.arguments, **{name: bound[name] for name in seen}}
    made = {x.name: x.array for x in operator.check(run.device, **common).inputs}
    return all(made[name] is not None for name in others)


def _is_given(operand: Operand, given: Mapping[str, object]) -> bool:
    """Whether *operand* is a tensor of a call as it is."""
    tensor = given.get(operand.name)
    array = tensor.storage if isinstance(tensor, Tensor) else tensor
    return isinstance(array, np.ndarray) and array is operand.array


def _is_tensor(value: object) -> bool:
    return isinstance(value, np.ndarray | Tensor)


def _bytes(operand: Operand) -> Bytes:
    data = operand.place().data
    assert data is not None
    return data
