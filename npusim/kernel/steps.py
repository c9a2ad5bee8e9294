"""Launches as tables: what each core runs, stated for all tiles at once.

A stage of a kernel is a function of views and sizes, as for :func:`~npusim.kernel.views.repeat`. A
:class:`Step` is a stage whose arguments are columns with an entry for each tile::

    x, y = (GmView.of(name, dtype, rows, columns) for name in ("x", "output"))
    number = np.arange(tiles_of_all_cores)
    step = Step(
        kernel.tile, (tiles(x, 8, 512), tiles(y, 8, 512)), core=number % cores, order=number
    )
    blocks = launch(builder, "aiv", step)

:func:`launch` writes the stage once for each shape of its arguments and state of the queues, and
makes a block for each core. A steady loop is written once or twice, however many tiles it has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npusim.data.dtypes import Array, DType
from npusim.kernel.queues import ProgramError
from npusim.kernel.views import GmView, Shiftable, relative

__all__ = [
    "NOWHERE",
    "Choices",
    "Column",
    "GmColumn",
    "GmViews",
    "Integers",
    "StageCall",
    "Step",
    "column",
    "column_of",
    "steps_of",
    "tiles",
]

__kernel_vocabulary__ = True

Integers = NDArray[np.int64]
NOWHERE = int(np.iinfo(np.int64).min)
"""Offset of a name for a tile that has no view of it."""
StageCall = tuple[Any, ...]
"""A stage and its arguments: `(stage, *arguments)`."""


class Column(ABC):
    """An argument of a stage that differs from tile to tile."""

    @property
    @abstractmethod
    def keys(self) -> tuple[Array, ...]:
        """The values that the body depends on, `(tiles,)` each."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of tiles."""

    @abstractmethod
    def __getitem__(self, tile: int) -> Hashable:
        """The argument of the stage for one tile."""


class MovedColumn(Column):
    """An argument with bytes of global memory, whose offsets calls shift."""

    @property
    @abstractmethod
    def offsets(self) -> dict[str, Integers]:
        """Name of global memory -> offset of its first view for each tile."""


class GmColumn(MovedColumn):
    """An argument that is a range of one tensor."""

    name: str
    """Name of the tensor in programs."""
    offset_bytes: Integers
    """Offset in the tensor for each tile."""

    @property
    def offsets(self) -> dict[str, Integers]:
        return {self.name: self.offset_bytes}

    def __len__(self) -> int:
        return self.offset_bytes.size

    @abstractmethod
    def __getitem__(self, tile: int) -> Shiftable:
        """The argument of the stage for one tile."""


@dataclass(frozen=True, eq=False)
class GmViews(GmColumn):
    """Views of one tensor, one for each tile; see :class:`~npusim.kernel.views.GmView`."""

    name: str
    dtype: DType
    rows: Integers
    columns: Integers
    pitch: int
    offset_bytes: Integers

    @staticmethod
    def of(
        view: GmView,
        top: Integers | int,
        left: Integers | int,
        rows: Integers | int,
        columns: Integers | int,
    ) -> GmViews:
        """*rows* x *columns* of *view* from (*top*, *left*) on.

        Bounds beyond the view are clipped to it, as in numpy.
        """
        top, left = np.minimum(top, view.rows), np.minimum(left, view.columns)
        top, left, rows, columns = np.broadcast_arrays(
            *(top, left, np.minimum(rows, view.rows - top)),
            np.minimum(columns, view.columns - left),
        )
        # Rounded up to whole bytes, as DType.nbytes does.
        offset = -(-(top * view.pitch + left) * view.dtype.bits // 8) + view.offset_bytes
        return GmViews(view.name, view.dtype, rows, columns, view.pitch, offset)

    @staticmethod
    def row(view: GmView, index: Integers) -> GmViews:
        """Rows *index* as vectors, views without a following row."""
        return replace(GmViews.of(view, index, 0, 1, view.columns), pitch=0)

    def select(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> GmViews:
        """The views of the *chosen* tiles: a mask, or their indices."""
        return replace(
            self,
            rows=self.rows[chosen],
            columns=self.columns[chosen],
            offset_bytes=self.offset_bytes[chosen],
        )

    def __getitem__(self, tile: int) -> GmView:
        rows, columns = int(self.rows[tile]), int(self.columns[tile])
        offset = int(self.offset_bytes[tile])
        return GmView(self.name, self.dtype, rows, columns, self.pitch, offset)

    @property
    def keys(self) -> tuple[Integers, ...]:
        return self.rows, self.columns


def tiles(view: GmView, row_step: int, column_step: int) -> GmViews:
    """*view* in tiles of *row_step* x *column_step*, row by row; the last ones are smaller."""
    top, left = np.mgrid[0 : view.rows : row_step, 0 : view.columns : column_step].reshape(2, -1)
    return GmViews.of(view, top, left, row_step, column_step)


@dataclass(frozen=True, eq=False)
class Choices(Column):
    """One of *options* for each tile."""

    options: tuple[Hashable, ...]
    index: Integers
    """The number of the option, `(tiles,)`."""

    @property
    def keys(self) -> tuple[Integers, ...]:
        return (self.index,)

    def __len__(self) -> int:
        return self.index.size

    def __getitem__(self, tile: int) -> Hashable:
        return self.options[int(self.index[tile])]


@dataclass(frozen=True, eq=False)
class _Scalars(Column):
    """A number for each tile, passed to the stage as an int, a float or a bool."""

    values: Array

    @property
    def keys(self) -> tuple[Array, ...]:
        return (self.values,)

    def __len__(self) -> int:
        return self.values.size

    def __getitem__(self, tile: int) -> Hashable:
        found: Hashable = self.values[tile].item()
        return found


@dataclass(frozen=True, eq=False)
class _Views(MovedColumn):
    """Views, alone or in tuples, of which few differ in more than their offset."""

    forms: Choices
    """The items, with the first view of each tensor at its beginning."""
    begins: dict[str, Integers]
    """Offsets of these first views."""

    @property
    def offsets(self) -> dict[str, Integers]:
        return self.begins

    @property
    def keys(self) -> tuple[Integers, ...]:
        return self.forms.keys

    def __len__(self) -> int:
        return len(self.forms)

    def __getitem__(self, tile: int) -> Hashable:
        first = {name: -int(offset[tile]) for name, offset in self.offsets.items()}
        found: Hashable = relative(self.forms[tile], first)
        return found


def column(items: Sequence[Hashable], index: Integers | None = None) -> Column:
    """A column of *items*, one for each tile, or the item of number *index* for each tile.

    Views may also be in tuples. Meant for a few thousand items; for more, write the offsets as
    arrays (:class:`GmViews`).
    """
    numbers: dict[Hashable, int] = {}
    form = np.zeros(len(items), np.int64)
    offsets: dict[str, Integers] = {}
    for number, item in enumerate(items):
        shifts: dict[str, int] = {}
        form[number] = numbers.setdefault(relative(item, shifts), len(numbers))
        for name, offset in shifts.items():
            if name not in offsets:
                offsets[name] = np.full(len(items), NOWHERE, np.int64)
            offsets[name][number] = offset
    if index is not None:
        form, offsets = form[index], {name: each[index] for name, each in offsets.items()}
    found = Choices(tuple(numbers), form)
    return _Views(found, offsets) if offsets else found


def column_of(keys: Iterable[tuple[Any, ...]], write: Callable[..., Hashable]) -> Column:
    """A column of `write(*key)` for each of *keys*; *write* is called once for equal keys."""
    numbers: dict[tuple[Any, ...], int] = {}
    index = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
    return column([write(*key) for key in numbers], index)


@dataclass(frozen=True, eq=False)
class Step:
    """A stage and its arguments, for every tile that it runs on."""

    stage: Callable[..., None]
    arguments: tuple[Any, ...]
    """Columns, arrays and lists have an entry for each tile; other values apply to all tiles.
    Several views of one tensor are shifted together, by the offset of the first.
    """
    core: Integers
    """The core that runs each tile, `(tiles,)`."""
    order: Integers | None = None
    """A core runs its tiles in ascending order; for equal orders the first step comes first.

    By default tiles run in the order in which they are listed.
    """
    keeps_slots: bool = False
    """Whether the stage leaves slots in use that the next one takes over: a load ahead."""

    def __post_init__(self) -> None:
        given = (("the order", self.order), *enumerate(self.arguments))
        for which, found in given:
            if isinstance(found, Column | np.ndarray | list) and len(found) != self.core.size:
                raise ProgramError(
                    f"Step: {which if isinstance(which, str) else f'argument {which}'} must have "
                    f"an entry for each of {self.core.size} tiles, not {len(found)}; say all of "
                    f"them, or one value that is not a column"
                )

    @cached_property
    def columns(self) -> tuple[Any, ...]:
        """The arguments: arrays, lists and views as columns, the others unchanged."""
        return tuple(_as_column(each, self.core.size) for each in self.arguments)

    @cached_property
    def offsets(self) -> dict[str, Integers]:
        """Name of global memory -> offset of its first view for each tile."""
        found: dict[str, Integers] = {}
        for each in self.columns:
            for name, offset in each.offsets.items() if isinstance(each, MovedColumn) else ():
                first = found.setdefault(name, offset)
                found[name] = np.where(first == NOWHERE, offset, first)
        return found

    @cached_property
    def shape(self) -> Integers:
        """Number of each tile's shape; equal where arguments differ in offsets only."""
        shape = np.zeros(self.core.size, np.int64)
        for key in self._keys():
            if key.size and (key != key[0]).any():
                values, index = np.unique(key, return_inverse=True)
                # Number the pairs of the shape so far and this key.
                _, shape = np.unique(shape * values.size + index, return_inverse=True)
        return shape

    def _keys(self) -> list[Array]:
        keys: list[Array] = []
        for each in self.columns:
            keys += each.keys if isinstance(each, Column) else ()
            for name, offset in each.offsets.items() if isinstance(each, MovedColumn) else ():
                keys.append(np.where(offset == NOWHERE, 0, offset - self.offsets[name]))
        return keys

    @cached_property
    def examples(self) -> Integers:
        """Index of one tile of each shape, `(shapes,)`."""
        examples: Integers = np.unique(self.shape, return_index=True)[1]
        return examples

    def plain(self, shape: int) -> list[Hashable]:
        """The arguments of a tile of *shape*; names of global memory start at their first view."""
        tile, shifts = int(self.examples[shape]), dict[str, int]()
        return [
            relative(each[tile] if isinstance(each, Column) else each, shifts)
            for each in self.columns
        ]


def _as_column(argument: object, count: int) -> object:
    if isinstance(argument, np.ndarray):
        return _Scalars(argument)
    if isinstance(argument, Shiftable | tuple):
        return column((argument,), np.zeros(count, np.int64))
    return column(argument) if isinstance(argument, list) else argument


def steps_of(programs: Iterable[Iterable[StageCall]]) -> tuple[Step, ...]:
    """Steps of cores that each make a sequence of stage calls.

    For work that is easier to write as loops; core 0 runs the first of *programs*.
    """
    found: dict[Hashable, list[StageCall]] = {}
    for core, calls in enumerate(programs):
        for order, call in enumerate(calls):
            # Views in the same position of all calls of a step belong to one tensor.
            names = (x.name if isinstance(x, Shiftable) else None for x in call)
            found.setdefault((call[0], *names), []).append((core, order, *call))
    steps = []
    for rows in found.values():
        cores, orders, stages, *columns = map(list, zip(*rows, strict=True))
        arguments = tuple(columns)
        steps.append(Step(stages[0], arguments, np.array(cores), np.array(orders)))
    return tuple(steps)
