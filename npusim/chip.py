"""A whole chip: plays one program a core, for its values, for its times, or for both.

Values and times never look at each other: values are computed core by core in an order that the
flags allow, times come from the pipes and the memory alone. Both rest on the same check that the
order of the micro-ops is certain (``hazards``) and that the chip has them (``rules``).
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Literal

import simpy

from npusim.buffers import Buffers
from npusim.errors import TrapError
from npusim.fold import fold
from npusim.footprint import check_apart
from npusim.hazards import order
from npusim.isa import Barrier, MicroOp, SetFlag, WaitFlag
from npusim.memory import SharedMemory
from npusim.program import Binding, Block, Program
from npusim.reach import check_inside
from npusim.rules import Place, check
from npusim.semantics import Memory, State, run
from npusim.spec import DeviceSpec
from npusim.tensor import GlobalTensor
from npusim.trace import Trace
from npusim.units import Code, Crossings, Decoder, Lane

__all__ = ["Binding", "Block", "L2State", "Progress", "compute", "time", "verify"]

L2State = Literal["cold", "warm"]
"""Whether inputs and outputs were touched just before the launch."""
Progress = Callable[[str, float], None]
"""Hears how far a run has come: "values" or "time", and the share that is done, from 0 to 1."""
EVENTS_PER_REPORT = 1000


def verify(blocks: tuple[Block, ...], spec: DeviceSpec) -> dict[Program, tuple[int, ...]]:
    """Check every program once; returns an order in which its micro-ops may be computed.

    Raises RuleError, RaceError or DeadlockError.
    """
    orders: dict[Program, tuple[int, ...]] = {}
    seen: set[tuple[Program, str]] = set()
    for block in blocks:
        if (block.program, block.kind) not in seen:
            seen.add((block.program, block.kind))
            check(block.program, Place(spec, block.kind))
        if block.program not in orders:
            orders[block.program] = order(block.program)
    check_apart(blocks)
    return orders


def compute(
    blocks: tuple[Block, ...],
    tensors: list[GlobalTensor],
    spec: DeviceSpec,
    orders: dict[Program, tuple[int, ...]],
    *,
    progress: Progress | None = None,
) -> None:
    """Run the values of every block; output tensors are written in place.

    *progress* hears of every block. Raises TrapError, its message saying on which core, when a
    kernel traps.
    """
    bytes_of = {tensor.name: tensor.data for tensor in tensors}
    buffers: dict[str, Buffers] = {}
    working: dict[Program, list[MicroOp]] = {}
    for program, indices in orders.items():
        moves = (program.ops[index] for index in indices)
        working[program] = [op for op in moves if not isinstance(op, SetFlag | WaitFlag | Barrier)]
    for index, block in enumerate(blocks):
        if progress:
            progress("values", index / len(blocks))
        if block.kind not in buffers:
            buffers[block.kind] = Buffers(spec.cores[block.kind])
        buffers[block.kind].reset()
        memories = {}
        for name, bound in block.bindings.items():
            data = bytes_of[bound.tensor]
            if data is None:
                raise ValueError(
                    f"chip: tensor {bound.tensor} must have values, but only its size is known; "
                    f"place an array or ask for time only"
                )
            memories[name] = Memory(data, bound.base_bytes)
        try:
            run(working[block.program], State(buffers[block.kind], memories, spec.half_overflow))
        except TrapError as trap:
            raise TrapError(f"{trap} (core {block.core})") from None


def time(
    blocks: tuple[Block, ...],
    tensors: list[GlobalTensor],
    spec: DeviceSpec,
    *,
    l2: L2State = "cold",
    folded: bool = True,
    progress: Progress | None = None,
) -> Trace:
    """Time every block, all starting at cycle 0; *folded* off times each on its own.

    *progress* hears now and then which share of the micro-ops has started.
    """
    check_inside(blocks, tensors)
    env = simpy.Environment()
    warm = l2 == "warm"
    memory = SharedMemory(env, spec, tensors, warm)
    groups = fold(blocks, tensors, spec, warm) if folded else tuple((block,) for block in blocks)
    decoders = {block.kind: Decoder(block.kind, spec) for block in blocks}
    codes: dict[tuple[Program, str], Code] = {}
    for first, *_ in groups:
        key = first.program, first.kind
        if key not in codes:
            codes[key] = Code(first.program, decoders[first.kind])
    # Cores of one kind share their flags' numbers, so all is decoded before the first lane is made.
    crossings = Crossings()
    lanes = [
        Lane(env, memory, crossings, codes[group[0].program, group[0].kind], group)
        for group in groups
    ]
    for lane in lanes:
        lane.run()
    if progress:
        _watch(env, lanes, progress)
    env.run()
    return Trace(tuple(lane.finish() for lane in lanes), spec.clock_hz)


def _watch(env: simpy.Environment, lanes: list[Lane], progress: Progress) -> None:
    """Let SimPy work until nothing is left to do, with reports in between."""
    total = sum(lane.waiting for lane in lanes)
    while env.peek() < inf:
        progress("time", 1 - sum(lane.waiting for lane in lanes) / total)
        for _ in range(EVENTS_PER_REPORT):
            if env.peek() == inf:
                break
            env.step()
