"""Which blocks of a launch are computed side by side, as the lanes of one array.

Blocks that run the same bodies in the same order differ only in where their names of global memory
begin. They do not meet before they have ended, or only where a flag between cores makes all of them
wait, and the checks have shown that no block touches what another writes without such a flag. So
micro-op after micro-op may be computed for all of them at once: each has its own buffers and
registers, and finds in global memory what it would find alone.

Three things are left alone. Atomic additions round, so their order counts: a block that has one
runs by itself, and where cores meet all do then. A matrix of the cube is one call of numpy already,
and is held otherwise (``matrices``). And where a core may trap, the first one in the order of the
blocks must be the one that is named: batches that meet would have to wait for one that stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from npusim.data.integers import ceil_div
from npusim.kernel.program import Block, Call, Program
from npusim.values.facts import Facts, facts_of

__all__ = ["OPERAND_BYTES", "Batch", "batches"]

Batch = tuple[Block, ...]
"""Blocks that run side by side, in the order of the launch; one alone is a batch too."""

OPERAND_BYTES = 1 << 20
"""How large an operand may become by lying side by side: two of them, read and written, stay in the
second cache of a processor of today, which is faster than calling numpy more seldom (measured)."""


def batches(blocks: Sequence[Block], calls: Mapping[Program, tuple[Call, ...]]) -> list[Batch]:
    """*blocks* in batches, in the order of the first of each.

    *calls* are those of each program, in an order in which they may be computed.
    """
    facts = [facts_of(body) for body in {call.body for each in calls.values() for call in each}]
    meets, traps = any(each.meets for each in facts), any(each.traps for each in facts)
    if meets and (traps or any(each.adds for each in facts)):
        return [(block,) for block in blocks]
    known = {program: [facts_of(call.body) for call in calls[program]] for program in calls}
    groups: dict[object, list[int]] = {}
    for index, block in enumerate(blocks):
        key = _key(block, calls[block.program], known[block.program])
        groups.setdefault(key, []).append(index)
    cut = []
    for group in groups.values():
        widest = max((each.width for each in known[blocks[group[0]].program]), default=0)
        most = max(1, OPERAND_BYTES // max(1, widest))
        # As few batches as that allows, of about the same number of lanes.
        lanes = ceil_div(len(group), ceil_div(len(group), most))
        cut += [group[first : first + lanes] for first in range(0, len(group), lanes)]
    return [tuple(blocks[index] for index in group) for group in sorted(cut)]


def _key(block: Block, calls: tuple[Call, ...], facts: Sequence[Facts]) -> tuple[object, ...]:
    """What blocks that run side by side have in common; nobody else has that of one alone."""
    if any(each.is_alone for each in facts):
        return (block,)
    bodies = tuple(call.body for call in calls)
    return block.kind, bodies, tuple((name, bound.tensor) for name, bound in block.bindings.items())
