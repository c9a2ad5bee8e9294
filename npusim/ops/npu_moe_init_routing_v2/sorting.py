"""The first stage of npu_moe_init_routing_v2: the choices, sorted by expert.

Keys are the experts as negative float32, so that a descending sort gives them in ascending order;
inactive choices get a key behind all of them. Lists that one core cannot hold are merged four at a
time, chunk after chunk, from one workspace to another.

ops-transformer@c29bc10 moe/moe_init_routing_v3/op_kernel. Assumed: each chunk takes exactly what
belongs to it from every list, and comparisons find the active experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from npusim.data.dtypes import FLOAT32, INT32, UINT8, UINT64, Array
from npusim.data.integers import align_up
from npusim.isa import Local
from npusim.kernel import GmView, Step, VectorCore, pieces
from npusim.kernel.sequences import count_up
from npusim.kernel.steps import Integers
from npusim.ops._sorting import LISTS_AT_ONCE, PAIRS_OF_A_BLOCK, Sorter
from npusim.ops.npu_moe_init_routing_v2.check import LANES, NOWHERE, Plan, Problem

BEFORE = -1
"""The order of a core's steps before its share of the rows: they run in sequence."""
CHUNK = 2048
"""Pairs that are merged at a time: assumed."""
NOTHING = float("-inf")
"""The key of padding in a list."""
Chunk = tuple[int, int, tuple[int, ...], tuple[int, ...]]
"""Round, first pair of the result, and for each list the first pair and the count."""


@dataclass(frozen=True, slots=True)
class Order:
    """The result of the sort, which decides what is read from where."""

    keys: Array
    """The expert of each choice `(rows,)`; a number above all for those below the active ones."""
    rounds: tuple[tuple[Array, ...], ...]
    """The lists of choices after each round of merging, starting with the parts; finally one."""
    places: Array
    """The output row of each choice in that list `(rows,)`, or NOWHERE."""

    @staticmethod
    def of(p: Problem, plan: Plan) -> Order:
        """The order of the choices of *p*, in the rounds of *plan*."""
        keys = p.expert_keys()
        starts = range(0, p.rows, plan.part_rows)
        parts = [np.arange(start, min(start + plan.part_rows, p.rows)) for start in starts]
        rounds = [tuple(_sorted(keys, part) for part in parts)]
        while len(rounds[-1]) > 1:
            groups = (np.concatenate(group) for group in _in_fours(rounds[-1]))
            rounds.append(tuple(_sorted(keys, group) for group in groups))
        return Order(keys, tuple(rounds), _places(p, keys[rounds[-1][0]]))

    @property
    def choices(self) -> Array:
        """All choices in order, `(rows,)`."""
        return self.rounds[-1][0]

    @property
    def experts(self) -> Array:
        """The expert of each of them, `(rows,)`."""
        return np.asarray(self.keys[self.choices])


def _in_fours(lists: tuple[Array, ...]) -> list[tuple[Array, ...]]:
    """*lists* in groups that are merged to one each."""
    return [lists[x : x + LISTS_AT_ONCE] for x in range(0, len(lists), LISTS_AT_ONCE)]


def _places(p: Problem, experts: Array) -> Array:
    """The output rows of choices of *experts* `(rows,)`, which are in ascending order."""
    places = np.arange(len(experts))
    fits = experts < p.active.stop
    if p.capacity is not None:
        number = places - np.searchsorted(experts, experts)
        places = experts * p.capacity + number
        fits &= number < p.capacity
    return np.where(fits, places, NOWHERE)


def _sorted(keys: Array, choices: Array) -> Array:
    return np.asarray(choices[np.argsort(keys[choices], kind="stable")])


def sorting(
    core: VectorCore, p: Problem, plan: Plan, order: Order, meeting: Step
) -> tuple[Step, ...]:
    """Each core sorts its parts; then all merge groups of lists, round by round."""
    parts = list(pieces(p.rows, plan.part_rows))
    numbers = np.arange(len(parts))
    sort = _sort_part(core, p, plan)
    steps = [_step(sort, parts, numbers % plan.block_dim)]
    core.reset_buffers()
    if plan.parts > 1:
        merge = _merge(core, p, len(order.rounds) - 1)
        for number, lists in enumerate(order.rounds[:-1]):
            chunks = list(_chunks(number, _in_fours(lists), order.keys))
            cores = np.array([group for group, _ in chunks]) % plan.block_dim
            steps += meeting, _step(merge, [chunk for _, chunk in chunks], cores)
        core.reset_buffers()
    return tuple(steps)


def _step(stage: Callable[..., None], arguments: list[Any], core: Integers) -> Step:
    return Step(stage, (arguments,), core, np.full(core.size, BEFORE))


def _chunks(
    number: int, groups: list[tuple[Array, ...]], keys: Array
) -> Iterator[tuple[int, Chunk]]:
    """The chunks merged in round *number*, each with the number of its group."""
    start = 0
    for group, lists in enumerate(groups):
        every = np.concatenate(lists)
        source = np.repeat(np.arange(len(lists)), [len(each) for each in lists])
        source = source[np.argsort(keys[every], kind="stable")]
        places = np.cumsum([start, *(len(each) for each in lists)])[:-1]
        for first, count in pieces(len(every), CHUNK):
            taken = np.bincount(source[first : first + count], minlength=len(lists))
            yield group, (number, start + first, tuple(places.tolist()), tuple(taken.tolist()))
            places = places + taken
        start += len(every)


def _store(core: VectorCore, p: Problem, first: int, experts: Local, rows: Local) -> None:
    """Store *experts* and *rows* `(n,)` to the sorted lists from index *first* on."""
    there = slice(first, first + experts.count)
    for name, tile in (("sorted_experts", experts), ("sorted_rows", rows)):
        core.data_copy(GmView.vector(name, INT32, p.rows)[:, there].operand, tile)


def _pairs(p: Problem, number: int, first: int, count: int) -> GmView:
    """*count* pairs of the lists after round *number*."""
    return GmView.vector(f"pairs{number % 2}", UINT64, p.rows)[:, first : first + count]


def _sort_part(core: VectorCore, p: Problem, plan: Plan) -> Callable[[tuple[int, int]], None]:
    """Buffers for a part of the choices, which one core sorts as a whole."""
    most = align_up(plan.part_rows, LANES)
    chosen, every_key, numbers = (core.tile(dtype, most) for dtype in (INT32, FLOAT32, INT32))
    bits = core.tile(UINT8, most // 8)
    sorter = Sorter(core, most)
    choices = GmView.vector("expert_idx", INT32, p.rows)

    def put_back(keys: Local) -> None:
        """Give choices below the active experts the key behind all others."""
        if p.active.start > 0:
            mask = bits[: keys.count // 8]
            core.compare("le", mask, keys, float(-p.active.start))
            core.select(keys, mask, keys, float(-p.experts))

    def sort(part: tuple[int, int]) -> None:
        """Sort a range of choices to a list in global memory."""
        first, count = part
        lanes = align_up(count, LANES)
        experts, every, rows = chosen[:count], every_key[:lanes], numbers[:lanes]
        keys = every[:count]
        core.data_copy(experts, choices[:, first : first + count].operand)
        core.sync("mte2", "vector")
        core.duplicate(every, NOTHING)
        core.cast(keys, experts)
        core.mul(keys, keys, -1.0)
        put_back(every)
        count_up(core, rows, first)
        sorter.sort(every, rows)
        if plan.parts == 1:
            sorter.take_keys(keys)
            core.mul(keys, keys, -1.0)
            core.cast(experts, keys)
            sorter.take_indices(rows[:count])
            core.sync("vector", "mte3")
            _store(core, p, first, experts, rows[:count])
        else:
            core.sync("vector", "mte3")
            core.data_copy(_pairs(p, 0, first, count).operand, sorter.here[:count])
        # The next part of this core may only start when this one has been stored.
        core.barrier()

    return sort


def _merge(core: VectorCore, p: Problem, rounds: int) -> Callable[[Chunk], None]:
    """Buffers for chunks of lists."""
    gaps = LISTS_AT_ONCE * PAIRS_OF_A_BLOCK
    lists, merged = core.vecin(UINT64, CHUNK + gaps), core.vecout(UINT64, CHUNK)
    all_keys, all_experts, all_rows = (core.tile(x, CHUNK) for x in (FLOAT32, INT32, INT32))

    def merge(chunk: Chunk) -> None:
        """Merge some pairs of each list to one list; in the last round output their elements."""
        number, first, places, taken = chunk
        loaded, starts, end = lists.alloc(), [], 0
        for place, count in zip(places, taken, strict=True):
            if count:
                there = loaded[end : end + count]
                core.data_copy(there, _pairs(p, number, place, count).operand)
                starts.append(end)
                end = align_up(end + count, PAIRS_OF_A_BLOCK)
        lists.enque(loaded)
        loaded, out = lists.deque(), merged.alloc()
        counts = tuple(count for count in taken if count)
        pairs = out[: sum(counts)]
        if len(counts) == 1:
            core.copy(pairs.as_dtype(INT32), loaded[: counts[0]].as_dtype(INT32))
        else:
            core.mrg_sort(pairs, loaded[:end], counts, FLOAT32, *starts)
        lists.free(loaded)
        is_last = number == rounds - 1
        experts, rows = all_experts[: pairs.count], all_rows[: pairs.count]
        if is_last:
            keys = all_keys[: pairs.count]
            core.gather_mask("even", keys, pairs.as_dtype(FLOAT32))
            core.mul(keys, keys, -1.0)
            core.cast(experts, keys)
            core.gather_mask("odd", rows, pairs.as_dtype(INT32))
        merged.enque(out)
        out = merged.deque()
        if is_last:
            _store(core, p, first, experts, rows)
        else:
            core.data_copy(_pairs(p, number + 1, first, pairs.count).operand, pairs)
        merged.free(out)

    return merge
