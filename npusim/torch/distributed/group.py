"""The process group of the backend hccl: collectives of npu tensors, with bits and time.

A collective begins when the last rank of the group has joined and the previous collective has
ended; it ends on all ranks at the same time. The card can compute in the meantime: `wait()`, and
every call that is not asynchronous, makes its stream wait for the end.
"""

from __future__ import annotations

from typing import Any

import torch

from npusim import collectives
from npusim.data.dtypes import Array
from npusim.torch import card
from npusim.torch.clock import clock
from npusim.torch.distributed.meeting import BARRIER_BYTES, Meeting, Tensors, captured
from npusim.torch.distributed.tensors import (
    array_of,
    bytes_of,
    check,
    described,
    fill,
    fill_bytes,
    operation_of,
)
from npusim.torch.distributed.transport import NOTHING, Call
from npusim.torch.distributed.work import Done, Later, together

__all__ = ["HcclGroup"]


class HcclGroup(Meeting):
    """Ranks whose cards are connected by the links of their chip."""

    # ---- reductions ----

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Done:
        """`all_reduce`: each rank gets the sum, or another reduction, over all ranks."""
        return self._all_reduced("all_reduce", tensors, opts, None)

    def reduce(self, tensors: Tensors, opts: Any = None) -> Done:
        """`reduce`: the root gets the result of `all_reduce`."""
        return self._all_reduced("reduce", tensors, opts, opts.rootRank)

    @captured
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
        """`reduce_scatter_tensor`: each rank gets its share of the reduction over all ranks."""
        return self._scattered(output, [input], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> Done:
        """`reduce_scatter` of a list with a tensor for each rank."""
        self._require_list("reduce_scatter", "the list of inputs", inputs[0])
        return self._scattered(outputs[0], inputs[0], opts)

    @captured
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
        """Compute the mean: a kernel of the card divides the sum."""
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
        """`all_gather_into_tensor`: each rank gets the inputs of all, in order of ranks."""
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
        """`gather`: the root gets the inputs of all ranks."""
        places: Tensors = []
        if self.rank() == opts.rootRank:
            places = outputs[0]
            self._require_list("gather", "the list of the root", places)
            self._require_whole("gather", "output", places, "input", inputs[0])
        check("gather", [*places, *inputs])
        return self._gathered("gather", inputs[0], places, _to(opts.rootRank))

    @captured
    def _gathered(self, name: str, given: torch.Tensor, outputs: Tensors, to: str) -> Done:
        """Write the bytes of all ranks to *outputs*, in order of ranks."""

        def finish(parts: list[torch.Tensor], _: list[Call]) -> None:
            _fill_all(outputs, torch.cat(parts))

        alike = f"{described(given)}{to}"
        return self._run(name, alike, given.nbytes, bytes_of(given), outputs, finish)

    @captured
    def broadcast(self, tensors: Tensors, opts: Any = None) -> Done:
        """`broadcast`: each rank gets the tensor of the root."""
        check("broadcast", tensors)
        (tensor,), root = tensors, opts.rootRank
        given = bytes_of(tensor) if self.rank() == root else NOTHING

        def finish(parts: list[torch.Tensor], _: list[Call]) -> None:
            fill_bytes(tensor, parts[root])

        alike = f"{described(tensor)} from rank {root}"
        return self._run("broadcast", alike, tensor.nbytes, given, tensors, finish)

    @captured
    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> Done:
        """`scatter`: each rank gets its part of the inputs of the root."""
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
        """`all_to_all_single`: each rank sends a part along the first dimension to each other."""
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

    @captured
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

    @captured
    def barrier(self, opts: Any = None) -> Done:  # noqa: ARG002
        """`barrier`: returns when all ranks have reached it."""
        return self._run("barrier", "", BARRIER_BYTES, NOTHING, [], lambda *_: None)

    # ---- messages ----

    @captured
    def send(self, tensors: Tensors, dstRank: int, tag: int = 0) -> Later:  # noqa: N803
        """`isend`: the message begins when the receiver is ready."""
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

    @captured
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
        """The time at which a message ends."""
        is_beyond = self._server_of[other] != self._server_of[self.rank()]
        time_us = collectives.message_us(tensor.nbytes, card.spec(), is_beyond=is_beyond)
        clock.communicate(name, begin_us, time_us, described(tensor))
        return begin_us + time_us

    # ---- several at once ----

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Done:
        """`allreduce` of each of several tensors."""
        return together([self.allreduce([tensor], opts) for tensor in tensors])

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Done:
        """`all_gather_single` of each of several tensors."""
        pairs = zip(outputs, inputs, strict=True)
        return together([self.all_gather_single(*pair, opts) for pair in pairs])

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Done:
        """`reduce_scatter_single` of each of several tensors."""
        pairs = zip(outputs, inputs, strict=True)
        return together([self.reduce_scatter_single(*pair, opts) for pair in pairs])

    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced


def _agree_on_message(sent: Call, received: Call, giver: int, taker: int) -> None:
    if sent.alike != received.alike:
        raise RuntimeError(
            f"recv: the tensor of rank {taker} must be {sent.alike}, as rank {giver} sends, not "
            f"{received.alike}; make them alike"
        )


def _to(root: int | None) -> str:
    return "" if root is None else f" to rank {root}"


def _fill_all(tensors: Tensors, given: torch.Tensor) -> None:
    begin = 0
    for tensor in tensors:
        fill_bytes(tensor, given[begin : begin + tensor.nbytes])
        begin += tensor.nbytes
