"""Kernels that sort rows: Sort and TopKV2.

Keys are sorted as float32 together with their indices: 32 at a time, then four lists are merged at
a time. Rows are assigned to the cores in turn. A row that does not fit the buffer is sorted in
parts, which are then merged through a workspace. If there are fewer rows than cores, all cores sort
parts and synchronise, and one core for each row merges them. For the largest *k*, no list is longer
than *k*.

CANN 8.1.RC1, the names of modes in sort/sort_tilingcase.py. Assumed: lists are merged as in
:mod:`npusim.ops._sorting`, and a part is as large as fits together with two lists of pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.data.dtypes import FLOAT32, INT32, UINT64
from npusim.data.integers import align_down, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import Local
from npusim.kernel import Binding, GmView, GmViews, Kernel, Step, VectorCore, sync_all
from npusim.kernel.sequences import count_up
from npusim.kernel.steps import Integers
from npusim.ops._sorting import LISTS_AT_ONCE, PAIRS_OF_A_BLOCK, Sorter, padded
from npusim.torch.works.work import INPUT, OUTPUT, Work, by_bits, kernel_of, room_bytes

__all__ = ["RowSort"]

LANES = 64
"""The keys of a part are a multiple of this: a repeat of float32."""
PAIRS = "pairs"
"""The workspace for pairs of a key and its index."""
READY = 0
"""The flag on which all cores synchronise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSort(Work):
    """Sort *rows* rows of *columns* elements of *bits*; the *kept* largest of each row are stored,
    with int32 indices."""

    on_inference = False
    rows: int
    columns: int
    bits: int
    kept: int

    @property
    def size(self) -> int:
        return self.rows * self.columns

    def write(self, spec: DeviceSpec) -> Kernel:
        core = VectorCore(self.kernel, spec)
        cores, sorting = len(spec.vector_cores), _Sorting(core, self)
        row, start = np.mgrid[0 : self.rows, 0 : self.columns : sorting.most].reshape(2, -1)
        lists = row.size // self.rows
        is_cut = lists > 1 and self.rows < cores
        owner = (np.arange(row.size) if is_cut else row) % cores
        source = GmView.of(f"{INPUT}0", by_bits(self.bits), self.rows, self.columns)
        loaded = GmViews.of(source, row, start, 1, sorting.most)
        if lists == 1:
            steps = [Step(sorting.sort_row, (loaded, *sorting.results(row)), owner)]
        else:
            stored = GmViews.of(sorting.pairs(row.size), np.arange(row.size), 0, 1, sorting.stored)
            steps = [Step(sorting.sort_part, (loaded, stored), owner, 0 * owner)]
            if is_cut:
                met = np.arange(min(cores, row.size))
                steps.append(Step(sorting.meet, (), met, 0 * met + 1))
            steps += sorting.merging(lists, cores)
        names = [f"{INPUT}0", f"{OUTPUT}0", f"{OUTPUT}1", PAIRS]
        bound = {name: Binding(name) for name in names[: 3 + (lists > 1)]}
        out = self.rows * self.kept
        return kernel_of(
            self.kernel,
            core.launch(*steps, bound=lambda _: bound),
            [(self.rows * self.columns, self.bits)],
            [(out, self.bits), (out, INT32.bits)],
            {PAIRS: row.size * sorting.stored * UINT64.nbytes(1)} if lists > 1 else None,
        )


class _Sorting:
    """The buffers and the stages of a core."""

    def __init__(self, core: VectorCore, work: RowSort) -> None:
        self.core, self.work = core, work
        dtype = by_bits(work.bits)
        # Two lists of pairs, keys and indices, the input, and the output.
        each_bytes = 2 * UINT64.nbytes(1) + 2 * INT32.nbytes(1) + 2 * dtype.nbytes(1) + 4
        room = room_bytes(core.spec) // each_bytes - LANES
        self.most = min(align_down(room, LANES), work.columns)
        """Keys of a part."""
        self.stored = min(self.most, work.kept)
        """Pairs of a part that are kept."""
        lanes = padded(self.most)
        self.loaded, self.keys = core.vecin(dtype, lanes), core.tile(FLOAT32, lanes)
        self.indices, self.sorter = core.tile(INT32, lanes), Sorter(core, lanes)
        self.values, self.places = core.vecout(dtype, lanes), core.vecout(INT32, lanes)
        core.claim_tails()

    def results(self, row: Integers) -> tuple[GmViews, GmViews]:
        """The sorted values of each *row*, and their indices."""
        work = self.work
        outputs = (
            GmView.of(f"{OUTPUT}{place}", by_bits(bits), work.rows, work.kept)
            for place, bits in enumerate((work.bits, INT32.bits))
        )
        first, second = (GmViews.of(view, row, 0, 1, work.kept) for view in outputs)
        return first, second

    def pairs(self, lists: int) -> GmView:
        """The workspace, `(lists, pairs)`."""
        return GmView.of(PAIRS, UINT64, lists, self.stored)

    def _sort(self, x: GmView) -> None:
        core, count = self.core, x.columns
        lanes = padded(count)
        loaded, keys = core.load(self.loaded, x), self.keys[:lanes]
        core.duplicate(keys, float("-inf"))
        core.convert(keys[:count], loaded[:count])
        self.loaded.free(loaded)
        count_up(core, self.indices[:lanes])
        self.sorter.sort(keys, self.indices[:lanes])

    def sort_row(self, x: GmView, values: GmView, places: GmView) -> None:
        """Sort a row that fits the buffer."""
        self._sort(x)
        self._take(self.sorter.here, values, places)

    def _take(self, pairs: Local, values: GmView, places: GmView) -> None:
        """Store the first of *pairs*, as keys and indices."""
        core, count = self.core, values.columns
        out, where, keys = self.values.alloc(), self.places.alloc(), self.keys[:count]
        core.gather_mask("even", keys, pairs[:count].as_dtype(FLOAT32))
        core.convert(out[:count], keys)
        core.gather_mask("odd", where[:count], pairs[:count].as_dtype(INT32))
        core.store(self.values, out, values)
        core.store(self.places, where, places)

    def sort_part(self, x: GmView, pairs: GmView) -> None:
        """Sort a part of a row, and store the pairs that are kept in the workspace."""
        core = self.core
        self._sort(x)
        core.sync("vector", "mte3")
        core.data_copy(pairs.operand, self.sorter.here[: pairs.columns])
        core.barrier()

    def meet(self) -> None:
        """Wait until all cores have sorted their parts."""
        self.core.barrier()
        sync_all(self.core, "mte3", "mte2", READY)

    def merging(self, lists: int, cores: int) -> list[Step]:
        """Rounds that merge the *lists* of each row four at a time, in chunks as large as parts."""
        work, steps, order = self.work, list[Step](), 2
        rows = np.arange(work.rows)
        pitch, pairs = lists * self.stored, min(work.columns, lists * self.stored)
        workspace = GmView.of(PAIRS, UINT64, work.rows, pitch)
        while lists > 1:
            start = np.arange(0, pairs, self.most)
            lists = ceil_div(lists, LISTS_AT_ONCE)
            row, first = (each.ravel() for each in np.meshgrid(rows, start, indexing="ij"))
            size = np.minimum(self.most, pairs - first)
            stage = self.merge if lists > 1 else self.merge_last
            views = [GmViews.of(workspace, row, first, 1, size)]
            if lists == 1:
                outputs = (
                    GmView.of(f"{OUTPUT}{place}", by_bits(bits), work.rows, work.kept)
                    for place, bits in enumerate((work.bits, INT32.bits))
                )
                views += [GmViews.of(out, row, first, 1, size) for out in outputs]
            inside = np.ones(row.size, np.bool_) if lists > 1 else first < work.kept
            views = [each.select(inside) for each in views]
            row = row[inside]
            steps.append(Step(stage, tuple(views), row % cores, 0 * row + order))
            pairs, order = min(pairs, lists * work.kept), order + 1
        return steps

    def _merge(self, pairs: GmView) -> Local:
        core, count = self.core, pairs.columns
        here, there = self.sorter.here, self.sorter.there[:count]
        core.barrier()
        core.data_copy(here[:count], pairs.operand)
        core.sync("mte2", "vector")
        if count >= LISTS_AT_ONCE * PAIRS_OF_A_BLOCK:
            each = align_down(count // LISTS_AT_ONCE, PAIRS_OF_A_BLOCK)
            counts = (each,) * (LISTS_AT_ONCE - 1) + (count - each * (LISTS_AT_ONCE - 1),)
            starts = range(0, LISTS_AT_ONCE * each, each)
            core.mrg_sort(there, here, counts, FLOAT32, *starts)
        else:
            core.copy(there.as_dtype(INT32), here[:count].as_dtype(INT32))
        return there

    def merge(self, pairs: GmView) -> None:
        """Merge a chunk of four lists, back to the workspace."""
        there = self._merge(pairs)
        self.core.sync("vector", "mte3")
        self.core.data_copy(pairs.operand, there)

    def merge_last(self, pairs: GmView, values: GmView, places: GmView) -> None:
        """Merge a chunk of the last round, to the results."""
        self._take(self._merge(pairs), values, places)
