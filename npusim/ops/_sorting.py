"""Sorting of any number of keys in the unified buffer: Sort32, then merges of four lists.

asc-devkit, Sort.md: of equal keys the one with the lower index comes first, which Sort32 and
MrgSort preserve list by list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from npusim.data.dtypes import FLOAT32, INT32, UINT64, DType
from npusim.data.integers import align_up
from npusim.isa import SORTED_AT_ONCE, Local, Register
from npusim.kernel import VectorCore

LISTS_AT_ONCE = 4
"""Lists that MrgSort merges."""
PAIRS_OF_A_BLOCK = 4
"""Pairs in a block, at which a vector operand must begin."""
WORDS_OF_A_PAIR = 2
List = tuple[int | Register, int]
"""Index of its first pair, and number of pairs."""


def padded(count: int) -> int:
    """*count* rounded up to what Sort32 needs."""
    return align_up(count, SORTED_AT_ONCE)


def _at_once(lists: Sequence[List]) -> Iterator[Sequence[List]]:
    """Up to four of *lists* at a time.

    A single remaining list is grouped with another one if a register gives its start: MrgSort does
    not accept a single list, and no copy can start at a register.
    """
    cuts = [*range(0, len(lists), LISTS_AT_ONCE), len(lists)]
    if len(lists) > 1 == cuts[-1] - cuts[-2] and not isinstance(lists[-1][0], int):
        cuts[-2] -= 1
    return (lists[first:end] for first, end in pairwise(cuts))


class Sorter:
    """Two buffers of *most* pairs, between which lists alternate as they are merged.

    The next list is stored where the last one ended.
    """

    def __init__(self, core: VectorCore, most: int) -> None:
        self.core = core
        self.here, self.there = core.tile(UINT64, most), core.tile(UINT64, most)

    def sort(self, keys: Local, indices: Local, each: int | None = None) -> list[List]:
        """Sort *keys* `(n,)` with their *indices*, into lists of *each*, or into one.

        Both are multiples of 32.
        """
        each = keys.count if each is None else each
        self.core.sort32(self.here[: keys.count], keys, indices)
        return self.merge(
            [
                [(start, SORTED_AT_ONCE) for start in range(first, first + each, SORTED_AT_ONCE)]
                for first in range(0, keys.count, each)
            ]
        )

    def merge(self, groups: Sequence[Sequence[List]]) -> list[List]:
        """Merge the lists of each of *groups* into one each."""
        while max(map(len, groups)) > 1:
            groups = self._round(groups)
        return [lists[0] for lists in groups]

    def _round(self, groups: Sequence[Sequence[List]]) -> list[list[List]]:
        """Merge up to four lists at a time, one after the other in the other buffer."""
        merged: list[list[List]] = []
        end = 0
        for lists in groups:
            merged.append([])
            for some in _at_once(lists):
                count = sum(count for _, count in some)
                end = align_up(end, PAIRS_OF_A_BLOCK)
                self._merge_some(some, self.there[end : end + count])
                merged[-1].append((end, count))
                end += count
        self.here, self.there = self.there, self.here
        return merged

    def _merge_some(self, lists: Sequence[List], dst: Local) -> None:
        starts = [start for start, _ in lists]
        counts = tuple(count for _, count in lists)
        if len(lists) == 1:
            # A single remaining list is copied.
            assert isinstance(starts[0], int)
            self.core.copy(dst.as_dtype(INT32), self.words(starts[0], counts[0], INT32))
            return
        self.core.mrg_sort(dst, self.here, counts, FLOAT32, *starts)

    def words(self, start: int, count: int, dtype: DType = FLOAT32) -> Local:
        """Keys and indices of *count* pairs from index *start*, in memory order."""
        return self.here[start : start + count].as_dtype(dtype)

    def take_words(self, places: Local, pairs: int) -> None:
        """Move the words of the *pairs* at *places*, in bytes, to the front."""
        words = self.there.as_dtype(INT32)[: places.count]
        self.core.gather(words, self.words(0, pairs, INT32), places)
        self.here, self.there = self.there, self.here

    def take_indices(self, dst: Local, start: int = 0) -> None:
        """Copy the indices of the pairs from *start* on to *dst* `(n,)` of int32."""
        self.core.gather_mask("odd", dst, self.words(start, dst.count, INT32))

    def take_keys(self, dst: Local, start: int = 0) -> None:
        """Copy their keys to *dst* `(n,)` of float32."""
        self.core.gather_mask("even", dst, self.words(start, dst.count))
