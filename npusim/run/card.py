"""A card with state: each launch finds the L2 and instruction caches as the previous one left them.

::

    with npusim.card("Atlas A2") as card:
        first = card.run("npu_swiglu", x)
        second = card.run("npu_dynamic_quant", first.output)   # which lies in the L2, dirty
        second.l2.resident_bytes                               # of its tensors, at launch

A tensor has the address of its first use for as long as it is referenced; outputs of a call are
where the call has written them. The same array is the same memory, and so is the same TensorSpec.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from npusim import devices, ops
from npusim.chip import Arrival, CarriedL2, EngineChoice, Progress
from npusim.data.arguments import Arguments
from npusim.data.product import CubeOrder
from npusim.data.tensor import Tensor, TensorSpec, allocated_bytes
from npusim.devices.schema import DeviceSpec, FoundCode, ICache
from npusim.run.addresses import Addresses, Block
from npusim.run.call import play
from npusim.run.options import Options
from npusim.run.result import Output
from npusim.run.runs import Run
from npusim.run.user_kernel import OwnKernel
from npusim.run.views import by_operand
from npusim.trace import Trace
from npusim.trace.left import Runs

__all__ = ["Card", "card"]

CODE = "code"
"""Name of the kernel's code among the tensors of a launch; no tensor name begins with it."""


class Card:
    """One card: global memory with its addresses, and the caches that launches share."""

    def __init__(self, device: str | os.PathLike[str] | DeviceSpec) -> None:
        self.spec = devices.load(device)
        self.l2 = CarriedL2(self.spec)
        self.code = CarriedCode(self)
        self._addresses = Addresses()
        self._workspace = Block(0, 0)
        """One for all kernels, as large as any of them has requested (torch_npu,
        NPUWorkspaceAllocator.cpp)."""
        self._lying: dict[int, tuple[Block, weakref.ref[object]]] = {}
        """Owner of memory, by id -> its block, and a reference that reports the owner's end."""

    def __enter__(self) -> Card:
        return self

    def __exit__(self, *_: object) -> None:
        self._lying.clear()

    def run(
        self,
        op: str | OwnKernel,
        *args: object,
        values: bool = True,
        timing: bool = True,
        icache: ICache | None = None,
        every_core: bool = False,
        engine: EngineChoice = "auto",
        byte_exact: bool = False,
        cube_order: CubeOrder = "k16",
        progress: Progress | None = None,
        **kwargs: Any,
    ) -> Run:
        """Run *op* as :func:`npusim.run` does, after everything that the card ran before.

        The instruction caches hold what the latest kernels have left, unless *icache* says
        otherwise. A call without *timing* leaves the caches unchanged.
        """
        options = Options(
            values=values,
            timing=timing,
            icache=icache,
            every_core=every_core,
            engine=engine,
            byte_exact=byte_exact,
            cube_order=cube_order,
            card=self,
        )
        return Run.of(play(op, args, kwargs, self.spec, options, progress))

    def launch(
        self, kernel: Hashable, problem: ops.Problem, plan: ops.Plan, arguments: Arguments
    ) -> Launching:
        """Prepare the launch of *kernel* for *problem*, a call with *arguments*."""
        given = by_operand(arguments)
        blocks: dict[str, Block] = {}
        places: dict[str, range] = {}
        for name, spec in problem.outputs.items():
            old = given.get(problem.updated[name].name) if name in problem.updated else None
            blocks[name], places[name] = self._place(old, spec.nbytes)
        for operand in problem.inputs:
            if operand.name not in places:
                value = given.get(operand.name)
                blocks[operand.name], places[operand.name] = self._place(value, operand.spec.nbytes)
        workspaces = dict(plan.workspaces)
        wanted = sum(map(allocated_bytes, workspaces.values()))
        if wanted > self._workspace.nbytes:
            self._workspace = Block(0, 0)
            self._workspace = self.take(wanted)
        address = self._workspace.address
        for name, nbytes in workspaces.items():
            places[name] = self.lines(address, nbytes)
            address += allocated_bytes(nbytes)
        stored = {*problem.outputs, *workspaces}
        outputs = {x: blocks[x] for x in problem.outputs}
        return Launching(self, (kernel, plan.reads_tiling), places, outputs, stored)

    def take(self, nbytes: int) -> Block:
        """Memory for a tensor of *nbytes*, for as long as it is referenced."""
        return self._addresses.take(nbytes)

    def give_up(self, value: Output) -> Block | None:
        """The block of *value*, which the caller owns from now on; None for what the card has not
        seen.
        """
        block, _ = self._lying.pop(id(_owner(value)[0]), (None, None))
        return block

    def lie(self, value: Output, block: Block) -> None:
        """Record that the memory of *value* is *block*."""
        owner, _ = _owner(value)
        number = id(owner)
        gone = weakref.ref(owner, lambda _: self._lying.pop(number, None))
        self._lying[number] = block, gone

    def _place(self, value: object, nbytes: int) -> tuple[Block, range]:
        """The block of *value*, and its lines; new memory for objects that are not tensors."""
        if not isinstance(value, np.ndarray | Tensor | TensorSpec):
            block = self.take(nbytes)
            return block, self.lines(block.address, nbytes)
        owner, offset = _owner(value)
        if id(owner) not in self._lying:
            whole = owner.nbytes if offset else max(owner.nbytes, nbytes)
            self.lie(owner, self.take(whole))
        block, _ = self._lying[id(owner)]
        if offset + nbytes > block.nbytes:
            block, offset = self.take(nbytes), 0
        return block, self.lines(block.address + offset, nbytes)

    def lines(self, address: int, nbytes: int) -> range:
        """The lines of the L2 for *nbytes* from *address*."""
        line_bytes = self.spec.l2.line_bytes
        first = address // line_bytes
        return range(first, first - -allocated_bytes(nbytes) // line_bytes)


class CarriedCode:
    """The code that launches have left in the instruction caches of a card, and in its L2.

    A kernel runs through its code from the first line to the last, so an instruction cache holds
    all of it or, if other code has come in since, nothing useful: the oldest lines are evicted
    first, and they are the first that are needed again.
    """

    def __init__(self, card: Card) -> None:
        self._card = card
        self._caches: dict[str, dict[Hashable, int]] = {}
        """Kind of core -> the kernels whose code its caches hold, and its bytes, the oldest first.
        """
        self._blocks: dict[Hashable, Block] = {}
        """The block of each kernel's code in global memory."""

    def place(self, kernel: Hashable, code_bytes: Mapping[str, int]) -> range:
        """The lines of the code of *kernel*."""
        nbytes = sum(code_bytes.values())
        block = self._blocks.get(kernel)
        if block is None or block.nbytes < nbytes:
            block = self._blocks[kernel] = self._card.take(nbytes)
        return self._card.lines(block.address, nbytes)

    def launched(self, kernel: Hashable, code_bytes: Mapping[str, int]) -> FoundCode:
        """Record a run of *kernel* with *code_bytes* per kind; return where its code was found."""
        place = self.place(kernel, code_bytes)
        resident_bytes = self._card.l2.found({CODE: place}).resident_bytes
        l2_share = resident_bytes / (len(place) * self._card.spec.l2.line_bytes)
        held = [x for x, size in code_bytes.items() if self._is_held(kernel, x, size)]
        return FoundCode(frozenset(held), l2_share)

    def _is_held(self, kernel: Hashable, kind: str, nbytes: int) -> bool:
        """Whether the caches of *kind* hold *kernel*, which has just run."""
        cache = self._caches.setdefault(kind, {})
        capacity_bytes = self._card.spec.cores[kind].code.cache_bytes
        known_bytes = cache.pop(kernel, 0)
        cache[kernel] = max(known_bytes, nbytes)
        while sum(cache.values()) > capacity_bytes:
            del cache[next(iter(cache))]
        return nbytes <= known_bytes and kernel in cache


class Launching:
    """A launch on a card: the state it finds, and the state it leaves."""

    def __init__(
        self,
        card: Card,
        kernel: tuple[Hashable, int],
        places: Mapping[str, range],
        outputs: Mapping[str, Block],
        stored: set[str],
    ) -> None:
        self._card, self._kernel, self._places = card, kernel, places
        self._outputs, self._stored = outputs, stored
        self.l2: Arrival = card.l2.found(places)
        self.found: dict[str, Any] = {}

    def ended(self, trace: Trace, outputs: Mapping[str, Output]) -> dict[str, Output]:
        """End the launch; return *outputs* as tensors of the card."""
        assert trace.left is not None
        card, (kernel, reads_tiling) = self._card, self._kernel
        code_bytes = card.spec.code_bytes(trace.code, reads_tiling)
        place = card.code.place(kernel, code_bytes)
        found_code = card.code.launched(kernel, code_bytes)
        icache: ICache = "warm" if found_code.held >= code_bytes.keys() else "cold"
        self.found = {"found_code": found_code, "icache": icache}
        touched = Runs(np.array([len(place)]), np.zeros(1, np.int64))
        left = trace.left._replace(touched={**trace.left.touched, CODE: touched})
        card.l2.launched({**self._places, CODE: place}, left, self._stored)
        found = {}
        for name, output in outputs.items():
            # Calls of the same shapes share specs, but their results are different memory.
            own = replace(output) if isinstance(output, TensorSpec) else output
            card.lie(own, self._outputs[name])
            found[name] = own
        return found


def card(device: str | os.PathLike[str] | DeviceSpec) -> Card:
    """The card of a chip, whose launches find what earlier ones have left; initially empty.

    Raises ValueError for an unknown device.
    """
    return Card(device)


def _owner(value: Output) -> tuple[Any, int]:
    """The array or spec that represents the memory of *value*, and the offset of *value* in it."""
    if isinstance(value, TensorSpec):
        return value, 0
    array = value.storage if isinstance(value, Tensor) else value
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    starts = [each.__array_interface__["data"][0] for each in (array, owner)]
    return owner, max(0, starts[0] - starts[1])
