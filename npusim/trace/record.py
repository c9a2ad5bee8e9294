"""A run on disk: what a report needs of it, and how it is read back.

Beside the values, a folder holds `run.json` (the numbers of the run), `device.json` (every number
of the chip with its source) and `trace.npz` (programs as JSON, and the times of each lane as start
after start, cycles that hold the pipe, and cycles from there to the result; of copies, what held
them up). All are plain data: reading them runs nothing, believes nothing, and unpacks no more than
must be there.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from npusim.accuracy import Accuracy
from npusim.data.files import content
from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Line
from npusim.trace.archive import Archive, DamageError, save
from npusim.trace.facts import CHECKSUM, Facts, digest, file_digest, own_digest
from npusim.trace.lanes import Trace
from npusim.trace.launch import Launch
from npusim.trace.programs import LaneRow, Tree, described, programs_of
from npusim.trace.times import arrays_of, lane_of, names_of

__all__ = ["RECORD", "VERSION", "Record", "RecordError", "made", "read", "seal", "write"]

VERSION = 6
"""Of what a folder holds; 1 had no trace, 2 no groups of cores, 3 no checksums, no launches and no
whole lines, 4 not what held copies up, 5 not how far to trust the time."""
RECORD = "run.json"
DEVICE = "device.json"
TRACE = "trace.npz"
PROGRAMS = "programs"
MAX_BYTES = {RECORD: 1 << 24, DEVICE: 1 << 22}
"""Of each file: tens of times what the largest runs have."""

Times = NDArray[np.int64]


class RecordError(ValueError):
    """A folder does not hold a run that can be read."""


@dataclass(frozen=True, eq=False)
class Record:
    """A run as it was written."""

    facts: dict[str, Any]
    """What `run.json` says."""
    device: DeviceSpec
    trace: Trace | None
    code: dict[Line, str]
    """What stands in the lines of the kernels that wrote the micro-ops."""

    @property
    def op(self) -> str:
        """The operator's name."""
        return str(self.facts["op"])

    @property
    def template(self) -> str | None:
        """As :attr:`Run.template`."""
        return self.facts["template"]  # type: ignore[no-any-return]

    @property
    def time_us(self) -> float | None:
        """As :attr:`Run.time_us`."""
        return self.facts["time_us"]  # type: ignore[no-any-return]

    @property
    def launch_us(self) -> float:
        """As :attr:`Run.launch_us`."""
        return float(self.facts["launch_us"])

    @property
    def launches(self) -> tuple[Launch, ...]:
        """As :attr:`Run.launches`."""
        return tuple(Launch(**launch) for launch in self.facts["launches"])

    @property
    def accuracy(self) -> Accuracy | None:
        """As :attr:`Run.accuracy`."""
        found = self.facts["accuracy"]
        return None if found is None else Accuracy.from_json(found)


# ---- writing ----


def write(folder: Path, device: DeviceSpec, trace: Trace | None) -> list[str]:
    """Write all but `run.json` into *folder*; returns the names of the files.

    Raises ValueError for a trace that is too large to be read back, or has names that cannot be
    shown.
    """
    tree = device.model_dump(mode="json")
    (folder / DEVICE).write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")
    if trace is None:
        return [DEVICE]
    text = json.dumps(described(trace), separators=(",", ":")).encode()
    save(folder / TRACE, {PROGRAMS: text}, arrays_of(trace))
    return [DEVICE, TRACE]


def seal(folder: Path, facts: dict[str, Any]) -> str:
    """Write `run.json`, the last file of *folder*: *facts*, and what the folder holds."""
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
    """Read the run in *folder*; raises RecordError, in the name of *who*, if there is none."""
    reader = _Reader(folder, who)
    raw, facts = reader.facts()
    device = reader.device(facts)
    trace, code = reader.trace(facts, device)
    return Record(raw, device, trace, code)


def made(folder: Path, who: str = "run") -> frozenset[str]:
    """What npusim wrote into *folder*, as paths below it; raises RecordError if that is no run."""
    _, facts = _Reader(folder, who).facts()
    return frozenset(facts.files)


class _Reader:
    """Reads the files of one folder; every fault becomes a RecordError that names the file."""

    def __init__(self, folder: Path, who: str) -> None:
        self._folder, self._who = folder, who

    def facts(self) -> tuple[dict[str, Any], Facts]:
        """`run.json` as it stands, and held against its schema."""
        try:
            text = content(self._folder / RECORD, MAX_BYTES[RECORD])
        except (FileNotFoundError, NotADirectoryError):
            raise RecordError(
                f"{self._who}: the folder {self._folder} must hold a {RECORD}, but holds none; "
                f"name one that npusim run -o has written"
            ) from None
        except OSError as error:
            raise self._unreadable(RECORD, error) from None
        try:
            raw = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            raise self._damaged(RECORD, "it is no JSON") from None
        if not isinstance(raw, dict):
            raise self._damaged(RECORD, "it holds no table")
        version = raw.get("version", 1)
        if type(version) is not int or not 0 < version < MAX_VERSION:
            raise self._damaged(RECORD, "version must be a small number")
        if version != VERSION:
            raise RecordError(
                f"{self._who}: the run in {self._folder} must be of version {VERSION}, not "
                f"{version}; write it again with npusim run -o"
            )
        try:
            facts = Facts.model_validate(raw)
        except (ValidationError, RecursionError) as error:
            raise self._damaged(RECORD, _first(error)) from None
        if facts.sha256.get(RECORD) != own_digest(raw):
            raise self._damaged(RECORD, CHANGED)
        return raw, facts

    def device(self, facts: Facts) -> DeviceSpec:
        """`device.json`, which must be the chip of *facts*."""
        try:
            text = content(self._folder / DEVICE, MAX_BYTES[DEVICE])
        except OSError as error:
            raise self._unreadable(DEVICE, error) from None
        if facts.sha256.get(DEVICE) != digest(text):
            raise self._damaged(DEVICE, CHANGED)
        try:
            device = DeviceSpec.model_validate_json(text)
        except ValidationError as error:
            raise self._damaged(DEVICE, _first(error)) from None
        for key, ours in (("device", device.name), ("clock_hz", device.clock_hz)):
            if getattr(facts, key) != ours:
                raise self._damaged(DEVICE, f"{key} must be that of {RECORD}")
        return device

    def trace(self, facts: Facts, device: DeviceSpec) -> tuple[Trace | None, dict[Line, str]]:
        """`trace.npz`, which must be that of *facts*; None where nothing was timed, or ran."""
        if facts.cycles is None or not facts.counters:
            return None, {}
        try:
            if facts.sha256.get(TRACE) != file_digest(self._folder / TRACE):
                raise self._damaged(TRACE, CHANGED)
            with Archive(self._folder / TRACE) as archive:
                tree = Tree.model_validate_json(archive.text(PROGRAMS))
                archive.hold({PROGRAMS, *names_of(len(tree.lanes))})
                trace = _trace(tree, archive, facts, device)
        except DamageError as error:
            raise self._damaged(TRACE, str(error)) from None
        except ValidationError as error:
            raise self._damaged(TRACE, _first(error)) from None
        except OSError as error:
            raise self._unreadable(TRACE, error) from None
        return trace, {(file, line): text for file, line, text in tree.code}

    def _unreadable(self, name: str, error: OSError) -> RecordError:
        if isinstance(error, FileNotFoundError):
            return self._broken(f"{name} is missing")
        return self._broken(f"{name} cannot be read: {error.strerror}")

    def _damaged(self, name: str, why: str) -> RecordError:
        return self._broken(f"{name} is damaged: {why}")

    def _broken(self, what: str) -> RecordError:
        return RecordError(
            f"{self._who}: the folder {self._folder} must hold a whole run, but {what}; write it "
            f"again with npusim run -o"
        )


CHANGED = "it is not what was written"
MAX_VERSION = 1000
"""Anything above is damage."""


def _no_constant(name: str) -> float:
    raise ValueError(f"JSON has no {name}")


def _first(error: ValidationError | RecursionError) -> str:
    """The first problem that pydantic found, in a line."""
    if isinstance(error, RecursionError):
        return "it is too deep"
    problem = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, problem["loc"]))
    text = " ".join(f"{place}: {problem['msg']}".split())[:200]
    return "".join(letter if letter.isprintable() else "?" for letter in text)


# ---- a trace ----


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
    """Raise DamageError unless every core of *rows* is one of *device*, and there once."""
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
    """Raise DamageError unless `run.json` says what *trace* says."""
    counters = {
        str(core): {pipe: asdict(counter) for pipe, counter in pipes.items()}
        for core, pipes in trace.counters().items()
    }
    if trace.cycles != facts.cycles or counters != facts.counters:
        raise DamageError(f"its cycles and counters must be those of {RECORD}")
    if not facts.launches:
        raise DamageError(f"{RECORD} must tell of its launch")
    *earlier, own = facts.launches
    took_us = own.launch_us + trace.cycles / trace.clock_hz * 1e6
    took_us += sum(launch.time_us or 0.0 for launch in earlier)
    if facts.time_us is None or not math.isclose(took_us, facts.time_us):
        raise DamageError(f"its time must be that of {RECORD}")
