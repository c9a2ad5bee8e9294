"""A run of a model: the kernels launched, when, by which operation, and what bounds each.

Launches of one call share a :class:`Kernel`, so a record of thousands is small. On disk it is
`model.json`: kernels, names, and launches as columns of indices into these. Reading one executes
nothing and validates everything.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, overload

from pydantic import Field, model_validator

from npusim.trace.checksums import Sealed
from npusim.trace.facts import CHECKSUM, Part, Us, own_digest
from npusim.trace.programs import Count, Name

__all__ = [
    "MODEL",
    "VERSION",
    "Kernel",
    "KernelLaunch",
    "Launches",
    "ModelRun",
    "NotTimed",
    "made",
    "read",
    "seal",
]

MODEL = "model.json"
VERSION = 2
MAKER = "python -m npusim.torch --report"
SEALED = Sealed(MODEL, VERSION, MAKER, 1 << 28)
"""A step of 32 layers takes about a megabyte."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """What launches of the same call have in common."""

    op: str
    """The operator of npusim."""
    template: str | None
    """The vendor's kernel that ran, if the operator has several."""
    inputs: tuple[str, ...]
    """Type and shape of each tensor: `bfloat16 1x3584`."""
    outputs: tuple[str, ...]
    cores: int
    """Number of cores with work."""
    time_us: float
    """Task Duration: launch, the slowest core, completion. In a graph, the launch is paid once."""
    launch_us: float
    """The part of it for starting and completing."""
    cycles: int
    """Cycles of the slowest core."""
    read_bytes: int
    """Bytes that its cores read from memory, the L2 included."""
    written_bytes: int
    """Bytes that its cores write to memory, the L2 included."""
    gm_bytes: int
    """Bytes moved from and to global memory while it ran."""
    l2_hit_bytes: int
    """Bytes that its cores moved from and to the L2 and that hit, or were stored."""
    gm_written_bytes: int
    """Bytes that the L2 wrote back while it ran, including data of earlier kernels."""
    bound: str
    """What bounds it, in the terms of docs/reports.md."""
    bound_share: float
    """The share of its time on the critical path due to that."""


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """One launch of a kernel: a bar of the timeline."""

    kernel: Kernel
    start_us: float
    """Microseconds since the record began."""
    stream: int
    operator: str
    """The torch operation that launched it: `aten.mm.default`."""
    module: str
    """The path of the module whose forward launched it; empty outside all modules."""
    graph: str
    """The compiled graph that it was part of; empty outside all graphs."""

    @property
    def time_us(self) -> float:
        """See :attr:`Kernel.time_us`."""
        return self.kernel.time_us

    @property
    def end_us(self) -> float:
        """Microseconds since the record began."""
        return self.start_us + self.kernel.time_us


class Launches(Sequence[KernelLaunch]):
    """Launches in order of their starts, stored as a row of numbers each.

    Objects are created on access.
    """

    def __init__(self) -> None:
        self._kernels: dict[Kernel, int] = {}
        self._names: dict[str, int] = {}
        """Operators, modules and graphs -> their numbers."""
        self._start_us = array("d")
        self._rows = array("q")
        """Kernel, stream, operator, module and graph of each launch, concatenated."""

    def number(self, kernel: Kernel) -> int:
        """The index of *kernel* in rows."""
        return self._kernels.setdefault(kernel, len(self._kernels))

    def add(
        self, kernel: int, start_us: float, stream: int, operator: str, module: str, graph: str
    ) -> None:
        """Add a row: the index of a kernel, and the other fields of a :class:`KernelLaunch`."""
        names = self._names
        self._start_us.append(start_us)
        self._rows.extend(
            (
                *(kernel, stream),
                names.setdefault(operator, len(names)),
                names.setdefault(module, len(names)),
                names.setdefault(graph, len(names)),
            )
        )

    def copy(self) -> Launches:
        """The launches so far."""
        twin = Launches()
        twin._kernels, twin._names = dict(self._kernels), dict(self._names)
        twin._start_us, twin._rows = self._start_us[:], self._rows[:]
        return twin

    def __len__(self) -> int:
        return len(self._start_us)

    def __iter__(self) -> Iterator[KernelLaunch]:
        kernels, names, rows = [*self._kernels], [*self._names], iter(self._rows)
        for start_us in self._start_us:
            kernel, stream, operator, module, graph = islice(rows, 5)
            yield KernelLaunch(
                *(kernels[kernel], start_us, stream),
                *(names[operator], names[module], names[graph]),
            )

    @overload
    def __getitem__(self, place: int) -> KernelLaunch: ...

    @overload
    def __getitem__(self, place: slice) -> list[KernelLaunch]: ...

    def __getitem__(self, place: int | slice) -> KernelLaunch | list[KernelLaunch]:
        return [*self][place]


@dataclass(frozen=True, slots=True)
class NotTimed:
    """An operation that a card would run as a kernel, but that has no simulated time."""

    operator: str
    module: str
    count: int


@dataclass(frozen=True, eq=False)
class ModelRun:
    """The kernels that a model launched on a card."""

    title: str
    """What ran: the name of a script."""
    device: str
    """The name of the card: Ascend910B2."""
    series: str
    paid_launches: int
    """Launches from the host; a compiled graph counts as one."""
    launches: Sequence[KernelLaunch]
    """In order of their starts."""
    not_timed: tuple[NotTimed, ...]
    classes: dict[str, str]
    """Path of a module -> its class."""

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """Each kernel once, in order of first launch."""
        return tuple(dict.fromkeys(launch.kernel for launch in self.launches))

    @cached_property
    def time_us(self) -> float:
        """The time of all launches."""
        return sum((launch.time_us for launch in self.launches), 0.0)

    def to_json(self) -> dict[str, object]:
        """The run as plain numbers, strings and lists."""
        kernels = _Numbers(self.kernels)
        operators = _Numbers(launch.operator for launch in self.launches)
        modules = _Numbers(launch.module for launch in self.launches)
        graphs = _Numbers(launch.graph for launch in self.launches)
        return {
            "title": self.title,
            "device": self.device,
            "series": self.series,
            "paid_launches": self.paid_launches,
            "kernels": [asdict(kernel) for kernel in kernels],
            "operators": list(operators),
            "modules": list(modules),
            "graphs": list(graphs),
            "classes": dict(sorted(self.classes.items())),
            "launches": {
                "kernel": [kernels[launch.kernel] for launch in self.launches],
                "start_us": [launch.start_us for launch in self.launches],
                "stream": [launch.stream for launch in self.launches],
                "operator": [operators[launch.operator] for launch in self.launches],
                "module": [modules[launch.module] for launch in self.launches],
                "graph": [graphs[launch.graph] for launch in self.launches],
            },
            "not_timed": [asdict(each) for each in self.not_timed],
        }


class _Numbers(dict[Any, int]):
    """Distinct objects -> their indices."""

    def __init__(self, things: Iterable[object]) -> None:
        super().__init__((thing, number) for number, thing in enumerate(dict.fromkeys(things)))


# ---- the schema ----


class _KernelRow(Part):
    """Has the fields of :class:`Kernel`."""

    op: Name
    template: Name | None
    inputs: list[Name]
    outputs: list[Name]
    cores: Count
    time_us: Us
    launch_us: Us
    cycles: Count
    read_bytes: Count
    written_bytes: Count
    gm_bytes: Count
    l2_hit_bytes: Count
    gm_written_bytes: Count
    bound: Name
    bound_share: Annotated[float, Field(ge=0, le=1)]


class _NotTimedRow(Part):
    """Has the fields of :class:`NotTimed`."""

    operator: Name
    module: Name
    count: Annotated[int, Field(gt=0)]


class _Columns(Part):
    """Columns over all launches, of equal length."""

    kernel: list[Count]
    start_us: list[Us]
    stream: list[Count]
    operator: list[Count]
    module: list[Count]
    graph: list[Count]


class _Facts(Part):
    """The contents of `model.json`."""

    version: int
    title: Name
    device: Name
    series: Name
    paid_launches: Count
    kernels: list[_KernelRow]
    operators: list[Name]
    modules: list[Name]
    graphs: list[Name]
    classes: dict[Name, Name]
    launches: _Columns
    not_timed: list[_NotTimedRow]
    files: list[Name]

    @model_validator(mode="after")
    def _hold(self) -> _Facts:
        columns = self.launches
        known: dict[str, tuple[list[int], Sized]] = {
            "kernel": (columns.kernel, self.kernels),
            "operator": (columns.operator, self.operators),
            "module": (columns.module, self.modules),
            "graph": (columns.graph, self.graphs),
        }
        lengths = {len(columns.start_us), len(columns.stream)}
        lengths |= {len(numbers) for numbers, _ in known.values()}
        if len(lengths) > 1:
            raise ValueError("columns of launches must have one length")
        for name, (numbers, things) in known.items():
            if max(numbers, default=-1) >= len(things):
                raise ValueError(f"the {name} of a launch must be one that is there")
        if columns.start_us != sorted(columns.start_us):
            raise ValueError("launches must be in the order of their starts")
        return self


# ---- on disk ----


def seal(folder: Path, run: ModelRun) -> str:
    """Write `model.json`, the last file of *folder*: *run*, and the list of other files."""
    files = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    whole = {"version": VERSION} | run.to_json() | {"files": sorted([*files, MODEL])}
    whole = json.loads(json.dumps(whole, allow_nan=False))
    whole[CHECKSUM] = {MODEL: own_digest(whole)}
    text = json.dumps(whole, separators=(",", ":")) + "\n"
    (folder / MODEL).write_text(text, encoding="utf-8")
    return MODEL


def read(folder: Path, who: str = "report") -> ModelRun:
    """The run in *folder*; raises RecordError, on behalf of *who*, if there is none."""
    _, facts = SEALED.read(folder, who, _Facts)
    columns, launches = facts.launches, Launches()
    kernels = [launches.number(_kernel(row)) for row in facts.kernels]
    for kernel, start_us, stream, operator, module, graph in zip(
        *(columns.kernel, columns.start_us, columns.stream),
        *(columns.operator, columns.module, columns.graph),
        strict=True,
    ):
        names = facts.operators[operator], facts.modules[module], facts.graphs[graph]
        launches.add(kernels[kernel], start_us, stream, *names)
    not_timed = tuple(NotTimed(each.operator, each.module, each.count) for each in facts.not_timed)
    return ModelRun(
        *(facts.title, facts.device, facts.series, facts.paid_launches, launches, not_timed),
        facts.classes,
    )


def _kernel(row: _KernelRow) -> Kernel:
    facts = row.model_dump()
    return Kernel(**facts | {"inputs": tuple(row.inputs), "outputs": tuple(row.outputs)})


def made(folder: Path, who: str = "npusim.torch") -> frozenset[str]:
    """The files that npusim wrote to *folder*; raises RecordError if it holds no model run."""
    _, facts = SEALED.read(folder, who, _Facts)
    return frozenset(facts.files)
