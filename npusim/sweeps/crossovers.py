"""Lines of a sweep over its axis, and the crossovers where another line becomes the fastest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from npusim.sweeps.rows import VENDOR, Rows

__all__ = ["Crossover", "Leaders", "Line", "axis_of", "crossovers", "label_of", "leaders", "lines"]


@dataclass(frozen=True, slots=True)
class Line:
    """Times over the axis, with everything else fixed."""

    coordinates: dict[str, object]
    """The coordinates in which it may differ from other lines."""
    times_us: dict[int | float, float]
    """Value of the axis -> the time there, in ascending order, without refused cells."""

    @property
    def label(self) -> str:
        """What distinguishes it from the others."""
        return _words(self.coordinates)


@dataclass(frozen=True, slots=True)
class Crossover:
    """A crossover: among lines that differ in one coordinate, another one becomes the fastest."""

    among: dict[str, object]
    """What they have in common."""
    along: str
    """The coordinate in which they differ: device, template, a setting, or a variable."""
    axis: str
    until: int | float
    """The last value of the axis at which *slower* is the fastest."""
    at: int | float
    """The next value, at which *faster* is the fastest."""
    slower: str
    faster: str
    time_us: float
    """The time of *faster* there."""

    def __str__(self) -> str:
        where = f" ({_words(self.among)})" if self.among else ""
        return (
            f"between {self.axis} = {self.until} and {self.at} {self.faster} becomes faster than "
            f"{self.slower}{where}"
        )


@dataclass(frozen=True, slots=True)
class Leaders:
    """The fastest line at each value, among lines that differ in one coordinate."""

    among: dict[str, object]
    """What they have in common."""
    axis: str
    """The label of the axis: `rows of x`."""
    values: tuple[int | float, ...]
    """All simulated values, in ascending order."""
    fastest: dict[str, tuple[int | float, ...]]
    """Line -> where it is the fastest; the most frequent winner first."""

    def __str__(self) -> str:
        where = f" ({_words(self.among)})" if self.among else ""
        most, *others = self.fastest
        if not others:
            return f"{most} is the fastest at every {self.axis} tried{where}"
        parts = [
            f"{name} is the fastest at {self.axis} = {self.stretches(name)}" for name in others
        ]
        return f"{', '.join(parts)}; {most} at all others tried{where}"

    def stretches(self, name: str) -> str:
        """Where *name* is the fastest, with ranges of neighbours: `1 to 8, 32`."""
        places = [self.values.index(value) for value in self.fastest[name]]
        runs: list[list[int]] = []
        for place in places:
            if runs and place == runs[-1][-1] + 1:
                runs[-1].append(place)
            else:
                runs.append([place])
        ends = ((self.values[run[0]], self.values[run[-1]]) for run in runs)
        return ", ".join(f"{a:g}" if a == b else f"{a:g} to {b:g}" for a, b in ends)


def _words(coordinates: dict[str, object]) -> str:
    """Chips and templates by their names, other coordinates as key and value."""
    named = "device", "template"
    parts = (
        str(value) if name in named else f"{name} = {value}" for name, value in coordinates.items()
    )
    return ", ".join(parts)


def axis_of(sweep: Rows) -> str | None:
    """The numeric variable with the most values, at least two; the first if several tie."""
    found: str | None = None
    most = 1
    for name in sweep.variables:
        values = {row.cell.variables[name] for row in sweep.rows if _is_number(row, name)}
        if len(values) > most and all(_is_number(row, name) for row in sweep.rows):
            found, most = name, len(values)
    return found


def _is_number(row: Any, name: str) -> bool:
    value = row.cell.variables[name]
    return isinstance(value, int | float) and not isinstance(value, bool)


def lines(sweep: Rows) -> tuple[Line, ...]:
    """A line for each combination of the other coordinates, in the order of the rows."""
    axis = axis_of(sweep)
    found: dict[tuple[str, ...], Line] = {}
    for row in sweep.rows:
        own = {name: of for name, of in row.coordinates.items() if name in sweep.varied}
        own.pop(axis or "", None)
        line = found.setdefault(tuple(map(str, own.values())), Line(own, {}))
        if row.outcome.time_us is not None and axis is not None:
            line.times_us[row.cell.variables[axis]] = row.outcome.time_us
    for line in found.values():
        ordered = sorted(line.times_us.items())
        line.times_us.clear()
        line.times_us.update(ordered)
    return tuple(line for line in found.values() if line.times_us)


def label_of(sweep: Rows, name: str) -> str:
    """The label of the variable *name*: if it is an extent of its tensor, which one.

    A variable without a name has the name of the tensor in whose shape it is.
    """
    shapes = [_shape(row.cell.arguments.get(name, "")) for row in sweep.rows]
    values = [row.cell.variables[name] for row in sweep.rows]
    for place, extent in enumerate(("rows", "columns")):
        if all(len(shape) == 2 and shape[place] == value
               for shape, value in zip(shapes, values, strict=True)):  # fmt: skip
            return f"{extent} of {name}"
    return name


def _shape(word: str) -> tuple[int, ...]:
    """The shape in the text of an argument: `spec:8x16:float16`."""
    found = re.match(r"spec:(\d+(?:x\d+)*):", word)
    return tuple(map(int, found[1].split("x"))) if found else ()


def leaders(sweep: Rows) -> tuple[Leaders, ...]:
    """Which line is the fastest where, for lines that differ in a chip, a template or a setting."""
    axis = axis_of(sweep)
    if axis is None:
        return ()
    found = []
    for along, among, group in _compared(sweep, axis):
        values = tuple(sorted({value for line in group for value in line.times_us}))
        fastest: dict[str, list[int | float]] = {}
        for value in values:
            name = str(_fastest(group, value).coordinates[along])
            fastest.setdefault(name, []).append(value)
        ranked = sorted(fastest.items(), key=lambda item: -len(item[1]))
        named = {name: tuple(where) for name, where in ranked}
        found.append(Leaders(among, label_of(sweep, axis), values, named))
    return tuple(found)


def crossovers(sweep: Rows) -> tuple[Crossover, ...]:
    """Every crossover of lines that differ in a chip, a template, a setting or a text variable.

    The vendor's choice is one of the templates, so it does not compete with them.
    """
    axis = axis_of(sweep)
    if axis is None:
        return ()
    found: list[Crossover] = []
    for along, among, group in _compared(sweep, axis):
        found += _of_group(axis, along, among, group)
    return tuple(found)


def _compared(sweep: Rows, axis: str) -> Iterator[tuple[str, dict[str, object], list[Line]]]:
    """The only coordinate in which lines differ, what they have in common, and the lines (>= 2)."""
    every = lines(sweep)
    for along in sweep.varied:
        if along == axis or (along in sweep.variables and _all_numbers(sweep, along)):
            continue
        for among, group in _groups(every, along):
            if len(group) > 1:
                yield along, among, group


def _all_numbers(sweep: Rows, name: str) -> bool:
    return all(_is_number(row, name) for row in sweep.rows)


def _groups(every: tuple[Line, ...], along: str) -> Iterator[tuple[dict[str, object], list[Line]]]:
    """Lines that differ only in *along*, with what they have in common."""
    found: dict[tuple[str, ...], tuple[dict[str, Any], list[Line]]] = {}
    for line in every:
        if along == "template" and line.coordinates[along] == VENDOR:
            continue
        among = {name: of for name, of in line.coordinates.items() if name != along}
        found.setdefault(tuple(map(str, among.values())), (among, []))[1].append(line)
    yield from found.values()


def _of_group(
    axis: str, along: str, among: dict[str, object], group: list[Line]
) -> Iterator[Crossover]:
    leader: Line | None = None
    until: int | float = 0
    for at in sorted({value for line in group for value in line.times_us}):
        best = _fastest(group, at)
        if leader is None or at not in leader.times_us:
            leader = best  # a line that accepts no call here crosses no other
        if best.times_us[at] < leader.times_us[at]:
            if _led(leader, best, at):
                slower, faster = (str(line.coordinates[along]) for line in (leader, best))
                time_us = best.times_us[at]
                yield Crossover(among, along, axis, until, at, slower, faster, time_us)
            leader = best
        until = at


def _led(leader: Line, other: Line, before: float) -> bool:
    """Whether *leader* was strictly faster than *other* somewhere below *before*."""
    return any(
        time_us < other.times_us[value]
        for value, time_us in leader.times_us.items()
        if value < before and value in other.times_us
    )


def _fastest(group: list[Line], value: float) -> Line:
    """The fastest line at *value*, the first if several tie."""
    there = (line for line in group if value in line.times_us)
    return min(there, key=lambda line: line.times_us[value])
