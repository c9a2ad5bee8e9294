"""The simulated counterpart of a measured kernel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from npusim.chip import L2State
from npusim.data.arguments import Arguments
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import DeviceSpec, ICache
from npusim.run.call import play
from npusim.run.options import Options
from npusim.run.result import Result
from npusim.validation.turns import TURNS, Turns, run_in_turns

__all__ = ["Argument", "Call", "NotModelledError", "Timed"]

Argument = TensorSpec | str | int | bool
"""The positional arguments of a call."""


class NotModelledError(ValueError):
    """npusim has no counterpart of a row; the text is the reason."""


class Timed(Protocol):
    """Work that takes time on a chip; it must pickle, since another process may time it."""

    def time_us(self) -> float:
        """Its Task Duration."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of `npusim.run`, only for its time."""

    op: str
    args: tuple[Argument, ...]
    device: str | DeviceSpec
    l2: L2State | Turns
    icache: ICache | None
    options: Arguments = field(default_factory=dict)

    def run(self) -> Result:
        """The run; raises OpError if the operator refuses.

        Its programs are always those of operators, which the tests check, so checks are off.
        """
        if self.l2 in TURNS:
            call = self.device, self.op, self.args, self.options
            return run_in_turns(self.l2, *call, self.icache)
        states: dict[str, Any] = {"l2": self.l2, "icache": self.icache}
        options = Options(values=False, is_checked=False, **states)
        return play(self.op, self.args, self.options, self.device, options)

    def time_us(self) -> float:
        """Its Task Duration; raises OpError if the operator refuses."""
        found = self.run().time_us
        assert found is not None
        return found
