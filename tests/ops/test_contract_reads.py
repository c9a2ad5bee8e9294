"""Operators declare the operands whose values decide what a call is, whatever is computed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from calls import CALLS
from chips import THREE

from npusim import OpError, Tensor, devices, ops
from npusim.devices.schema import DeviceSpec
from npusim.ops._protocol import contents
from npusim.run.call import bind
from npusim.run.memory_cache import key_of, unvalued
from npusim.run.views import by_operand

pytestmark = pytest.mark.filterwarnings("ignore::npusim.data.errors.DocumentWarning")
FILLS = {
    "zeros": lambda nbytes: np.zeros(nbytes, np.uint8),
    "ones": lambda nbytes: np.full(nbytes, 0xFF, np.uint8),
    # Operands of one shape have the same bytes.
    "any": lambda nbytes: np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8),
}


@pytest.mark.parametrize("call", CALLS)
def test_values_decide_no_more_than_is_declared(call: str) -> None:
    operator = ops.load(CALLS[call][0])
    given = bind(operator, (), CALLS[call][1])
    for spec in map(devices.load, THREE):
        try:
            plan, kernel = decided(operator, spec, given)
        except OpError:
            continue
        for fill, other in others(given):
            if seen(operator, other) != seen(operator, given):
                continue
            if operator.found(other) == operator.found(given):
                assert decided(operator, spec, other) == (plan, kernel), fill
                continue
            # What a contract reads may refuse a call, and changes nothing else.
            with suppress(OpError):
                assert decided(operator, spec, other)[0] == plan, fill


def seen(operator: ops.Operator, given: dict[str, Any]) -> list[Any]:
    return [contents(given.get(name)) for name in operator.value_dependent_inputs]


def others(given: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same call with other values, of one of its tensors or of all."""
    names = [name for name, value in given.items() if isinstance(value, np.ndarray | Tensor)]
    for fill, made in FILLS.items():
        for changed in (names, *([name] for name in names)):
            filled = {name: with_bytes(given[name], made) for name in changed}
            yield f"{fill} in {', '.join(changed)}", given | filled


def with_bytes(value: Any, made: Any) -> Any:
    if isinstance(value, Tensor):
        return Tensor(value.spec, with_bytes(value.storage, made))
    return made(value.nbytes).view(value.dtype).reshape(value.shape)


def decided(operator: ops.Operator, spec: DeviceSpec, given: dict[str, Any]) -> Any:
    """All about the call except values, and the operands that are computed from values."""
    problem = operator.check(spec, **given)
    bare = unvalued(problem, operator.value_dependent_inputs)
    own = by_operand(given)
    made = {
        operand.name: operand.array.tobytes()
        for operand in problem.inputs
        if operand.name in operator.converted
        and operand.array is not None
        and operand.array is not own[operand.name]
    }
    return (key_of(bare), key_of(operator.plan(spec, bare))), made
