"""A whole chip: plays one program a core, for its values, for its times, or for both.

Values and times do not depend on each other: values are computed core by core in an order that the
flags allow, times come from the pipes and the memory alone. Both rest on the same check that the
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
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.table import LaunchTable
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

Stage = Literal[
    "programs", "checks", "values", "time", "advice", "kernels", "rows", "cells", "steps",
    "export", "reading", "timelines", "pictures",
]  # fmt: skip
"""What is being done, of a run and of what is made of runs."""

Progress = Callable[[Stage, float], None]
"""Called with the stage of a run and the share of it that is done, from 0 to 1.

Those of a run are "programs", which are written, "checks" of them, "values" and "time". The
programs of a million groups or batches are tens of millions of micro-ops, and the host writes,
checks and times some 20,000 of them a second.
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
    """Check every program once; returns an order in which its micro-ops may be computed.

    Where *outputs* are given, tensors and their bytes, what nobody wrote must not end up in them;
    of those that must be *stored* no byte may be left as it was.
    *flags_may_stay_up* is for kernels of the vendor's, some of which set flags between cores that
    nobody awaits any more; within a core none may stay up. *progress* hears of every block. Raises
    RuleError, RaceError, DeadlockError, FlagError or UnwrittenError.
    """
    check_blocks("chip", blocks)
    launch = LaunchTable.of(blocks)
    accepted: dict[str, Accepted] = {}
    first: dict[tuple[str, int], Block] = {}
    """The first block of each kind and sequence: rules look at no other."""
    alike = [
        first.setdefault((block.kind, sequence), block)
        for block, sequence in zip(blocks, launch.sequences(), strict=True)
    ]
    for block in first.values():
        known = accepted.setdefault(block.kind, Accepted(launch.micro_ops))
        check(block.program, Place(spec, block.kind), known)
    # Only what the rules let through is of a size that can be looked at.
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
    """Run the values of every block; output tensors are written in place.

    Blocks run one after the other; one that waits for a flag of another core lets the others go
    on, always the first that can. Atomic additions of several cores to the same bytes so happen in
    the order of the cores, where the chip leaves it open. *progress* hears of every block. Raises
    TrapError, its message saying on which core, when a kernel traps.
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
) -> Trace:
    """Time every block, all starting at cycle 0; *every_core* on times each on its own.

    *engine* is one of :data:`ENGINES`. *progress* hears now and then which share of the micro-ops
    has started.
    """
    check_inside(blocks, tensors)
    alone = tuple((block,) for block in blocks)
    # Of lines that earlier launches have left, each core finds others.
    arrival = l2 if isinstance(l2, Arrival) else None
    groups = alone if every_core or arrival else equivalent_cores(blocks, spec)
    micro_ops = LaunchTable.of(blocks).micro_ops
    decoders = {block.kind: Decoder(block.kind, spec, micro_ops) for block in blocks}
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
