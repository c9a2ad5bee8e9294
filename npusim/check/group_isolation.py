"""Flags between cores, group by group where groups have nothing to do with each other.

Where all flags between cores tie the cores of a group, and groups share no bytes that one of them
writes, what holds for a group follows from its own programs. Groups whose programs are the same
bodies, moved alike where their cores meet, are checked once.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from npusim.check.byte_ranges import Ranges, Search, is_read_elsewhere, overlap
from npusim.check.cross_core_races import check_apart, check_tensors, shared_tensors
from npusim.check.hazards import CrossCoreOrder, HazardError, Orders, Recorder
from npusim.isa import CrossCoreSetFlag, CrossCoreWaitFlag
from npusim.kernel.program import Block

__all__ = ["check_order"]

Group = tuple[Block, ...]


def check_order(blocks: tuple[Block, ...], orders: Orders) -> None:
    """Raise DeadlockError, FlagError or RaceError for what flags between cores leave open."""
    groups, ranges, recorder = _groups(blocks), Search(blocks), Recorder(orders)
    is_apart = len(groups) > 1 and _have_only_own_flags(blocks)
    if not is_apart or _share_bytes(groups, ranges):
        check_apart(blocks, CrossCoreOrder(blocks, recorder))
        return
    try:
        _check_each(groups, ranges, recorder)
    except HazardError:
        # It is said of all of them: which cores wait for ever, say.
        check_apart(blocks, CrossCoreOrder(blocks, recorder))
        raise


def _check_each(groups: tuple[Group, ...], ranges: Search, recorder: Recorder) -> None:
    known: set[Hashable] = set()
    for group in groups:
        tensors = shared_tensors(group, ranges)
        key = _key(group, tensors)
        if key not in known:
            known.add(key)
            check_tensors(group, tensors, CrossCoreOrder(group, recorder))


def _groups(blocks: tuple[Block, ...]) -> tuple[Group, ...]:
    """*blocks* by group."""
    found: dict[int, list[Block]] = {}
    for block in blocks:
        found.setdefault(block.group, []).append(block)
    return tuple(tuple(group) for group in found.values())


def _have_only_own_flags(blocks: tuple[Block, ...]) -> bool:
    """Whether there are flags between cores, all of them of groups."""
    bodies = {leaf: None for block in blocks for leaf in block.program.leaves}
    kinds = CrossCoreSetFlag, CrossCoreWaitFlag
    modes = {op.mode for body in bodies for op in body if isinstance(op, kinds)}
    return modes == {"group"}


def _share_bytes(groups: tuple[Group, ...], ranges: Search) -> bool:
    """Whether a group touches bytes that another one writes."""
    blocks = [block for group in groups for block in group]
    for tensor in sorted({bound.tensor for block in blocks for bound in block.bindings.values()}):
        writes = _of_groups(ranges, groups, tensor, True)
        if writes.starts.size and (
            overlap(writes) or is_read_elsewhere(writes, _of_groups(ranges, groups, tensor, False))
        ):
            return True
    return False


def _of_groups(ranges: Search, groups: tuple[Group, ...], tensor: str, is_write: bool) -> Ranges:
    """What each group reads or writes of *tensor*; ranges of one are apart."""
    found = [
        ranges.of_tensor(group, tensor, is_write).joined(number)
        for number, group in enumerate(groups)
    ]
    starts, ends, owners = (np.concatenate(column) for column in zip(*found, strict=True))
    by_start = np.argsort(starts, kind="stable")
    return Ranges(starts[by_start], ends[by_start], owners[by_start])


def _key(group: Group, tensors: list[str]) -> Hashable:
    """Equal for groups whose cores meet in *tensors* alike."""
    origins: dict[str, int] = {}
    found: list[Hashable] = []
    for block in group:
        names = []
        for name, bound in sorted(block.bindings.items()):
            if bound.tensor in tensors:
                origin = origins.setdefault(bound.tensor, bound.base_bytes)
                names.append((name, bound.tensor, bound.base_bytes - origin))
        calls = tuple(
            [
                (call.body, *[call.shifts.get(name, 0) for name, _, _ in names])
                for call in block.program.calls
            ]
        )
        found.append((block.kind, tuple(names), calls))
    return tuple(found)
