"""The work object that a collective returns at once, with its end on the simulated clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from npusim.torch.clock import clock
from npusim.torch.graphs import note

__all__ = ["Done", "Later", "together"]


class Done(dist._Work):
    """A collective that every rank has joined: its values are ready, and its end is known."""

    def __init__(self, end_us: float, outputs: list[torch.Tensor]) -> None:
        super().__init__()
        self.end_us, self._outputs = end_us, outputs
        self.again: Callable[[], object] | None = None
        """Waits for the same collective in each replay of the graph that captured it."""

    def wait(self, timeout: timedelta | None = None) -> bool:  # noqa: ARG002
        """Make the card's stream wait for its end."""
        if self.again is not None:
            again, self.again = self.again, None
            note("wait", again)
        clock.wait_until(self.end_us)
        return True

    synchronize = wait

    def is_completed(self) -> bool:
        """Whether it has ended at the current time."""
        return clock.now_us >= self.end_us

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        """Return None: errors are raised by the call itself."""

    def result(self) -> list[torch.Tensor]:
        return self._outputs

    def get_future(self) -> Any:
        """A finished future of its outputs; waits for the end first."""
        self.wait()
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(self._outputs)
        return future

    def source_rank(self) -> int:
        """Return -1: only messages have a source."""
        return -1

    _source_rank = source_rank


class Later(Done):
    """A message, whose end is known once both ranks have called."""

    def __init__(
        self, finish: Callable[[], tuple[float, int]], outputs: list[torch.Tensor]
    ) -> None:
        super().__init__(0.0, outputs)
        self._finish: Callable[[], tuple[float, int]] | None = finish
        self._source = -1

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the other rank, and for the end."""
        if self._finish is not None:
            finish, self._finish = self._finish, None
            self.end_us, self._source = finish()
        return super().wait(timeout)

    synchronize = wait

    def is_completed(self) -> bool:
        """Whether it has been waited for and has ended."""
        return self._finish is None and super().is_completed()

    def source_rank(self) -> int:
        """The rank that the message came from."""
        return self._source

    _source_rank = source_rank


def together(works: Sequence[Done]) -> Done:
    """Combine several works into one, which ends with the last."""
    outputs = [output for work in works for output in work.result()]
    return Done(max((work.end_us for work in works), default=0.0), outputs)
