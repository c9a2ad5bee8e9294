"""A call that is made repeatedly: everything except the values is computed once.

    again = prepared("mul", spec, {"x": x, "other": y})      # as npusim.run, for its time alone
    again.run.time_us
    again.outputs({"x": other_x, "other": other_y})          # the values of tensors of those shapes

Arguments, contract, tiling and times of a call depend on shapes, types and attributes, and on the
values of no tensors but the `value_dependent_inputs` of the operator. So a caller whose calls
differ in nothing else, such as torch, can avoid all of that. Micro-ops compute the values, as in
any run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from copy import copy
from typing import Any

import numpy as np

from npusim import chip, ops
from npusim.data.dtypes import INT4, Array
from npusim.data.tensor import GlobalTensor, Operand, Tensor, TensorSpec, allocated_bytes
from npusim.devices.schema import DeviceSpec
from npusim.run.call import bind, find, play, traps_as_errors
from npusim.run.options import Options
from npusim.run.result import Result
from npusim.run.task import CyclesOn, Task
from npusim.run.views import by_operand, copies_before
from npusim.values.buffers import UNWRITTEN

__all__ = ["Prepared", "prepared", "time_key"]

AtOnce = Callable[[ops.Given, Any, Any], Array | tuple[Array, ...] | None]


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
        self._operator = operator.name
        self._is_shared = operator.time_key is not None
        """Whether it may make calls whose programs are not those of its task."""
        lists = {name: x for name, x in bound.items() if isinstance(x, list)}
        self._lists = {
            name: len(x) for name, x in lists.items() if x and isinstance(x[0], np.ndarray)
        }
        of_a_call = {name for name in bound if isinstance(bound[name], np.ndarray)} | {*self._lists}
        self._bound = {name: None if name in of_a_call else x for name, x in bound.items()}
        """Arguments by name, without the arrays of one call."""
        self._task = task
        self._replay = None if self._at_once else task.replay()
        self._specs = {operand.name: operand.spec for operand in problem.inputs}
        given = by_operand(bound)
        self._placed = {
            operand.name: operand.place().data
            for operand in problem.inputs
            if not isinstance(given.get(operand.name), np.ndarray)
        }
        """Operand that is made of attributes -> its bytes."""
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
        return again

    def outputs(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs for *arrays*, by operand; shapes and types are not checked."""
        if self._at_once is not None:
            found = self._whole(self._at_once, arrays)
            if found is not None:
                return found
            assert not self._is_shared, f"at_once of {self._operator} must apply to every call"
            self._at_once, self._replay = None, self._task.replay()
        data = {x: y for x, y in self._placed.items() if y is not None}
        for name, array in arrays.items():
            if name in self._as_they_lie and array.flags.c_contiguous:
                data[name] = array.reshape(-1).view(np.uint8)
            elif name in self._specs:
                # Like the first one: a transposed matrix is placed in its memory order.
                placed = Operand(name, self._specs[name], array).place().data
                assert placed is not None
                data[name] = placed
        for name, nbytes in self._workspaces.items():
            data[name] = np.full(nbytes, UNWRITTEN, np.uint8)
        for name, _, nbytes, _ in self._outputs:
            data[name] = np.zeros(nbytes, np.uint8)
        if self._replay is None:
            tensors = [GlobalTensor(name, bytes_.size, bytes_) for name, bytes_ in data.items()]
            with traps_as_errors(self._operator):
                self._task.compute(tensors, chip.Model())
        else:
            self._replay.run(data)
        return {
            name: data[name][own].view(spec.element.numpy).reshape(spec.shape)
            for name, spec, _, own in self._outputs
        }

    def _whole(self, at_once: AtOnce, arrays: Mapping[str, Array]) -> dict[str, Array] | None:
        """The outputs by a few calls of numpy; None if their types differ from the call's."""
        arguments = {**self._bound, **arrays}
        for name, length in self._lists.items():
            # Same names as `by_operand` gives the elements of a list.
            parts = [f"{name}[{place}]" for place in range(length)] if length > 1 else [name]
            arguments[name] = [arguments.pop(part) for part in parts]
        given = ops.Given(self._operator, arguments, self.run.device)
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

    None if it warns, which each call must do again, if its kernel has operands other than the
    arrays of the call, if it writes in place or to fractals, if other kernels run first, or if none
    runs. Raises what :func:`npusim.run` raises.
    """
    operator, warned = find(op), ops.warnings_given()
    run = play(op, (), arguments, spec, Options(values=False))
    bound = bind(operator, (), arguments)
    problem = operator.check(spec, **bound)
    is_plain = all(_is_as_given(each, bound) for each in problem.inputs) and all(
        out.layout == "ND" for out in problem.outputs.values()
    )
    # Kernels that copy views compute nothing new.
    has_prologue = len(run.earlier) > len(copies_before(spec, problem, bound))
    is_silent = warned == ops.warnings_given()
    if run.plan is None or has_prologue or problem.updated or not (is_plain and is_silent):
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


def _is_as_given(operand: Operand, bound: Mapping[str, object]) -> bool:
    """Whether *operand* is an array of the call, or made from an attribute."""
    given = by_operand(bound)
    if operand.name not in given:
        return False
    argument = given[operand.name]
    return argument is operand.array or not isinstance(argument, np.ndarray | Tensor | TensorSpec)
