"""How many rows each expert gets: a histogram that all cores add to, and what comes of it.

ops-transformer@c29bc10 moe/moe_init_routing_v3/op_kernel. Assumed: that the scalar unit looks at
each expert of a core's share of the sorted list and writes each count once, that each core adds its
counts of all active experts at once, and that the first core turns them into what comes out, number
by number.
"""

from __future__ import annotations

from npusim.data.dtypes import INT32, INT64
from npusim.isa import (
    Duplicate,
    Global,
    Local,
    ScalarAlu,
    ScalarLoad,
    ScalarLoop,
    ScalarStore,
    Store,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.views import GmView, load, repeat, store
from npusim.ops.npu_moe_init_routing_v2.contract import CUMULATIVE, PAIRS, Problem

__all__ = ["Counts", "Histogram"]

EXPERT, COUNT, TOTAL = "expert", "count", "total"
"""Registers."""
OUTPUT = "expert_token_cumsum_or_count"


def _whole(p: Problem) -> Global:
    """The histogram of all active experts."""
    return Global("histogram", 0, INT32.nbytes(len(p.active)))


class Histogram:
    """The counts of one core."""

    def __init__(self, builder: Builder, p: Problem) -> None:
        self.builder, self.p = builder, p
        self.counts = builder.claim("ub", INT32.nbytes(len(p.active))).of(INT32, len(p.active))
        self.known: dict[int, int] = {}
        """Expert -> how many there were of it so far."""

    def begin(self) -> None:
        """Begin to count for another core."""
        self.known = {}
        step(self.builder, Duplicate(self.counts, 0))
        self.builder.sync("vector", "scalar")

    def count(self, listed: Local, experts: list[int]) -> None:
        """Look at *listed* `(n,)`, which are *experts*."""
        repeat(self.builder, self._look, listed)
        for expert in experts:
            self.known[expert] = self.known.get(expert, 0) + 1

    def _look(self, listed: Local) -> None:
        look = ScalarLoad(EXPERT, listed.at(0, 1), INT32.nbytes(1))
        self.builder.emit(ScalarLoop(listed.count, (look,)))

    def add(self) -> None:
        """Add the counts of the active experts to those of all cores."""
        for expert, count in self.known.items():
            if expert in self.p.active:
                place = self.counts.at(expert - self.p.active.start, 1)
                self.builder.emit(ScalarAlu("add", COUNT, count, 0), ScalarStore(place, COUNT))
        self.builder.sync("scalar", "mte3")
        self.builder.emit(Store(_whole(self.p), self.counts, atomic=INT32))


class Counts:
    """What the first core does: it clears the histogram, and tells what became of it."""

    def __init__(self, builder: Builder, p: Problem) -> None:
        self.builder, self.p = builder, p
        self.numbers = 2 * p.experts if p.counts == PAIRS else len(p.active)
        self.listed = builder.queue("ub", INT32.nbytes(len(p.active)), "mte2", "scalar")
        self.out = builder.queue("ub", INT64.nbytes(self.numbers), "scalar", "mte3")
        self.zeros = builder.claim("ub", INT32.nbytes(len(p.active))).of(INT32, len(p.active))

    def clear(self) -> None:
        """Make the histogram zero, for all cores to add to."""
        step(self.builder, Duplicate(self.zeros, 0))
        self.builder.sync("vector", "mte3")
        self.builder.data_copy(_whole(self.p), self.zeros)
        # The buffer is wanted for other things.
        self.builder.barrier()

    def write(self, present: list[int]) -> None:
        """What comes out of the histogram; *present* are the experts that have rows."""
        p, builder = self.p, self.builder
        out = self.out.alloc()
        if p.counts == PAIRS:
            step(builder, Duplicate(out.of(INT32, 2 * self.numbers), 0))
            builder.sync("vector", "scalar")
        slot = load(builder, self.listed, GmView.vector("histogram", INT32, len(p.active)))
        counts, results = slot.of(INT32, len(p.active)), out.of(INT64, self.numbers)
        if p.counts == PAIRS:
            self._write_pairs(counts, results, present)
        else:
            self._write_numbers(counts, results)
        self.listed.free(slot)
        store(builder, self.out, out, GmView.vector(OUTPUT, INT64, self.numbers))

    def _write_pairs(self, counts: Local, results: Local, present: list[int]) -> None:
        for index, expert in enumerate(present):
            self.builder.emit(
                ScalarAlu("add", EXPERT, expert, 0),
                ScalarStore(results.at(2 * index, 1), EXPERT),
                ScalarLoad(COUNT, counts.at(expert - self.p.active.start, 1)),
                ScalarStore(results.at(2 * index + 1, 1), COUNT),
            )

    def _write_numbers(self, counts: Local, results: Local) -> None:
        is_sum = self.p.counts == CUMULATIVE
        self.builder.emit(ScalarAlu("add", TOTAL, 0, 0))
        for index in range(len(self.p.active)):
            self.builder.emit(ScalarLoad(COUNT, counts.at(index, 1)))
            if is_sum:
                self.builder.emit(ScalarAlu("add", TOTAL, TOTAL, COUNT))
            self.builder.emit(ScalarStore(results.at(index, 1), TOTAL if is_sum else COUNT))
