"""How FAI splits a call: whole tasks over cores, or with FAI-FD the keys of tasks over cores.

A task is up to 128 rows, query tokens of one or more heads that share keys, against all keys that
they see, in tiles of 512. FAI-FD walks over all tiles of all tasks. A core takes tiles until it has
reached its share of scores, rows x keys, so it exceeds it by up to a tile. A core's part of a task
is a piece; if several cores have pieces of a task, these are combined at the end.

Sources: see :mod:`npusim.ops._attention.fai` (flash_attention_infer_tiling.h,
fia_kernel_common.hpp, fused_infer_attention_score_tiling.cpp).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from npusim.data.integers import ceil_div
from npusim.kernel.rows import pieces
from npusim.ops import _protocol
from npusim.ops._attention.cube import LINE_ENTRIES
from npusim.ops._attention.problem import Attention

TASK_ROWS = 128
"""Most rows of a task, query tokens x heads; and most query tokens."""
TILE = 512
"""Keys of a tile."""
SLOTS = 3
"""Slots for scores, probabilities and products, for each group of cores."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Keys that are multiplied at a time."""

    index: int
    """Relative to the first key of the request."""
    keys: int
    diagonal: int | None
    """The first key hidden from the first row; one key later for each further row; None if none is
    hidden. Negative: the first row sees none."""
    start_diagonal: int | None = None
    """The first key visible to the first row; one key later for each further row; None if none is
    hidden. Negative: the first row sees all."""

    @property
    def start(self) -> int:
        return self.index * TILE


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a task assigned to a vector core."""

    head: int
    """The first one, relative to the task, as are *token* and *row*."""
    heads: int
    token: int
    tokens: int
    row: int

    @property
    def rows(self) -> int:
        return self.heads * self.tokens


@dataclass(frozen=True, slots=True)
class Form:
    """The properties of a task that decide its micro-ops, without offsets in global memory."""

    heads: int
    """Heads of queries, which share keys. Rows are the tokens of the first, then of the next."""
    tokens: int
    keys: int
    """End of the keys that are processed."""
    sees: int | None
    """The first token sees keys before this one, each further token one more; None if all see
    all."""
    starts: int | None = None
    """And from this one on, each further token one fewer; None if all see the first key."""
    pages: tuple[int, ...] = ()
    """Blocks of the cache, relative to the first one."""
    page_entry: int = 0
    """Index within its line of the block table's entry for the first one."""
    first_tile: int = 0
    is_piece: bool = False
    """Whether other cores have other tiles of the same rows."""
    kv_heads: int = 1
    """Heads of keys, each for an equal number of query heads."""

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

    @property
    def seeing(self) -> tuple[int, int]:
        """Tokens [first, end) that see a key."""
        first = 0 if self.sees is None else max(0, 1 - self.sees)
        return first, self.tokens if self.starts is None else min(
            self.tokens, self.keys - self.starts
        )

    def blind(self, part: Part) -> Iterator[tuple[int, int]]:
        """Rows of *part* that see no key: first ones, relative to the part, and counts."""
        first, end = self.seeing
        last = part.token + part.tokens
        for start, stop in ((part.token, min(first, last)), (max(end, part.token), last)):
            if start < stop:
                for head in range(part.heads):
                    yield head * part.tokens + start - part.token, stop - start

    @property
    def whole(self) -> Part:
        """All rows."""
        return Part(0, self.heads, 0, self.tokens, 0)

    def part(self, half: int) -> Part:
        """The rows of vector core *half*, 0 or 1: half of the heads, or of one head's tokens."""
        if self.heads == 1:
            first = self.tokens // 2
            token, tokens = (0, first) if half == 0 else (first, self.tokens - first)
            return Part(0, 1, token, tokens, token)
        first = self.heads // 2
        head, heads = (0, first) if half == 0 else (first, self.heads - first)
        return Part(head, heads, 0, self.tokens, head * self.tokens)


@dataclass(frozen=True, slots=True)
class Task:
    """Some query tokens of some heads that share keys."""

    request: int
    head: int
    """The first of its query heads."""
    token: int
    """The first of its query tokens."""
    page: int
    """The first block of the cache; 0 if keys are not in pages."""
    form: Form
    piece: int | None = None
    """Its number, if it is a piece of a split task."""


@dataclass(frozen=True, slots=True)
class Node:
    """A task of which several cores have pieces."""

    task: Task
    first: int
    """The number of its first piece."""
    pieces: int


@dataclass(frozen=True, slots=True)
class Work:
    """The work of each core."""

    tasks: tuple[tuple[Task, ...], ...]
    """The tasks of each core, including pieces."""
    nodes: tuple[Node, ...] = ()

    @property
    def pieces(self) -> int:
        """The pieces of all nodes."""
        return sum(node.pieces for node in self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """The work of each core, and the workspaces."""

    work: Work


# ---- tasks ----


def heads_together(tokens: int, group: int) -> int:
    """Query heads of a task, of *group* that share keys, if a request has *tokens*."""
    if tokens == 0:
        return TASK_ROWS
    return max(1, min(group, TASK_ROWS // tokens // 2 * 2))


def tasks_of(a: Attention) -> Iterator[Task]:
    """All tasks: by request, then block of query tokens, then head."""
    for request, tokens in enumerate(a.query_lengths):
        together = heads_together(tokens, a.group)
        for token, count in pieces(tokens, TASK_ROWS):
            keys, sees, starts = _seen(a, request, token)
            first_tile = 0 if starts is None else max(0, starts) // TILE
            pages, page, entry = _pages(a, request, keys)
            for kv_head in range(a.kv_heads):
                for head, heads in pieces(a.group, together):
                    form = Form(heads, count, keys, sees, starts, pages, entry, first_tile)
                    if form.seeing[0] >= form.seeing[1]:
                        # Like a request without keys.
                        form = Form(heads, count, 0, None)
                    yield Task(request, kv_head * a.group + head, token, page, form)


def decode_tasks_of(a: Attention, cores: int) -> Iterator[Task]:
    """All tasks of FAI-DEC, whose requests have one token each: several heads of keys per task.

    The tasks beyond full rounds of *cores*, if they occupy at most half of the cores, are split
    into single heads.
    """
    together = max(1, min(a.kv_heads, TASK_ROWS // a.group))
    cuts = [
        (request, kv_head, count)
        for request in range(a.requests)
        for kv_head, count in pieces(a.kv_heads, together)
    ]
    left = len(cuts) % cores
    whole = len(cuts) - left if 2 * left <= cores else len(cuts)
    single = [(request, head + x, 1) for request, head, count in cuts[whole:] for x in range(count)]
    for request, kv_head, count in cuts[:whole] + single:
        keys = a.kv_lengths[request]
        pages, page, entry = _pages(a, request, keys)
        form = Form(count * a.group, 1, keys, None, None, pages, entry, kv_heads=count)
        yield Task(request, kv_head * a.group, 0, page, form)


def _seen(a: Attention, request: int, token: int) -> tuple[int, int | None, int | None]:
    """Keys of *request* that a task from *token* on processes, `sees` and `starts` of its form."""
    keys = a.kv_lengths[request]
    first, last = a.window(request)
    if keys == 0:
        return keys, None, None
    starts = None if first is None else token + first
    if last is None:
        return keys, None, starts
    first_sees = token + last + 1
    # As if there were a full block of tokens, and no fewer keys than tokens.
    looked_at = min(keys, token + TASK_ROWS + max(0, last))
    return looked_at, first_sees if first_sees < looked_at else None, starts


def _pages(a: Attention, request: int, keys: int) -> tuple[tuple[int, ...], int, int]:
    """Blocks of *keys* of *request*, relative to the first; the first; its entry in its line."""
    if a.paging is None or keys == 0:
        return (), 0, 0
    table = a.paging.tables[request][: ceil_div(keys, a.paging.block_size)]
    entry = request * a.paging.width % LINE_ENTRIES
    return tuple([page - table[0] for page in table]), table[0], entry


# ---- cores ----


def work_of(a: Attention, cores: int, template: str) -> Work:
    """The work of each of *cores* in *template*; for FAI-FD only cores with work start."""
    if template == "FAI-FD":
        return _split(a, cores)
    tasks = tuple(decode_tasks_of(a, cores) if template == "FAI-DEC" else tasks_of(a))
    return Work(tuple(tasks[core::cores] for core in range(cores)))


def _split(a: Attention, cores: int) -> Work:
    """Assign the tiles of all tasks in order, to one core after the other."""
    lengths = zip(a.query_lengths, a.kv_lengths, strict=True)
    budget = ceil_div(a.query_heads * sum(tokens * keys for tokens, keys in lengths), cores)
    of_core: list[list[Task]] = [[]]
    nodes: list[Node] = []
    left, count = budget, 0
    for task in tasks_of(a):
        # Core -> its tiles [first, end) of the task.
        spans: dict[int, tuple[int, int]] = {}
        for tile in task.form.tiles:
            if left <= 0:
                of_core.append([])
                left = budget
            core = len(of_core) - 1
            first, _ = spans.get(core, (tile.index, 0))
            spans[core] = first, tile.index + 1
            left -= task.form.rows * tile.keys
        if len(spans) < 2:
            of_core[-1].append(task)
            continue
        nodes.append(Node(task, count, len(spans)))
        for core, (first, end) in spans.items():
            keys = min(task.form.keys, end * TILE)
            form = replace(task.form, first_tile=first, keys=keys, is_piece=True)
            of_core[core].append(replace(task, form=form, piece=count))
            count += 1
    return Work(tuple(map(tuple, of_core)), tuple(nodes))
