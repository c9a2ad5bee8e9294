"""The process group of the backend hccl: collectives of npu tensors, with bits and time.

A collective begins when the last rank of the group has come and the one before it has ended; all
end together. The card computes meanwhile: `wait()` lets its stream wait for the end, and so does
every call that is not asynchronous.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from npusim import collectives
from npusim.collectives import Kind
from npusim.data.dtypes import Array
from npusim.torch import card
from npusim.torch.clock import clock
from npusim.torch.distributed.tensors import (
    array_of,
    bytes_of,
    check,
    described,
    fill,
    fill_bytes,
    operation_of,
)
from npusim.torch.distributed.transport import NOTHING, Call, Transport
from npusim.torch.distributed.work import Done, Later, together

__all__ = ["HcclGroup"]

Tensors = list[torch.Tensor]
Finish = Callable[[list[torch.Tensor], list[Call]], None]
"""Takes the bytes and the calls of all ranks."""

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
"""Collective -> what profilers call its kernel, and the one that takes the same time: a root is
reduced to, gathers and scatters as fast as its port is (assumed); barrier reduces one number."""
BARRIER_BYTES = 4


class HcclGroup(dist.ProcessGroup):
    """Ranks whose cards are joined by the links of their chip."""

    def __init__(
        self, transport: Transport, rank: int, ranks: Sequence[int], name: str, server_cards: int
    ) -> None:
        super().__init__(rank, len(ranks))
        self._transport, self._name = transport, name
        self._server_of = [each // server_cards for each in ranks]
        self.servers = len(set(self._server_of))
        """The number of servers in which the ranks are."""
        self._busy_us = 0.0
        """When the last collective ends."""
        # Refuses ranks that the links do not join.
        collectives.estimate("all_reduce", 0, len(ranks), card.spec(), self.servers)

    # ---- what torch asks of a group ----

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

    def _get_backend(self, device: object) -> HcclGroup:  # noqa: ARG002
        """The group itself: it has one backend."""
        return self

    def get_hccl_comm_name(self, rank: int, init_comm: bool = True) -> str:  # noqa: ARG002
        """The name by which operators of the card know the group."""
        return self._name

    def shutdown(self) -> None:
        """`destroy_process_group`: what was sent leaves first."""
        self._transport.close()

    abort = shutdown

    def _start_coalescing(self, device: object) -> None:
        """Nothing is held back."""

    def _end_coalescing(self, device: object) -> Done:  # noqa: ARG002
        return Done(self._busy_us, [])

    # ---- reductions ----

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Done:
        """`all_reduce`: each rank has the sum, or another reduction, of all."""
        return self._all_reduced("all_reduce", tensors, opts, None)

    def reduce(self, tensors: Tensors, opts: Any = None) -> Done:
        """`reduce`: the root has what all would have of `all_reduce`."""
        return self._all_reduced("reduce", tensors, opts, opts.rootRank)

    def _all_reduced(self, name: str, tensors: Tensors, opts: Any, root: int | None) -> Done:
        (tensor,) = tensors
        check(name, tensors)
        operation, divides = operation_of(name, opts, tensor)
        is_given = root in (None, self.rank())

        def finish(parts: list[torch.Tensor], _: list[Call]) -> None:
            if is_given:
                own = [array_of(part, tensor) for part in parts]
                fill(tensor, collectives.all_reduce(own, operation, card.spec(), self.servers))

        alike = f"{described(tensor)} {operation}{_to(root)}"
        done = self._run(name, alike, tensor.nbytes, bytes_of(tensor), tensors, finish)
        return self._divided(done) if divides and is_given else done

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> Done:
        """`reduce_scatter_tensor`: each rank has its share of the reduction of all."""
        return self._scattered(output, [input], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> Done:
        """`reduce_scatter` of a list with a tensor for each rank."""
        self._require_list("reduce_scatter", "the list of inputs", inputs[0])
        return self._scattered(outputs[0], inputs[0], opts)

    def _scattered(self, output: torch.Tensor, inputs: Tensors, opts: Any) -> Done:
        name, size, rank = "reduce_scatter", self.size(), self.rank()
        check(name, [output, *inputs])
        self._require_whole(name, "input", inputs, "output", output)
        operation, divides = operation_of(name, opts, output)

        def finish(parts: list[torch.Tensor], _: list[Call]) -> None:
            rows: list[Array] = [array_of(part, output).reshape(size, -1) for part in parts]
            found = collectives.reduce_scatter(rows, operation, card.spec(), self.servers)
            fill(output, found[rank])

        given = torch.cat([bytes_of(each) for each in inputs])
        alike = f"{described(output)} {operation}"
        done = self._run(name, alike, output.nbytes, given, [output], finish)
        return self._divided(done) if divides else done

    def _divided(self, done: Done) -> Done:
        """The mean: a kernel of the card divides the sum."""
        done.wait()
        for output in done.result():
            output.div_(self.size())
        return done

    # ---- copies ----

    def all_gather_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        opts: Any = None,  # noqa: ARG002
    ) -> Done:
        """`all_gather_into_tensor`: each rank has what all give, in order of ranks."""
        check("all_gather", [output, input])
        self._require_whole("all_gather", "output", [output], "input", input)
        return self._gathered("all_gather", input, [output], "")

    _allgather_base = all_gather_single

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> Done:  # noqa: ARG002
        """`all_gather` into a list with a tensor for each rank."""
        check("all_gather", [*outputs[0], *inputs])
        self._require_list("all_gather", "the list of outputs", outputs[0])
        self._require_whole("all_gather", "output", outputs[0], "input", inputs[0])
        return self._gathered("all_gather", inputs[0], outputs[0], "")

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> Done:
        """`gather`: the root has what all give."""
        places: Tensors = []
        if self.rank() == opts.rootRank:
            places = outputs[0]
            self._require_list("gather", "the list of the root", places)
            self._require_whole("gather", "output", places, "input", inputs[0])
        check("gather", [*places, *inputs])
        return self._gathered("gather", inputs[0], places, _to(opts.rootRank))

    def _gathered(self, name: str, given: torch.Tensor, outputs: Tensors, to: str) -> Done:
        """Bytes of all ranks into *outputs*, one behind the other."""

        def finish(parts: list[torch.Tensor], _: list[Call]) -> None:
            _fill_all(outputs, torch.cat(parts))

        alike = f"{described(given)}{to}"
        return self._run(name, alike, given.nbytes, bytes_of(given), outputs, finish)

    def broadcast(self, tensors: Tensors, opts: Any = None) -> Done:
        """`broadcast`: each rank has what the root has."""
        check("broadcast", tensors)
        (tensor,), root = tensors, opts.rootRank
        given = bytes_of(tensor) if self.rank() == root else NOTHING

        def finish(parts: list[torch.Tensor], _: list[Call]) -> None:
            fill_bytes(tensor, parts[root])

        alike = f"{described(tensor)} from rank {root}"
        return self._run("broadcast", alike, tensor.nbytes, given, tensors, finish)

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> Done:
        """`scatter`: each rank has its part of what the root has."""
        (output,), root, given = outputs, opts.rootRank, NOTHING
        check("scatter", outputs)
        if self.rank() == root:
            check("scatter", inputs[0])
            self._require_list("scatter", "the list of the root", inputs[0])
            self._require_whole("scatter", "input", inputs[0], "output", output)
            given = torch.cat([bytes_of(each) for each in inputs[0]])

        def finish(parts: list[torch.Tensor], _: list[Call]) -> None:
            fill_bytes(output, parts[root].reshape(self.size(), -1)[self.rank()])

        alike = f"{described(output)} from rank {root}"
        return self._run("scatter", alike, output.nbytes, given, outputs, finish)

    # ---- exchanges ----

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: Any = None,  # noqa: ARG002
    ) -> Done:
        """`all_to_all_single`: each rank gives each other a part, along the first dimension."""
        check("all_to_all", [output, input])
        taken = self._split("output", output, output_split_sizes)
        given = self._split("input", input, input_split_sizes)
        return self._exchange(taken, given, [output])

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Done:  # noqa: ARG002
        """`all_to_all` of lists with a tensor for each rank."""
        check("all_to_all", [*outputs, *inputs])
        for name, tensors in (("outputs", outputs), ("inputs", inputs)):
            self._require_list("all_to_all", f"the list of {name}", tensors)
        return self._exchange(outputs, inputs, outputs)

    def _split(self, name: str, tensor: torch.Tensor, sizes: list[int]) -> Tensors:
        size, rows = self.size(), tensor.shape[0] if tensor.dim() else 0
        if not sizes and rows % size:
            raise ValueError(
                f"Tensor's dim 0 does not divide equally across group size\nall_to_all: the first "
                f"dimension of {name} must be a multiple of {size} ranks, not {rows}; pass "
                f"{name}_split_sizes"
            )
        sizes = sizes or [rows // size] * size
        if len(sizes) != size or sum(sizes) != rows:
            raise ValueError(
                f"Split sizes doesn't match total dim 0 size\nall_to_all: {name}_split_sizes must "
                f"be {size} numbers that add up to {rows}, not {sizes}; correct them"
            )
        return list(tensor.split(sizes))

    def _exchange(self, taken: Tensors, given: Tensors, outputs: Tensors) -> Done:
        rank = self.rank()
        splits = [[part.nbytes for part in parts] for parts in (given, taken)]
        whole = torch.cat([bytes_of(part) for part in given])

        def finish(parts: list[torch.Tensor], calls: list[Call]) -> None:
            for place, part, call in zip(taken, parts, calls, strict=True):
                begin = sum(call.splits[0][:rank])
                fill_bytes(place, part[begin : begin + call.splits[0][rank]])

        alike = str(given[0].dtype).removeprefix("torch.")
        return self._run("all_to_all", alike, 0, whole, outputs, finish, splits)

    def barrier(self, opts: Any = None) -> Done:  # noqa: ARG002
        """`barrier`: returns when all ranks have come."""
        return self._run("barrier", "", BARRIER_BYTES, NOTHING, [], lambda *_: None)

    # ---- messages ----

    def send(self, tensors: Tensors, dstRank: int, tag: int = 0) -> Later:  # noqa: N803
        """`isend`: begins when the receiver has come."""
        (tensor,) = tensors
        check("send", tensors)
        call = self._call("send", described(tensor), bytes_of(tensor))
        answer = self._transport.send(call, bytes_of(tensor), dstRank, tag)

        def finish() -> tuple[float, int]:
            theirs = answer()
            _agree_on_message(call, theirs, self.rank(), dstRank)
            begin_us = max(call.ready_us, theirs.ready_us)
            return self._message("hcom_send_", begin_us, tensor, dstRank), dstRank

        return Later(finish, tensors)

    def recv(self, tensors: Tensors, srcRank: int, tag: int = 0) -> Later:  # noqa: N803
        """`irecv` from a rank."""
        return self._received(tensors, srcRank, tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Later:
        """`irecv` from whichever rank sends first."""
        return self._received(tensors, None, tag)

    def _received(self, tensors: Tensors, source: int | None, tag: int) -> Later:
        (tensor,) = tensors
        check("recv", tensors)
        call = self._call("recv", described(tensor), NOTHING)
        arrival = self._transport.receive(call, source, tag)

        def finish() -> tuple[float, int]:
            giver, sent, given = arrival()
            _agree_on_message(sent, call, giver, self.rank())
            if card.computes_values():
                fill_bytes(tensor, given)
            begin_us = max(call.ready_us, sent.ready_us)
            return self._message("hcom_receive_", begin_us, tensor, giver), giver

        return Later(finish, tensors)

    def _message(self, name: str, begin_us: float, tensor: torch.Tensor, other: int) -> float:
        """When a message ends."""
        is_beyond = self._server_of[other] != self._server_of[self.rank()]
        time_us = collectives.message_us(tensor.nbytes, card.spec(), is_beyond=is_beyond)
        clock.communicate(name, begin_us, time_us, described(tensor))
        return begin_us + time_us

    # ---- several at once ----

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Done:
        """Each of several reductions."""
        return together([self.allreduce([tensor], opts) for tensor in tensors])

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Done:
        """Each of several collections."""
        pairs = zip(outputs, inputs, strict=True)
        return together([self.all_gather_single(*pair, opts) for pair in pairs])

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Done:
        """Each of several reductions of shares."""
        pairs = zip(outputs, inputs, strict=True)
        return together([self.reduce_scatter_single(*pair, opts) for pair in pairs])

    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # ---- a collective ----

    def _call(
        self, name: str, alike: str, given: torch.Tensor, splits: list[list[int]] | None = None
    ) -> Call:
        ready_us = max(clock.now_us, self._busy_us)
        return Call(name, alike, card.spec().name, ready_us, len(given), splits or [])

    def share(
        self, name: str, alike: str, given: torch.Tensor
    ) -> tuple[float, list[Call], list[torch.Tensor]]:
        """When all ranks have come to an operator of the card, and the calls and bytes of each."""
        calls = self._transport.meet(self._call(name, alike, given))
        self._agree(calls)
        return max(call.ready_us for call in calls), calls, self._transport.share(given, calls)

    def spend(self, kernel: str, begin_us: float, time_us: float, what: str) -> None:
        """The card is at work in *kernel*, and its stream waits for the end."""
        clock.communicate(kernel, begin_us, time_us, what)
        self._busy_us = begin_us + time_us
        clock.wait_until(self._busy_us)

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
        """Meet the other ranks, share bytes, and let *finish* fill *outputs*; time passes."""
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
        self._busy_us = begin_us + time_us
        return Done(self._busy_us, outputs)

    def _agree(self, calls: list[Call]) -> None:
        """Refuse ranks that do not mean the same; each of them raises the same error."""
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
        """*tensors* hold what all ranks have of *tensor*, each as much where there are several."""
        size = self.size() // len(tensors)
        for each in tensors:
            if each.numel() != size * tensor.numel() or each.dtype != tensor.dtype:
                raise ValueError(
                    f"{name}: {whole} must be {size} times {part}, {described(tensor)}, not "
                    f"{described(each)}; make it so"
                )


def _agree_on_message(sent: Call, received: Call, giver: int, taker: int) -> None:
    if sent.alike != received.alike:
        raise RuntimeError(
            f"recv: the tensor of rank {taker} must be {sent.alike}, as rank {giver} sends, not "
            f"{received.alike}; make them alike"
        )


def _told(call: Call) -> str:
    return f"{call.name} {call.alike} on {call.chip}".replace("  ", " ")


def _to(root: int | None) -> str:
    return "" if root is None else f" to rank {root}"


def _fill_all(tensors: Tensors, given: torch.Tensor) -> None:
    begin = 0
    for tensor in tensors:
        fill_bytes(tensor, given[begin : begin + tensor.nbytes])
        begin += tensor.nbytes
