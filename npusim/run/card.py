"""A card that remembers: what a launch leaves in its L2 and instruction caches, the next one finds.

::

    with npusim.card("Atlas A2") as card:
        first = card.run("npu_swiglu", x)
        second = card.run("npu_dynamic_quant", first.output)   # which lies in the L2, dirty
        second.l2.resident_bytes                               # of its tensors, at launch

A tensor lies where it was first seen, as long as somebody holds it, and what a call gives back lies
where the call has written it. The same array is the same memory, and so is the same TensorSpec.
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
from npusim.devices.schema import DeviceSpec, ICache
from npusim.run.addresses import Addresses, Block
from npusim.run.call import play
from npusim.run.options import Options
from npusim.run.result import Output
from npusim.run.runs import Run
from npusim.run.user_kernel import OwnKernel
from npusim.run.views import by_operand
from npusim.trace import Trace

__all__ = ["Card", "card"]


class Card:
    """One card: global memory with its addresses, and the caches that launches share."""

    def __init__(self, device: str | os.PathLike[str] | DeviceSpec) -> None:
        self.spec = devices.load(device)
        self.l2 = CarriedL2(self.spec)
        self.kernel: Hashable = None
        """The one that the instruction caches hold, the last that ran."""
        self._addresses = Addresses()
        self._workspace = Block(0, 0)
        """One for all kernels, as large as any of them has wanted (torch_npu,
        NPUWorkspaceAllocator.cpp)."""
        self._lying: dict[int, tuple[Block, weakref.ref[object]]] = {}
        """Owner of memory, by its id -> where it lies, and who hears when the owner is gone."""

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
        """Run *op* as :func:`npusim.run` does, in its place after what the card ran before.

        The instruction caches hold the kernel that ran last, unless *icache* says otherwise. A call
        without *timing* leaves the caches as they are.
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
        """*kernel* is about to run for *problem*, a call with *arguments*."""
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
            places[name] = self._lines(address, nbytes)
            address += allocated_bytes(nbytes)
        stored = {*problem.outputs, *workspaces}
        return Launching(self, kernel, places, {x: blocks[x] for x in problem.outputs}, stored)

    def take(self, nbytes: int) -> Block:
        """Memory for a tensor of *nbytes*, as long as somebody refers to it."""
        return self._addresses.take(nbytes)

    def give_up(self, value: Output) -> Block | None:
        """Where the memory of *value* lies, which the caller looks after from now on; None of what
        the card has not seen.
        """
        block, _ = self._lying.pop(id(_owner(value)[0]), (None, None))
        return block

    def lie(self, value: Output, block: Block) -> None:
        """The memory of *value* lies in *block* from now on."""
        owner, _ = _owner(value)
        number = id(owner)
        gone = weakref.ref(owner, lambda _: self._lying.pop(number, None))
        self._lying[number] = block, gone

    def _place(self, value: object, nbytes: int) -> tuple[Block, range]:
        """Where *value* lies, and its lines; memory of its own for what is no tensor."""
        if not isinstance(value, np.ndarray | Tensor | TensorSpec):
            block = self.take(nbytes)
            return block, self._lines(block.address, nbytes)
        owner, offset = _owner(value)
        if id(owner) not in self._lying:
            whole = owner.nbytes if offset else max(owner.nbytes, nbytes)
            self.lie(owner, self.take(whole))
        block, _ = self._lying[id(owner)]
        if offset + nbytes > block.nbytes:
            block, offset = self.take(nbytes), 0
        return block, self._lines(block.address + offset, nbytes)

    def _lines(self, address: int, nbytes: int) -> range:
        line_bytes = self.spec.l2.line_bytes
        first = address // line_bytes
        return range(first, first - -allocated_bytes(nbytes) // line_bytes)


class Launching:
    """A launch on a card: what it finds, and what becomes of what it leaves."""

    def __init__(
        self,
        card: Card,
        kernel: Hashable,
        places: Mapping[str, range],
        outputs: Mapping[str, Block],
        stored: set[str],
    ) -> None:
        self._card, self._kernel, self._places = card, kernel, places
        self._outputs, self._stored = outputs, stored
        self.l2: Arrival = card.l2.found(places)
        self.icache: ICache = "warm" if kernel == card.kernel else "cold"

    def ended(self, trace: Trace, outputs: Mapping[str, Output]) -> dict[str, Output]:
        """The launch has ended; *outputs* as tensors of the card."""
        assert trace.left is not None
        card = self._card
        card.l2.launched(self._places, trace.left, self._stored)
        card.kernel = self._kernel
        found = {}
        for name, output in outputs.items():
            # Specs are shared by calls of the same shapes, whose results are not the same memory.
            own = replace(output) if isinstance(output, TensorSpec) else output
            card.lie(own, self._outputs[name])
            found[name] = own
        return found


def card(device: str | os.PathLike[str] | DeviceSpec) -> Card:
    """The card of a chip, on which launches find what earlier ones have left; nothing at first.

    Raises ValueError for an unknown device.
    """
    return Card(device)


def _owner(value: Output) -> tuple[Any, int]:
    """The array or spec that stands for the memory of *value*, and how far in it *value* begins."""
    if isinstance(value, TensorSpec):
        return value, 0
    array = value.storage if isinstance(value, Tensor) else value
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    starts = [each.__array_interface__["data"][0] for each in (array, owner)]
    return owner, max(0, starts[0] - starts[1])
