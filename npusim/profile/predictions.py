"""What the simulator says of a kernel: bounds of its time, and what is expected."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from npusim import ops
from npusim.data.errors import OpError
from npusim.data.tensor import TensorSpec
from npusim.profile.kernels import Kernel, Operand
from npusim.profile.products import WEIGHTS
from npusim.run.result import Result
from npusim.validation.timed import Call

__all__ = ["Prediction", "Sort", "predicted", "what_is_warm"]

DIGITS = 3
"""Profilers write nanoseconds."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Simulated times of a kernel."""

    call: Call
    """What was simulated, as expected."""
    warm_us: float
    """With all operands in the L2; of several readings of its shapes the least."""
    expected_us: float
    """With what the kernel before wrote in the L2."""
    cold_us: float
    """With none; of several readings the most."""
    kernel_type: str
    """What npusim's rules choose, which need not be what ran."""
    template: str | None
    blocks: int
    launch_us: float
    better: tuple[str, float] | None
    """The weight's other layout and the time with it, where it would be faster."""

    def nearest_us(self, time_us: float) -> float:
        """The time between the bounds that is nearest to *time_us*."""
        return min(max(time_us, self.warm_us), self.cold_us)


Sort = tuple[int, str]
"""Elements and type of a tensor, by which one that was written is known again."""


def what_is_warm(kernel: Kernel, before: Kernel | None) -> frozenset[Sort]:
    """Inputs of *kernel* that *before* has just written, which has such outputs."""
    written = () if before is None else before.outputs
    return frozenset(map(_sort, kernel.inputs)) & frozenset(map(_sort, written))


def _sort(operand: Operand) -> Sort:
    return prod(operand.shape or ()), operand.dtype


def predicted(question: tuple[tuple[Call, ...], frozenset[Sort]]) -> Prediction | str:
    """The prediction for calls, any of which it may have been, and what of their operands is in the
    L2; or why there is none."""
    calls, warm = question
    refused = ""
    runs: list[tuple[Call, Result, Result, Result]] = []
    for call in calls:
        try:
            cold, hot = replace(call, l2="cold").run(), replace(call, l2="warm").run()
            names = _warm_names(call, warm)
            expected = replace(call, l2=names).run() if names else cold
        except (OpError, ValueError, TypeError) as error:
            refused = refused or str(error)
            continue
        if cold.plan is None:
            refused = refused or "it has nothing to do"
            continue
        runs.append((call, hot, expected, cold))
    if not runs:
        return refused
    times = [[_own_us(run) for run in own[1:]] for own in runs]
    call, _, expected, _ = runs[0]
    assert expected.plan is not None
    return Prediction(
        call,
        min(min(own) for own in times),
        times[0][1],
        max(max(own) for own in times),
        _freely(call).run().kernel_type or call.op,
        expected.template,
        expected.plan.block_dim,
        expected.launches[-1].launch_us,
        _better(call, times[0][2]),
    )


def _own_us(run: Result) -> float:
    """The time of the kernel itself: what torch_npu launches before it has rows of its own."""
    time_us = run.launches[-1].time_us
    assert time_us is not None
    return round(time_us, DIGITS)


def _warm_names(call: Call, warm: frozenset[Sort]) -> tuple[str, ...]:
    """The parameters of *call* that are in the L2, which has no weights."""
    if call.op == "fill":
        return ()  # it reads nothing
    parameters = list(ops.signature(ops.load(call.op)).parameters)
    named: dict[str, Any] = dict(zip(parameters, call.args, strict=False)) | call.options
    tensors = {name: each for name, each in named.items() if isinstance(each, TensorSpec)}
    return tuple(
        name
        for name, each in tensors.items()
        if (prod(each.storage_shape), each.dtype) in warm and name != WEIGHTS.get(call.op)
    )


def _freely(call: Call) -> Call:
    """*call* by the template that the rules choose."""
    options = {name: value for name, value in call.options.items() if name != "template"}
    return replace(call, options=options)


def _better(call: Call, time_us: float) -> tuple[str, float] | None:
    """What FRACTAL_NZ would give to a weight in ND; None where it is no faster, or refused."""
    place = 1
    if call.op not in WEIGHTS or not isinstance(weight := call.args[place], TensorSpec):
        return None
    if weight.layout != "ND":
        return None
    turned = TensorSpec(weight.storage_shape, weight.dtype, "FRACTAL_NZ")
    turned = turned.T if weight.transposed else turned
    args = (*call.args[:place], turned, *call.args[place + 1 :])
    try:
        found_us = _own_us(replace(_freely(call), args=args, l2="cold").run())
    except (OpError, ValueError, TypeError):
        return None
    return ("FRACTAL_NZ", found_us) if found_us < time_us else None
