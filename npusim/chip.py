"""A whole chip: runs one program per core, for values, times, or both.

Values and times are independent: values are computed core by core in an order that the flags
allow, times follow from the pipes and the memory alone. Both require the same checks, that the
order of the micro-ops is certain (``check/hazards``) and that the chip has them (``check/rules``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

from npusim.check.bounds import check_inside
from npusim.check.group_isolation import check_order
from npusim.check.hazards import Orders, RaceError, complain
from npusim.check.rules import Accepted, Place, check, check_blocks
from npusim.check.unconsumed_flags import check_left_over
from npusim.check.uninitialized import Written
from npusim.check.unstored_outputs import check_stored
from npusim.data.garbage import uncollected
from npusim.data.tensor import GlobalTensor
from npusim.devices.schema import DeviceSpec
from npusim.kernel.builder import shared
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.table import LaunchTable, MicroOps
from npusim.timing.engines import ENGINES, Engine, EngineChoice, engine_named, simulate
from npusim.timing.equivalence import equivalent_cores
from npusim.timing.memory import L2, L2_STATES, Arrival, CarriedL2, L2State, at_launch
from npusim.timing.pipes import Code, Decoder
from npusim.trace import Trace
from npusim.values.play import DEFAULT_MODEL, Model, Player

__all__ = [
    "ENGINES",
    "L2_STATES",
    "Arrival",
    "Binding",
    "Block",
    "CarriedL2",
    "Engine",
    "EngineChoice",
    "L2State",
    "Model",
    "Progress",
    "Stage",
    "compute",
    "engine_named",
    "time",
    "verify",
]

FEW_MICRO_OPS = 4096
"""Micro-ops of a small launch, on all cores (measured)."""

Stage = Literal[
    "programs", "checks", "values", "time", "advice", "kernels", "rows", "cells", "steps",
    "export", "reading", "timelines", "pictures",
]  # fmt: skip
"""The stages of a run, and of work on several runs."""

Progress = Callable[[Stage, float], None]
"""Called with the stage of a run and the completed share of it, from 0 to 1.

The stages of a run are "programs" (writing them), "checks" of them, "values" and "time". The
programs of a million groups or batches are tens of millions of micro-ops; the host writes, checks
and times some 20,000 of them per second.
"""


@uncollected()
def verify(
    blocks: tuple[Block, ...],
    spec: DeviceSpec,
    outputs: Mapping[str, int] | None = None,
    stored: Mapping[str, int] | None = None,
    *,
    flags_may_stay_up: bool = False,
    progress: Progress | None = None,
) -> dict[Program, Sequence[int]]:
    """Check every program once; return an order in which its micro-ops may be computed.

    If *outputs* are given, tensors and their bytes, uninitialised bytes must not end up in them,
    and every byte of those that must be *stored* must be written. *flags_may_stay_up* is for
    kernels of the vendor, some of which set flags between cores that are never waited for; within a
    core all flags must be consumed. *progress* is called for every block. Raises RuleError,
    RaceError, DeadlockError, FlagError or UnwrittenError.
    """
    check_blocks("chip", blocks)
    launch = LaunchTable.of(blocks)
    accepted: dict[str, Accepted] = {}
    first: dict[tuple[str, int], Block] = {}
    """The first block of each kind and sequence; rules check no other."""
    alike = [
        first.setdefault((block.kind, sequence), block)
        for block, sequence in zip(blocks, launch.sequences(), strict=True)
    ]
    for block in first.values():
        known = accepted.setdefault(block.kind, Accepted(launch.micro_ops))
        check(block.program, Place(spec, block.kind), known)
    # Only programs that satisfy the rules have sizes that can be processed.
    found = Orders.of_launch(launch)
    orders: dict[Program, Sequence[int]] = {}
    written: dict[str, Written] = {}
    for number, (block, like) in enumerate(zip(blocks, alike, strict=True)):
        if progress:
            progress("checks", number / len(blocks))
        orders[block.program] = found.of_block(block, like)
        if outputs is not None:
            if block.kind not in written:
                written[block.kind] = Written(spec.cores[block.kind], found, outputs)
            written[block.kind].check(block, orders[block.program], like)
    try:
        check_order(blocks, found)
    except RaceError as error:
        complain(error)
    if stored is not None:
        check_stored(blocks, stored)
    if not flags_may_stay_up:
        check_left_over(blocks)
    return orders


def compute(
    blocks: tuple[Block, ...],
    tensors: list[GlobalTensor],
    spec: DeviceSpec,
    orders: dict[Program, Sequence[int]],
    model: Model = DEFAULT_MODEL,
    *,
    progress: Progress | None = None,
) -> None:
    """Compute the values of every block; output tensors are written in place.

    Blocks run one after the other; one that waits for a flag of another core lets the others
    continue, always the first that can. So atomic additions of several cores to the same bytes
    happen in the order of the cores, which the chip leaves open. *progress* is called for every
    block. Raises TrapError, with the core in its message, when a kernel traps.
    """
    player = Player(blocks, tensors, spec, orders, model)
    player.run((lambda share: progress("values", share)) if progress else None)


def time(
    blocks: tuple[Block, ...],
    tensors: list[GlobalTensor],
    spec: DeviceSpec,
    *,
    l2: L2State = "cold",
    every_core: bool = False,
    engine: EngineChoice = "auto",
    progress: Progress | None = None,
    is_checked: bool = True,
) -> Trace:
    """Time every block, all starting at cycle 0; *every_core* times each one separately.

    *engine* is one of :data:`ENGINES`. *progress* is called from time to time with the share of
    micro-ops that have started. Unless *is_checked*, copies are taken to lie in their tensors.
    """
    if is_checked:
        check_inside(blocks, tensors)
    alone = tuple((block,) for block in blocks)
    # Each core finds different lines among those that earlier launches have left.
    arrival = l2 if isinstance(l2, Arrival) else None
    # Finding equivalent cores of a small launch takes longer than timing each.
    is_small = not is_checked and sum(len(block.program) for block in blocks) <= FEW_MICRO_OPS
    is_each_alone = every_core or arrival is not None or is_small
    groups = alone if is_each_alone else equivalent_cores(blocks, spec)
    micro_ops = MicroOps() if is_small else LaunchTable.of(blocks).micro_ops
    kinds = dict.fromkeys(block.kind for block in blocks)
    decoders = {
        kind: shared((Decoder, kind), partial(Decoder, kind, spec, micro_ops)) for kind in kinds
    }
    codes: dict[tuple[Program, str], Code] = {}
    for first, *_ in groups:
        key = first.program, first.kind
        if key not in codes:
            codes[key] = Code(first.program, decoders[first.kind])
    bindings = [bound for block in blocks for bound in block.bindings.values()]
    cached = {bound.tensor for bound in bindings if bound.is_cached}
    stored = arrival.stored(spec) if arrival else ()
    cache = L2(spec, tensors, at_launch(spec, l2, tensors, cached), stored)
    found = [codes[first.program, first.kind] for first, *_ in groups]
    report = partial(progress, "time") if progress else None
    lanes, written_bytes = simulate(
        *(groups, found, cache, spec, engine_named(engine), report), every_core=every_core
    )
    left = cache.left() if arrival else None
    return Trace(lanes, spec.clock_hz, written_bytes, left)
