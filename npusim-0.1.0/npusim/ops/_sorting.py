"""Sorting of any number of keys in the unified buffer: Sort32, then merges of four lists.

asc-devkit, Sort.md: of equal keys the one with the lower index comes first, which Sort32 and
MrgSort keep to, list by list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from npusim.data.dtypes import FLOAT32, INT32, UINT64, DType
from npusim.data.integers import align_up
from npusim.isa import SORTED_AT_ONCE, Local, Register
from npusim.kernel import VectorCore

LISTS_AT_ONCE = 4
"""Lists that MrgSort takes."""
PAIRS_OF_A_BLOCK = 4
"""A vector operand begins at a block."""
WORDS_OF_A_PAIR = 2
List = tuple[int | Register, int]
"""Which pair it begins with, and how many it has."""


def padded(count: int) -> int:
    """*count* filled up to what Sort32 takes."""
    return align_up(count, SORTED_AT_ONCE)


def _at_once(lists: Sequence[List]) -> Iterator[Sequence[List]]:
    """Up to four of *lists* at a time.

    One left over takes another along where a register says where it begins: MrgSort takes no list
    alone, and no copy begins at a register.
    """
    cuts = [*range(0, len(lists), LISTS_AT_ONCE), len(lists)]
    if len(lists) > 1 == cuts[-1] - cuts[-2] and not isinstance(lists[-1][0], int):
        cuts[-2] -= 1
    return (lists[first:end] for first, end in pairwise(cuts))


class Sorter:
    """Two buffers of *most* pairs, between which lists go back and forth as they are merged.

    What is sorted next begins where the last list ended.
    """

    def __init__(self, core: VectorCore, most: int) -> None:
        self.core = core
        self.here, self.there = core.tile(UINT64, most), core.tile(UINT64, most)

    def sort(self, keys: Local, indices: Local, each: int | None = None) -> list[List]:
        """*keys* `(n,)` with their *indices*, in lists of *each*, or in one.

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
        """The lists of each of *groups*, merged to one of each."""
        while max(map(len, groups)) > 1:
            groups = self._round(groups)
        return [lists[0] for lists in groups]

    def _round(self, groups: Sequence[Sequence[List]]) -> list[list[List]]:
        """Up to four lists at a time become one, behind each other in the other buffer."""
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
            # One that is left over comes along.
            assert isinstance(starts[0], int)
            self.core.copy(dst.as_dtype(INT32), self.words(starts[0], counts[0], INT32))
            return
        self.core.mrg_sort(dst, self.here, counts, FLOAT32, *starts)

    def words(self, start: int, count: int, dtype: DType = FLOAT32) -> Local:
        """Keys and indices of *count* pairs from number *start* on, as they lie."""
        return self.here[start : start + count].as_dtype(dtype)

    def take_words(self, places: Local, pairs: int) -> None:
        """The words of the *pairs* at *places*, in bytes, become the first ones."""
        words = self.there.as_dtype(INT32)[: places.count]
        self.core.gather(words, self.words(0, pairs, INT32), places)
        self.here, self.there = self.there, self.here

    def take_indices(self, dst: Local, start: int = 0) -> None:
        """The indices of the pairs from number *start* on to *dst* `(n,)` of int32."""
        self.core.gather_mask("odd", dst, self.words(start, dst.count, INT32))

    def take_keys(self, dst: Local, start: int = 0) -> None:
        """Their keys to *dst* `(n,)` of float32."""
        self.core.gather_mask("even", dst, self.words(start, dst.count))
