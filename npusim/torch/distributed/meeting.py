"""Synchronise the ranks of a group for a collective, and simulate its time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes

from npusim import collectives
from npusim.collectives import Kind
from npusim.torch import card
from npusim.torch.clock import clock
from npusim.torch.distributed.tensors import described
from npusim.torch.distributed.transport import Call, Transport
from npusim.torch.distributed.work import Done
from npusim.torch.graphs import is_current_stream_capturing, note

__all__ = ["BARRIER_BYTES", "Meeting", "Tensors", "captured"]

Tensors = list[torch.Tensor]
Finish = Callable[[list[torch.Tensor], list[Call]], None]
"""Computes the results from the bytes and the calls of all ranks."""

HCCL: dict[str, tuple[str, Kind]] = {
    "all_reduce": ("hcom_allReduce_", "all_reduce"),
    "all_gather": ("hcom_allGather_", "all_gather"),
    "reduce_scatter": ("hcom_reduceScatter_", "reduce_scatter"),
    "all_to_all": ("hcom_alltoall_", "all_to_all"),
    "broadcast": ("hcom_broadcast_", "broadcast"),
    "reduce": ("hcom_reduce_", "all_reduce"),
    "gather": ("hcom_gather_", "all_gather"),
    "scatter": ("hcom_scatter_", "all_gather"),
    "barrier": ("hcom_allReduce_", "all_reduce"),
}
"""Collective -> the name of its kernel in profilers, and the collective that takes the same time.
Reduce, gather and scatter run at the speed of the root's port (assumed); a barrier reduces one
number."""
BARRIER_BYTES = 4


Method = TypeVar("Method", bound=Callable[..., Done])


def captured(method: Method) -> Method:
    """Wrap *method*: if it is called during capture, each replay of the graph calls it again."""

    @wraps(method)
    def call(*args: object, **kwargs: object) -> Done:
        if not is_current_stream_capturing():
            return method(*args, **kwargs)
        begun: list[Done] = []
        with _disable_current_modes():
            done = method(*args, **kwargs)
        note(method.__name__.strip("_"), lambda: begun.append(method(*args, **kwargs)))
        done.again = lambda: begun.pop(0).wait()
        return done

    return cast(Method, call)


class Meeting(dist.ProcessGroup):
    """Ranks whose cards are connected by the links of their chip."""

    def __init__(
        self, transport: Transport, rank: int, ranks: Sequence[int], name: str, server_cards: int
    ) -> None:
        super().__init__(rank, len(ranks))
        self._transport, self._name = transport, name
        self._server_of = [each // server_cards for each in ranks]
        self.servers = len(set(self._server_of))
        """The number of servers of the ranks."""
        self._busy_us = 0.0
        """The time at which the last collective ends."""
        # Raises an error for ranks that the links do not connect.
        collectives.estimate("all_reduce", 0, len(ranks), card.spec(), self.servers)

    # ---- what torch calls on a group ----

    def getBackendName(self) -> str:  # noqa: N802
        return "hccl"

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("npu")]

    def _get_backend(self, device: object) -> Meeting:  # noqa: ARG002
        """Return the group itself: it has one backend."""
        return self

    def get_hccl_comm_name(self, rank: int, init_comm: bool = True) -> str:  # noqa: ARG002
        """The name of the group, which operators of the card take as an argument."""
        return self._name

    def shutdown(self) -> None:
        """`destroy_process_group`: pending sends are finished first."""
        self._transport.close()

    abort = shutdown

    def _start_coalescing(self, device: object) -> None:
        """Do nothing: collectives are not delayed for coalescing."""

    def _end_coalescing(self, device: object) -> Done:  # noqa: ARG002
        return Done(self._busy_us, [])

    # ---- a collective ----

    def _call(
        self, name: str, alike: str, given: torch.Tensor, splits: list[list[int]] | None = None
    ) -> Call:
        ready_us = max(clock.now_us, self._busy_us)
        return Call(name, alike, card.spec().name, ready_us, len(given), splits or [])

    def share(
        self, name: str, alike: str, given: torch.Tensor
    ) -> tuple[float, list[Call], list[torch.Tensor]]:
        """Synchronise for an operator of the card: the time at which all ranks have joined, and the
        calls and bytes of each."""
        calls = self._transport.meet(self._call(name, alike, given))
        self._agree(calls)
        return max(call.ready_us for call in calls), calls, self._transport.share(given, calls)

    def spend(self, kernel: str, begin_us: float, time_us: float, what: str) -> None:
        """Record *kernel* on the card, and make its stream wait for the end."""
        clock.communicate(kernel, begin_us, time_us, what)
        clock.wait_until(self._busy_until(begin_us + time_us))

    def _busy_until(self, end_us: float) -> float:
        """Mark the links as busy until *end_us*, except during capture, which takes no time."""
        if not clock.is_paused:
            self._busy_us = end_us
        return end_us

    def _run(
        self,
        name: str,
        alike: str,
        size_bytes: int,
        given: torch.Tensor,
        outputs: Tensors,
        finish: Finish,
        splits: list[list[int]] | None = None,
    ) -> Done:
        """Synchronise with the other ranks, exchange bytes, let *finish* fill *outputs*, and record
        the time."""
        calls = self._transport.meet(self._call(name, alike, given, splits))
        self._agree(calls)
        if splits:
            size_bytes = max(sum(sizes) for call in calls for sizes in call.splits)
        parts = self._transport.share(given, calls)
        if card.computes_values():
            finish(parts, calls)
        kernel, kind = HCCL[name]
        begin_us = max(call.ready_us for call in calls)
        time_us = collectives.time_us(kind, size_bytes, self.size(), card.spec(), self.servers)
        clock.communicate(kernel, begin_us, time_us, alike)
        return Done(self._busy_until(begin_us + time_us), outputs)

    def _agree(self, calls: list[Call]) -> None:
        """Raise an error, the same on each rank, if the ranks do not call the same collective."""
        first = calls[0]
        for rank, call in enumerate(calls):
            if (call.name, call.alike, call.chip) != (first.name, first.alike, first.chip):
                raise RuntimeError(
                    f"{first.name}: all ranks must call it alike, as rank 0 calls "
                    f"{_told(first)}, but rank {rank} calls {_told(call)}; make the calls alike"
                )
        if first.splits:
            for giver, of_giver in enumerate(calls):
                for taker, of_taker in enumerate(calls):
                    sent, room = of_giver.splits[0][taker], of_taker.splits[1][giver]
                    if sent != room:
                        raise RuntimeError(
                            f"all_to_all: rank {taker} must have room for the {sent} bytes that "
                            f"rank {giver} gives it, not for {room}; make their split sizes agree"
                        )

    def _require_list(self, name: str, what: str, tensors: Tensors) -> None:
        if len(tensors) != self.size():
            raise ValueError(
                f"{name}: {what} must have a tensor for each of {self.size()} ranks, not "
                f"{len(tensors)}; pass as many"
            )

    def _require_whole(
        self, name: str, whole: str, tensors: Tensors, part: str, tensor: torch.Tensor
    ) -> None:
        """Check that *tensors* hold the *tensor* of all ranks; several must be of equal size."""
        size = self.size() // len(tensors)
        for each in tensors:
            if each.numel() != size * tensor.numel() or each.dtype != tensor.dtype:
                raise ValueError(
                    f"{name}: {whole} must be {size} times {part}, {described(tensor)}, not "
                    f"{described(each)}; make it so"
                )


def _told(call: Call) -> str:
    return f"{call.name} {call.alike} on {call.chip}".replace("  ", " ")
