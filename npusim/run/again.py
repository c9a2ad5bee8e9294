"""A call that can be made once more, with a change, for its time."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from npusim import ops
from npusim.check.hazards import HazardError
from npusim.data.errors import OpError
from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import QueueName
from npusim.timing.compiled import is_built

if TYPE_CHECKING:
    from npusim.run.call import Options
    from npusim.run.result import Run
    from npusim.run.user_kernel import KernelFunction

__all__ = ["REFUSALS", "Call"]

REFUSALS = OpError, HazardError, ValueError, TypeError
"""What a call raises that an operator, a chip or a kernel of one's own does not take."""


@dataclass(frozen=True, eq=False)
class Call:
    """What was asked of :func:`npusim.run`."""

    op: str | KernelFunction
    operator: ops.Operator
    device: DeviceSpec
    arguments: dict[str, Any]
    """Parameter -> what was given; arrays and tensors as their TensorSpec, but for those whose
    values decide how the kernel is written."""
    options: Options

    def __repr__(self) -> str:
        return f"<call of {self.operator.name} on {self.device.name}>"

    def timed(
        self,
        changes: Mapping[str, Any] | None = None,
        device: DeviceSpec | None = None,
        deeper: tuple[QueueName, ...] = (),
    ) -> Run | None:
        """The same for its time alone, with *changes* of its arguments or on another chip.

        Queues that are *deeper* get a slot more than its kernel declares. None where such a call is
        refused, or has nothing to do.
        """
        # Both engines find the same times.
        engine = "compiled" if is_built() else self.options.engine
        options = replace(self.options, values=False, timing=True, engine=engine, deeper=deeper)
        arguments = self.arguments | dict(changes or {})
        return _played(self.op, arguments, device or self.device, options)

    def other(self, op: str, arguments: dict[str, Any]) -> Run | None:
        """Another call on the same chip, for its time alone, with nothing in the L2."""
        options = replace(self.options, values=False, timing=True, l2="cold", icache=None)
        return _played(op, arguments, self.device, options)


def _played(
    op: str | KernelFunction, arguments: dict[str, Any], device: DeviceSpec, options: Options
) -> Run | None:
    from npusim.run.call import play  # which makes such calls

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = play(op, (), arguments, device, options)
    except REFUSALS:
        return None
    return run if run.time_us else None
