"""Which core of FAI works on which task, and where FAI-FD splits the keys of one.

FAI-FD walks over all tiles of all tasks. A core takes tiles until it has had its share of scores,
rows x keys, so by up to a tile more. What a core has of a task is a piece; pieces of a task that
several cores have are combined at the end.

Sources: see :mod:`npusim.ops._attention.fai` (fused_infer_attention_score_tiling.cpp).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from npusim.data.integers import ceil_div
from npusim.ops._attention.description import Attention
from npusim.ops._attention.fai.tasks import TILE, Task, decode_tasks_of, tasks_of

__all__ = ["Node", "Work", "work_of"]


@dataclass(frozen=True, slots=True)
class Node:
    """A task that several cores have pieces of."""

    task: Task
    first: int
    """The number of its first piece."""
    pieces: int


@dataclass(frozen=True, slots=True)
class Work:
    """What each core does."""

    tasks: tuple[tuple[Task, ...], ...]
    """Of each core, pieces among them."""
    nodes: tuple[Node, ...] = ()

    @property
    def pieces(self) -> int:
        """Of all nodes."""
        return sum(node.pieces for node in self.nodes)


def work_of(a: Attention, cores: int, template: str) -> Work:
    """What each of *cores* does in *template*; of FAI-FD no more of them start than have work."""
    if template == "FAI-FD":
        return _split(a, cores)
    tasks = tuple(decode_tasks_of(a, cores) if template == "FAI-DEC" else tasks_of(a))
    return Work(tuple(tasks[core::cores] for core in range(cores)))


def _split(a: Attention, cores: int) -> Work:
    scores = a.query_heads * sum(
        tokens * keys for tokens, keys in zip(a.query_lengths, a.kv_lengths, strict=True)
    )
    budget = ceil_div(scores, cores)
    of_core: list[list[Task]] = [[]]
    nodes: list[Node] = []
    left = budget
    for task in tasks_of(a):
        pieces: list[Task] = []
        for tile in task.form.tiles:
            if left <= 0:
                of_core.append([])
                left = budget
            if not of_core[-1] or not pieces or of_core[-1][-1] is not pieces[-1]:
                pieces.append(_piece(task, tile.index, tile.index + 1))
                of_core[-1].append(pieces[-1])
            else:
                pieces[-1] = _piece(task, pieces[-1].form.first_tile, tile.index + 1)
                of_core[-1][-1] = pieces[-1]
            left -= task.form.rows * tile.keys
        if not pieces:
            of_core[-1].append(task)
        elif len(pieces) == 1:
            of_core[-1][-1] = task
        else:
            first = sum(node.pieces for node in nodes)
            nodes.append(Node(task, first, len(pieces)))
            _number(of_core, pieces, first)
    return Work(tuple(map(tuple, of_core)), tuple(nodes))


def _piece(task: Task, first: int, end: int) -> Task:
    """Tiles [first, end) of *task*."""
    keys = min(task.form.keys, end * TILE)
    form = replace(task.form, first_tile=first, keys=keys, is_piece=True)
    return replace(task, form=form)


def _number(of_core: list[list[Task]], pieces: list[Task], first: int) -> None:
    """Give *pieces*, which are in *of_core*, their numbers from *first* on."""
    numbers = {id(piece): first + index for index, piece in enumerate(pieces)}
    for own in of_core:
        own[:] = [
            replace(task, piece=numbers[id(task)]) if id(task) in numbers else task for task in own
        ]
