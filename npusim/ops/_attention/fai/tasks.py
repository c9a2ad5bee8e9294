"""The tasks of FAI: rows of queries against the keys that they see, round the cores.

Sources: see :mod:`npusim.ops._attention.fai` (flash_attention_infer_tiling.h,
fia_kernel_common.hpp).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from npusim.data.integers import ceil_div
from npusim.kernel.rows import pieces
from npusim.ops._attention.description import Attention, Paging

__all__ = [
    "TASK_ROWS",
    "TILE",
    "Form",
    "Part",
    "Task",
    "Tile",
    "decode_tasks_of",
    "heads_together",
    "tasks_of",
]

TASK_ROWS = 128
"""Rows of a task at most, query tokens x heads; and query tokens."""
TILE = 512
"""Keys of a tile."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Keys that are multiplied at a time."""

    index: int
    """Counted from the first key of the request."""
    keys: int
    diagonal: int | None
    """Keys from that number on are hidden from the first row, from the next one on from the second
    row, and so on; None if none is hidden. Negative: the first row sees none."""
    start_diagonal: int | None = None
    """Keys before that number are hidden from the first row, before the next one from the second
    row, and so on; None if none is. Negative: the first row sees all."""

    @property
    def start(self) -> int:
        return self.index * TILE


@dataclass(frozen=True, slots=True)
class Form:
    """What of a task decides on its micro-ops, places in global memory apart."""

    heads: int
    """Of queries; they share keys. Rows are tokens of the first one, then those of the next."""
    tokens: int
    keys: int
    """Those before this one are looked at."""
    sees: int | None
    """The first token sees keys before this one, each further token one more; None if all see
    all."""
    starts: int | None = None
    """And from this one on, each further token one fewer; None if all see the first key."""
    pages: tuple[int, ...] = ()
    """Blocks of the cache, counted from that of the first."""
    page_entry: int = 0
    """Entry of the block table that names the first, within its line."""
    first_tile: int = 0
    is_piece: bool = False
    """Whether other cores have other tiles of the same rows."""
    kv_heads: int = 1
    """Heads of keys, each for as many of its heads of queries."""

    @property
    def rows(self) -> int:
        return self.heads * self.tokens

    @property
    def tiles(self) -> Iterator[Tile]:
        """The keys, in tiles."""
        for index in range(self.first_tile, ceil_div(self.keys, TILE)):
            start = index * TILE
            keys = min(TILE, self.keys - start)
            diagonal = None if self.sees is None else self.sees - start
            hides = diagonal is not None and diagonal < keys
            low = None if self.starts is None else self.starts - start
            hides_low = low is not None and low + self.tokens > 1
            yield Tile(index, keys, diagonal if hides else None, low if hides_low else None)

    def part(self, half: int) -> Part:
        """The rows of vector core *half*, 0 or 1: half of the heads, or of the tokens of one."""
        if self.heads == 1:
            first = self.tokens // 2
            here = (0, first) if half == 0 else (first, self.tokens - first)
            return Part(0, 1, *here, here[0])
        first = self.heads // 2
        head, heads = (0, first) if half == 0 else (first, self.heads - first)
        return Part(head, heads, 0, self.tokens, head * self.tokens)


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a task that a vector core works on."""

    head: int
    """The first one of the task's."""
    heads: int
    token: int
    """The first one of the task's."""
    tokens: int
    row: int
    """The first one of the task's."""

    @property
    def rows(self) -> int:
        return self.heads * self.tokens


@dataclass(frozen=True, slots=True)
class Task:
    """Some query tokens of some heads that share keys."""

    request: int
    head: int
    """The first of its query heads."""
    token: int
    """The first of its query tokens."""
    page: int
    """The first block of the cache; 0 where keys are not in pages."""
    form: Form
    piece: int | None = None
    """Its number, where it is a piece of a task that is split."""


def heads_together(tokens: int, group: int) -> int:
    """Query heads of a task, of *group* that share keys, in a request of so many query tokens."""
    if tokens == 0:
        return TASK_ROWS
    return max(1, min(group, TASK_ROWS // tokens // 2 * 2))


def tasks_of(a: Attention) -> Iterator[Task]:
    """All tasks: request by request, block by block of query tokens, head by head."""
    for request, tokens in enumerate(a.query_lengths):
        together = heads_together(tokens, a.group)
        for token, count in pieces(tokens, TASK_ROWS):
            keys, sees, starts = seen(a, request, token)
            first_tile = 0 if starts is None else max(0, starts) // TILE
            pages, page, entry = _pages(a.paging, request, keys)
            for kv_head in range(a.kv_heads):
                for head, heads in pieces(a.group, together):
                    form = Form(
                        heads, count, keys, sees, starts, pages, entry, first_tile=first_tile
                    )
                    yield Task(request, kv_head * a.group + head, token, page, form)


def decode_tasks_of(a: Attention, cores: int) -> Iterator[Task]:
    """All tasks of FAI-DEC, whose requests have a token each: several heads of keys in each task.

    What is left behind whole rounds of *cores*, if it is for half of them at most, is cut into
    single heads.
    """
    together = max(1, min(a.kv_heads, TASK_ROWS // a.group))
    cuts = [
        (request, kv_head, count)
        for request in range(a.requests)
        for kv_head, count in pieces(a.kv_heads, together)
    ]
    left = len(cuts) % cores
    whole = len(cuts) - left if 2 * left <= cores else len(cuts)
    for request, kv_head, count in cuts[:whole]:
        yield _decode_task(a, request, kv_head, count)
    for request, first, count in cuts[whole:]:
        for kv_head in range(first, first + count):
            yield _decode_task(a, request, kv_head, 1)


def _decode_task(a: Attention, request: int, kv_head: int, count: int) -> Task:
    keys = a.kv_lengths[request]
    pages, page, entry = _pages(a.paging, request, keys)
    form = Form(count * a.group, 1, keys, None, None, pages, entry, kv_heads=count)
    return Task(request, kv_head * a.group, 0, page, form)


def seen(a: Attention, request: int, token: int) -> tuple[int, int | None, int | None]:
    """Keys of *request* that a task from *token* on looks at, `sees` and `starts` of its form."""
    keys = a.kv_lengths[request]
    first, last = a.window(request)
    if keys == 0:
        return keys, None, None
    starts = None if first is None else token + first
    if last is None:
        return keys, None, starts
    first_sees = token + last + 1
    # As if there were a whole block of tokens.
    looked_at = min(keys, token + TASK_ROWS + last)
    return looked_at, first_sees if first_sees < looked_at else None, starts


ENTRIES_OF_A_LINE = 16
"""Entries of the block table in 64 bytes, a line of the scalar unit's cache."""


def _pages(paging: Paging | None, request: int, keys: int) -> tuple[tuple[int, ...], int, int]:
    """Blocks of *keys* of *request*, counted from the first; that one; its entry in its line."""
    if paging is None or keys == 0:
        return (), 0, 0
    table = paging.tables[request][: ceil_div(keys, paging.block_size)]
    entry = request * paging.width % ENTRIES_OF_A_LINE
    return tuple([page - table[0] for page in table]), table[0], entry
