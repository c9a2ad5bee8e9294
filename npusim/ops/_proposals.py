"""Sorting of float32 keys on AI cores of Atlas inference, by proposals that carry a word.

asc-devkit@82b89a1 impl/basic_api, Sort and Extract of kernel_operator_proposal_intf_impl.h, and
DoFullSort of dav_m200/kernel_operator_proposal_impl.h: lists of 16 are merged four at a time, and
the result is copied back, as often as eight times as many keys would need.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32, INT32
from npusim.data.integers import ceil_div
from npusim.isa import PROPOSAL_ELEMENTS, PROPOSALS_AT_ONCE, SCORE, Local
from npusim.kernel import VectorCore

LABEL = 5
"""The element of a proposal with the word that accompanies a key."""
LISTS_AT_ONCE = 4
"""Lists that MrgSort4 merges."""
WORDS_OF_A_REST = 2
"""Words per key of a single remaining list, which are copied; the others are already there."""


class ProposalSorter:
    """Two buffers of *most* proposals, a multiple of 16."""

    def __init__(self, core: VectorCore, most: int) -> None:
        self.core = core
        self.here, self.sorted = (core.tile(FLOAT32, most * PROPOSAL_ELEMENTS) for _ in range(2))

    def sort(self, keys: Local, labels: Local) -> None:
        """Sort *keys* `(n,)` of float32 in descending order, stably, with *labels*."""
        core, count = self.core, keys.count
        here, found = self.here[: count * PROPOSAL_ELEMENTS], self.sorted
        core.proposal_concat(SCORE, here, keys)
        core.proposal_concat(LABEL, here, labels.as_dtype(FLOAT32))
        found = found[: here.count]
        core.rp_sort16(found, here)
        core.copy(here, found)
        lists, size = count // PROPOSALS_AT_ONCE, PROPOSALS_AT_ONCE
        rest, groups = lists % LISTS_AT_ONCE, lists // LISTS_AT_ONCE
        for _ in range(rounds(here.count)):
            whole, last = groups * LISTS_AT_ONCE * size, count % size or size
            self._merge(0, whole, (size,) * LISTS_AT_ONCE)
            if rest > 1:
                self._merge(whole, count - whole, (*[size] * (rest - 1), last))
            elif rest:
                words = last * WORDS_OF_A_REST
                core.copy(*(x.at(whole * PROPOSAL_ELEMENTS, words) for x in (found, here)))
            core.copy(here, found)
            lists, size = ceil_div(lists, LISTS_AT_ONCE), size * LISTS_AT_ONCE
            rest = lists % LISTS_AT_ONCE
            if not rest and last != size:
                rest = LISTS_AT_ONCE
            groups = (lists - rest) // LISTS_AT_ONCE

    def _merge(self, first: int, count: int, lists: tuple[int, ...]) -> None:
        """Merge the lists of these sizes, from proposal *first* on, into one, repeatedly."""
        if count:
            part = first * PROPOSAL_ELEMENTS, count * PROPOSAL_ELEMENTS
            self.core.mrg_sort4(self.sorted.at(*part), self.here.at(*part), lists)

    def take(self, keys: Local, labels: Local) -> None:
        """Copy the result to *keys* `(n,)` and *labels* of int32."""
        found = self.sorted[: keys.count * PROPOSAL_ELEMENTS]
        self.core.proposal_extract(SCORE, keys, found)
        self.core.proposal_extract(LABEL, labels.as_dtype(FLOAT32), found)


def rounds(elements: int) -> int:
    """How often lists are merged for that many keys."""
    found = 0
    while elements > PROPOSALS_AT_ONCE:
        elements, found = elements // LISTS_AT_ONCE, found + 1
    return found


def numbers_of(core: VectorCore, labels: Local, count: int) -> Local:
    """The first *count* int32 *labels* as float32, in the same buffer."""
    values = labels.as_dtype(FLOAT32)[:count]
    core.cast(values, labels.as_dtype(INT32)[:count], "none")
    return values
