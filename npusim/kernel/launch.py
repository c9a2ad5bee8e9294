"""Launches: blocks of all cores from columns of steps, groups of cores, and shares of work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npusim.data.integers import distinct
from npusim.data.tensor import TensorSpec
from npusim.isa.fields import BYTES
from npusim.kernel.builder import Builder
from npusim.kernel.program import Binding, Block, Body, Program
from npusim.kernel.queues import QueueState
from npusim.kernel.steps import NOWHERE, Integers, StageCall, Step, steps_of
from npusim.kernel.table import Calls

__all__ = [
    "CoreSteps",
    "Kernel",
    "launch",
    "launch_mixed",
    "share",
]

__kernel_vocabulary__ = True

VECTOR_CORES_OF_A_GROUP = 2
"""A cube core of A2 and A3 is paired with two vector cores (asc-devkit, docs/zh/guide)."""
CORES_OF_A_GROUP = 1 + VECTOR_CORES_OF_A_GROUP


@dataclass(frozen=True, eq=False)
class Kernel:
    """The blocks of a kernel, one for each core."""

    name: str
    blocks: tuple[Block, ...]
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec] = field(default_factory=dict)
    is_mix: bool = False
    """Whether cube and vector cores start together."""
    workspaces: dict[str, Annotated[int, BYTES]] = field(default_factory=dict)
    """Workspace tensors that its cores share, with their sizes in bytes."""

    @property
    def block_dim(self) -> int:
        """Cores that are started; a cube core and the vector cores of its group count as one."""
        return len({block.group for block in self.blocks} if self.is_mix else self.blocks)


def share(count: int, parts: int, index: int) -> range:
    """The contiguous items that part *index* of *parts* gets; the first parts get one more.

    >>> [list(share(5, 3, index)) for index in range(3)]
    [[0, 1], [2, 3], [4]]
    """
    each, more = divmod(count, parts)
    start = index * each + min(index, more)
    return range(start, start + each + (index < more))


# ---- launches as tables ----


def launch(
    builder: Builder,
    kind: str | Sequence[str],
    *steps: Step,
    begin: Callable[[], None] | None = None,
    bound: Callable[[int], dict[str, Binding]] | None = None,
    cached: Callable[[str], bool] = lambda _: True,
    block_dim: int = 0,
) -> tuple[Block, ...]:
    """Make a block for each core of *kind* with a tile in *steps*, and for each below *block_dim*.

    A sequence gives the kind of each core, by its number.
    Each core runs what *begin* writes, the stages of its tiles, and then drains its queues. A stage
    is written once for each shape of its arguments and state of the queues. Names of global memory
    begin where a core's first tile does, and the L2 caches those that are *cached*. *bound* instead
    gives the binding of names on each core; tiles then lie in them as in the names of a program.
    Cores that run the same from there on share one program.
    """
    rows = _Rows.of(steps, begin is not None, block_dim)
    writing = _Writing(builder, steps, begin)
    body, first = writing.bodies_of(rows), rows.first
    bodies = tuple(writing.bodies)
    binding, shifts = _places(rows, body, bodies, bound, cached)
    programs: dict[bytes, Program] = {}
    blocks = []
    for number, core in enumerate(rows.core[first[:-1]].tolist()):
        here = slice(first[number], first[number + 1])
        key = body[here].tobytes() + shifts[here].tobytes()
        if key not in programs:
            table = Calls(bodies, rows.names, body[here], shifts[here])
            programs[key] = builder.build_table(table)
        own = kind if isinstance(kind, str) else kind[core]
        blocks.append(Block(core, own, programs[key], binding[number]))
    return tuple(blocks)


@dataclass(frozen=True, eq=False)
class CoreSteps:
    """What the cores of one kind run, see :func:`launch`."""

    builder: Builder
    steps: tuple[Step, ...]
    begin: Callable[[], None] | None = None

    @staticmethod
    def of_calls(
        builder: Builder, cores: int, calls: Callable[[int], Iterable[StageCall]]
    ) -> CoreSteps:
        """Steps that make `calls(core)`; see :func:`~npusim.kernel.steps.steps_of`."""
        return CoreSteps(builder, steps_of(map(calls, range(cores))))

    def launch(
        self, kind: str, bound: Callable[[int], dict[str, Binding]] | None, block_dim: int
    ) -> tuple[Block, ...]:
        """Their blocks."""
        return launch(
            self.builder, kind, *self.steps, begin=self.begin, bound=bound, block_dim=block_dim
        )


def launch_mixed(
    groups: int,
    cube: CoreSteps,
    vector: CoreSteps,
    bound: Callable[[int], dict[str, Binding]] | None = None,
    vector_cores: int = VECTOR_CORES_OF_A_GROUP,
) -> tuple[Block, ...]:
    """Make the blocks of cube cores with their vector cores: three per group, cube core first.

    A kernel may start only one of the two *vector_cores* of each group.
    The core of a *cube* step is the number of its group; a *vector* step names vector core *half*
    of a group as `vector_cores * group + half`. *bound* gives the binding of names in each group.
    """
    cubes = cube.launch("aic", bound, groups)
    of_core = None if bound is None else lambda core: bound(core // vector_cores)
    vectors = vector.launch("aiv", of_core, groups * vector_cores)
    blocks = []
    for group, block in enumerate(cubes):
        first = CORES_OF_A_GROUP * group
        blocks.append(replace(block, core=first, group=group))
        for half in range(vector_cores):
            block = vectors[vector_cores * group + half]
            blocks.append(replace(block, core=first + 1 + half, group=group))
    return tuple(blocks)


class _Rows(NamedTuple):
    """The rows that cores run, core after core, each in its order."""

    core: Integers
    """`(rows,)`."""
    first: Integers
    """The first row of each core, and the end of the last, `(cores + 1,)`."""
    shape: Integers
    """Number of the shape, counted over all steps; the beginning and the end have the last ones."""
    names: tuple[str, ...]
    offsets: Integers
    """Offsets at which the names begin, `(rows, names)`."""
    is_given: NDArray[np.bool_]
    """Whether the step has the name, `(rows, names)`."""

    @staticmethod
    def of(steps: tuple[Step, ...], has_begin: bool, block_dim: int) -> _Rows:
        """The tiles of *steps* in the order of each core, between its beginning and its end."""
        names = tuple(dict.fromkeys(name for step in steps for name in step.offsets))
        shapes = np.cumsum([0, *(step.examples.size for step in steps)])
        tiles = [step.core for step in steps]
        cores = distinct(np.concatenate([np.arange(block_dim), *tiles]))
        ends = [cores, cores] if has_begin else [cores]
        sizes = [each.size for each in (*tiles, *ends)]
        edges = np.cumsum([0, *sizes])
        # The beginning comes first and the end last, whatever the core runs in between.
        phase = np.repeat([*([0] * len(tiles)), *([1, -1][: len(ends)])], sizes)
        orders = [np.arange(x.core.size) if x.order is None else x.order for x in steps]
        order = np.concatenate([*orders, *ends])
        shape = np.concatenate(
            [
                *(step.shape + base for step, base in zip(steps, shapes, strict=False)),
                *(np.full(cores.size, shapes[-1] + x) for x in range(len(ends))),
            ]
        )
        offsets = np.zeros((edges[-1], len(names)), np.int64)
        is_given = np.zeros(offsets.shape, np.bool_)
        for step, edge in zip(steps, edges, strict=False):
            for name, places in step.offsets.items():
                given = places != NOWHERE
                offsets[edge : edge + places.size, names.index(name)] = np.where(given, places, 0)
                is_given[edge : edge + places.size, names.index(name)] = given
        core = np.concatenate([*tiles, *ends])
        # Sorting is stable: of equal order, tiles of the first step come first.
        rows = np.lexsort((order, phase, core))
        first = np.searchsorted(core[rows], [*cores.tolist(), np.iinfo(np.int64).max])
        return _Rows(core[rows], first, shape[rows], names, offsets[rows], is_given[rows])


class _Writing:
    """Finds the bodies of a sequence of shapes; each leads from one queue state to the next."""

    def __init__(
        self, builder: Builder, steps: tuple[Step, ...], begin: Callable[[], None] | None
    ) -> None:
        self._builder = builder
        self.bodies: dict[Body, int] = {}
        self._states: dict[tuple[QueueState, ...], int] = {}
        self._state_of: list[tuple[QueueState, ...]] = []
        self._moves: dict[tuple[int, int], tuple[int, int]] = {}
        """State and shape -> the body, and the state that it leads to."""
        self._write: list[Callable[[], Body]] = [
            partial(_body, builder, step, shape)
            for step in steps
            for shape in range(step.examples.size)
        ]
        """Writers of the body of each shape, which start from the present state of the queues."""
        self._write.append(builder.drained)
        if begin is not None:
            self._write.append(partial(builder.body, (begin,), begin))

    def bodies_of(self, rows: _Rows) -> Integers:
        """The number of the body of each of *rows*, found once for each sequence of shapes."""
        found: list[Integers] = [np.zeros(0, np.int64)]
        known: dict[bytes, Integers] = {}
        before = self._builder.queue_states
        for start, end in zip(rows.first, rows.first[1:], strict=False):
            shapes = rows.shape[start:end]
            key = shapes.tobytes()
            if key not in known:
                known[key] = self._follow(self._number(before), shapes.tolist())
            found.append(known[key])
        self._builder.queue_states = before
        return np.concatenate(found)

    def _follow(self, state: int, shapes: list[int]) -> Integers:
        found, moves = [], self._moves
        for shape in shapes:
            move = moves.get((state, shape))
            if move is None:
                self._builder.queue_states = self._state_of[state]
                body = self._write[shape]()
                number = self.bodies.setdefault(body, len(self.bodies))
                move = moves[state, shape] = number, self._number(self._builder.queue_states)
            found.append(move[0])
            state = move[1]
        return np.array(found, np.int64)

    def _number(self, state: tuple[QueueState, ...]) -> int:
        number = self._states.setdefault(state, len(self._state_of))
        if number == len(self._state_of):
            self._state_of.append(state)
        return number


def _body(builder: Builder, step: Step, shape: int) -> Body:
    plain = step.plain(shape)
    write = partial(step.stage, *plain)
    return builder.body((step.stage, *plain), write, is_whole=not step.keeps_slots)


def _places(
    rows: _Rows,
    body: Integers,
    bodies: tuple[Body, ...],
    bound: Callable[[int], dict[str, Binding]] | None,
    cached: Callable[[str], bool],
) -> tuple[list[dict[str, Binding]], Integers]:
    """The binding of names on each core, and the shift of each row, `(rows, names)`."""
    touched = [each.names for each in bodies]
    cores = rows.core[rows.first[:-1]].tolist()
    number = np.repeat(np.arange(len(cores)), np.diff(rows.first))
    origin = np.zeros((len(cores), len(rows.names)), np.int64)
    if bound is None:
        for column in range(len(rows.names)):
            given = np.flatnonzero(rows.is_given[:, column])
            which, first = np.unique(number[given], return_index=True)
            origin[which, column] = rows.offsets[given[first], column]
        others = frozenset[str]().union(*touched) - {*rows.names}
        rest = {name: Binding(name, 0, cached(name)) for name in sorted(others)}
        binding = [
            {x: Binding(x, at, cached(x)) for x, at in zip(rows.names, places, strict=True)} | rest
            for places in origin.tolist()
        ]
    else:
        binding = [bound(core) for core in cores]
    touches = np.array([[x in names for x in rows.names] for names in touched], np.bool_)
    touches = touches.reshape(len(bodies), len(rows.names))
    # A body that does not touch a name has no shift for it.
    return binding, np.where(touches[body], rows.offsets - origin[number], 0)
