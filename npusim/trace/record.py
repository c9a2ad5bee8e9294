"""A run on disk: the data that a report needs, and reading it back.

A folder holds the values, `run.json` (the figures of the run), `device.json` (every figure of the
chip with its source) and `trace.npz` (programs as JSON; the times of each lane as differences of
starts, cycles that hold the pipe, and cycles from there to the result; and the delays of copies).
All are plain data: reading them executes nothing, validates everything, and unpacks no more than
expected.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from npusim.accuracy import Accuracy
from npusim.data.files import content
from npusim.data.json import Json
from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Line
from npusim.trace.archive import Archive, DamageError, save
from npusim.trace.checksums import CHANGED, RecordError, Sealed, first_problem
from npusim.trace.facts import CHECKSUM, Facts, digest, file_digest, own_digest
from npusim.trace.lanes import Trace
from npusim.trace.launch import Launch
from npusim.trace.programs import LaneRow, Tree, described, programs_of
from npusim.trace.times import arrays_of, lane_of, names_of
from npusim.trace.trial import Trial

__all__ = ["RECORD", "VERSION", "Record", "RecordError", "made", "read", "seal", "write"]

VERSION = 9
"""Version of the folder; 1 had no trace, 2 no groups of cores, 3 no checksums, launches or whole
lines, 4 no delays of copies, 5 no expected error of the time, 7 no trials."""
RECORD = "run.json"
DEVICE = "device.json"
TRACE = "trace.npz"
PROGRAMS = "programs"
MAX_DEVICE_BYTES = 1 << 22
"""Tens of times the size of the largest."""
SEALED = Sealed(RECORD, VERSION, "npusim run -o", 1 << 24)

Times = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Record:
    """A run as it was written."""

    facts: Json
    """The contents of `run.json`."""
    device: DeviceSpec
    trace: Trace | None
    code: dict[Line, str]
    """Text of the kernel lines that wrote the micro-ops."""

    @property
    def op(self) -> str:
        """The operator's name."""
        return str(self.facts["op"])

    @property
    def template(self) -> str | None:
        """See :attr:`Run.template`."""
        return self.facts["template"]  # type: ignore[no-any-return]

    @property
    def time_us(self) -> float | None:
        """See :attr:`Run.time_us`."""
        return self.facts["time_us"]  # type: ignore[no-any-return]

    @property
    def launch_us(self) -> float:
        """See :attr:`Run.launch_us`."""
        return float(self.facts["launch_us"])

    @property
    def launches(self) -> tuple[Launch, ...]:
        """See :attr:`Run.launches`."""
        return tuple(Launch(**launch) for launch in self.facts["launches"])

    @property
    def trials(self) -> tuple[Trial, ...]:
        """See :attr:`Run.trials`."""
        return tuple(Trial.from_json(row) for row in self.facts["trials"])

    @property
    def accuracy(self) -> Accuracy | None:
        """See :attr:`Run.accuracy`."""
        found = self.facts["accuracy"]
        return None if found is None else Accuracy.from_json(found)


# ---- writing ----


def write(folder: Path, device: DeviceSpec, trace: Trace | None) -> list[str]:
    """Write everything except `run.json` to *folder*; return the names of the files.

    Raises ValueError for a trace that is too large to be read back, or has names that are not
    printable.
    """
    tree = device.model_dump(mode="json")
    (folder / DEVICE).write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")
    if trace is None:
        return [DEVICE]
    text = json.dumps(described(trace), separators=(",", ":")).encode()
    save(folder / TRACE, {PROGRAMS: text}, arrays_of(trace))
    return [DEVICE, TRACE]


def seal(folder: Path, facts: dict[str, object]) -> str:
    """Write `run.json`, the last file of *folder*: *facts*, and the list of other files."""
    files = sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )
    whole = {"version": VERSION} | facts | {"files": sorted([*files, RECORD])}
    whole = json.loads(json.dumps(whole, allow_nan=False))
    sums = {name: file_digest(folder / name) for name in files if name in (DEVICE, TRACE)}
    whole[CHECKSUM] = sums | {RECORD: own_digest(whole)}
    (folder / RECORD).write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    return RECORD


# ---- reading ----


def read(folder: Path, who: str = "report") -> Record:
    """Read the run in *folder*; raises RecordError, on behalf of *who*, if there is none."""
    reader = _Reader(folder, who)
    raw, facts = reader.facts()
    device = reader.device(facts)
    trace, code = reader.trace(facts, device)
    return Record(raw, device, trace, code)


def made(folder: Path, who: str = "run") -> frozenset[str]:
    """The files that npusim wrote, relative to *folder*; raises RecordError if it holds no run."""
    _, facts = _Reader(folder, who).facts()
    return frozenset(facts.files)


class _Reader:
    """Reads the files of one folder; every fault becomes a RecordError that names the file."""

    def __init__(self, folder: Path, who: str) -> None:
        self._folder, self._who = folder, who

    def facts(self) -> tuple[Json, Facts]:
        """`run.json` as read, and validated against its schema."""
        return SEALED.read(self._folder, self._who, Facts)

    def device(self, facts: Facts) -> DeviceSpec:
        """`device.json`, which must be the chip of *facts*."""
        try:
            text = content(self._folder / DEVICE, MAX_DEVICE_BYTES)
        except OSError as error:
            raise self._unreadable(DEVICE, error) from None
        if facts.sha256.get(DEVICE) != digest(text):
            raise self._damaged(DEVICE, CHANGED)
        try:
            device = DeviceSpec.model_validate_json(text)
        except ValidationError as error:
            raise self._damaged(DEVICE, first_problem(error)) from None
        for key, ours in (("device", device.name), ("clock_hz", device.clock_hz)):
            if getattr(facts, key) != ours:
                raise self._damaged(DEVICE, f"{key} must be that of {RECORD}")
        return device

    def trace(self, facts: Facts, device: DeviceSpec) -> tuple[Trace | None, dict[Line, str]]:
        """`trace.npz`, which must match *facts*; None if nothing was timed, or ran."""
        if facts.cycles is None or not facts.counters:
            return None, {}
        try:
            if facts.sha256.get(TRACE) != file_digest(self._folder / TRACE):
                raise self._damaged(TRACE, CHANGED)
            with Archive(self._folder / TRACE) as archive:
                tree = Tree.model_validate_json(archive.text(PROGRAMS, _most_text(facts)))
                archive.hold({PROGRAMS, *names_of(len(tree.lanes))})
                trace = _trace(tree, archive, facts, device)
        except DamageError as error:
            raise self._damaged(TRACE, str(error)) from None
        except ValidationError as error:
            raise self._damaged(TRACE, first_problem(error)) from None
        except OSError as error:
            raise self._unreadable(TRACE, error) from None
        return trace, {(file, line): text for file, line, text in tree.code}

    def _unreadable(self, name: str, error: OSError) -> RecordError:
        return SEALED.unreadable(self._folder, self._who, name, error)

    def _damaged(self, name: str, why: str) -> RecordError:
        return SEALED.damaged(self._folder, self._who, name, why)


# ---- a trace ----

FIXED_BYTES, BYTES_OF_A_MICRO_OP = 1 << 18, 1 << 11
"""Most bytes of the text of programs: in total, and for each micro-op that runs (measured: 124 for
an embedding, where no micro-op runs twice)."""


def _most_text(facts: Facts) -> int:
    """Most bytes of the text of the programs of *facts*, if each of their micro-ops runs."""
    counters = (each for pipes in facts.counters.values() for each in pipes.values())
    return FIXED_BYTES + BYTES_OF_A_MICRO_OP * sum(each.get("micro_ops", 0) for each in counters)


def _trace(tree: Tree, archive: Archive, facts: Facts, device: DeviceSpec) -> Trace:
    """The trace of *tree*, with the times of *archive*."""
    if tree.clock_hz != device.clock_hz:
        raise DamageError("clock_hz must be that of the chip")
    programs = programs_of(tree)
    _check_lanes(tree.lanes, len(programs), device)
    assert facts.cycles is not None
    lanes = [
        lane_of(archive, number, row, programs[row.program], facts.cycles)
        for number, row in enumerate(tree.lanes)
    ]
    trace = Trace(tuple(lanes), tree.clock_hz, tree.gm_written_bytes)
    _check_facts(trace, facts)
    return trace


def _check_lanes(rows: list[LaneRow], programs: int, device: DeviceSpec) -> None:
    """Raise DamageError unless every core of *rows* exists on *device* and occurs once."""
    kinds = {core: row.kind for row in rows for core in row.cores}
    if len(kinds) != sum(len(row.cores) for row in rows):
        raise DamageError("a core must be in one lane")
    for row in rows:
        if row.program >= programs:
            raise DamageError("a lane must run a program that is there")
        if row.groups and len(row.groups) != len(row.cores):
            raise DamageError("each core of a lane must have its group, or none")
        if row.kind not in device.cores:
            raise DamageError(f"cores must be of a kind that {device.name} has, not {row.kind!r}")
    for kind, core in device.cores.items():
        count = sum(known == kind for known in kinds.values())
        if count > core.count:
            raise DamageError(f"at most {core.count} cores must be {kind}, not {count}")


def _check_facts(trace: Trace, facts: Facts) -> None:
    """Raise DamageError unless `run.json` agrees with *trace*."""
    counters = {
        str(core): {pipe: asdict(counter) for pipe, counter in pipes.items()}
        for core, pipes in trace.counters().items()
    }
    if trace.cycles != facts.cycles or counters != facts.counters:
        raise DamageError(f"its cycles and counters must be those of {RECORD}")
    if not facts.launches:
        raise DamageError(f"{RECORD} must describe its launch")
    *earlier, own = facts.launches
    took_us = own.launch_us + trace.cycles / trace.clock_hz * 1e6
    took_us += sum(launch.time_us or 0.0 for launch in earlier)
    if facts.time_us is None or not math.isclose(took_us, facts.time_us):
        raise DamageError(f"its time must be that of {RECORD}")
