"""A run on disk: what a report needs of it, and how it is read back.

Beside the values, a folder holds `run.json` (the numbers of the run), `device.json` (every number
of the chip with its source) and `trace.npz` (programs as JSON, and the times of each lane as start
after start, cycles that hold the pipe, and cycles from there to the result). All are plain data:
reading them runs nothing.
"""

from __future__ import annotations

import json
import linecache
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from npusim.data.dtypes import DType, dtype_named
from npusim.devices.schema import DeviceSpec
from npusim.isa import MICRO_OPS, Global, Local
from npusim.kernel.program import Body, Call, Line, Program
from npusim.trace import LaneTrace, Trace

__all__ = ["RECORD", "VERSION", "Record", "RecordError", "read", "write"]

VERSION = 3
"""Of what a folder holds; 1 had no trace, 2 no groups of cores."""
RECORD = "run.json"
DEVICE = "device.json"
TRACE = "trace.npz"

Times = NDArray[np.int64]

_KNOWN: dict[str, Any] = {kind.__name__: kind for kind in (*MICRO_OPS, Local, Global)}


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
    def time_us(self) -> float | None:
        """As :attr:`Run.time_us`."""
        return self.facts["time_us"]  # type: ignore[no-any-return]

    @property
    def launch_us(self) -> float:
        """As :attr:`Run.launch_us`."""
        return float(self.facts["launch_us"])


def write(folder: Path, device: DeviceSpec, trace: Trace | None) -> list[str]:
    """Write all but `run.json` into *folder*; returns the names of the files."""
    tree = device.model_dump(mode="json")
    (folder / DEVICE).write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")
    if trace is None:
        return [DEVICE]
    text = json.dumps(_programs(trace), separators=(",", ":")).encode()
    arrays = {f"times{number}": _deltas(lane) for number, lane in enumerate(trace.lanes)}
    np.savez_compressed(folder / TRACE, programs=np.frombuffer(text, np.uint8), **arrays)  # type: ignore[arg-type]
    return [DEVICE, TRACE]


def read(folder: Path, who: str = "report") -> Record:
    """Read the run in *folder*; raises RecordError, in the name of *who*, if there is none."""
    again = "write it again with npusim run -o"
    if not (folder / RECORD).is_file():
        raise RecordError(
            f"{who}: the folder {folder} must hold a {RECORD}, but holds none; "
            f"name one that npusim run -o has written"
        )
    name = RECORD
    try:
        facts = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        version = facts.get("version", 1)
        if version != VERSION:
            raise RecordError(
                f"{who}: the run in {folder} must be of version {VERSION}, not {version}; {again}"
            )
        name = DEVICE
        device = DeviceSpec.model_validate_json((folder / DEVICE).read_text(encoding="utf-8"))
        name = TRACE
        trace, code = _read_trace(folder / TRACE, facts)
    except (OSError, BadZipFile, ValidationError, LookupError, TypeError, AttributeError, EOFError):
        raise _broken(who, folder, name, again) from None
    except ValueError as error:
        if isinstance(error, RecordError):
            raise
        raise _broken(who, folder, name, again) from None
    return Record(facts, device, trace, code)


def _broken(who: str, folder: Path, name: str, again: str) -> RecordError:
    return RecordError(
        f"{who}: the folder {folder} must hold a whole run, but {name} is missing or broken; "
        f"{again}"
    )


# ---- programs ----


def _programs(trace: Trace) -> dict[str, Any]:
    """Programs and lanes; bodies that calls share stand there once."""
    bodies: dict[Body, int] = {}
    described: list[Any] = []
    programs: dict[Program, Any] = {}
    lines: dict[Line, str] = {}
    for lane in trace.lanes:
        if lane.program in programs:
            continue
        for call in lane.program.calls:
            body = call.body
            if body not in bodies:
                bodies[body] = len(described)
                described.append([list(map(_to_json, body)), list(map(_short, body.lines))])
                lines |= {_short(line): _text(line) for line in body.lines}
        programs[lane.program] = {
            "name": lane.program.name,
            "calls": [[bodies[call.body], call.shifts] for call in lane.program.calls],
            "claimed_bytes": lane.program.claimed_bytes,
        }
    numbers = {program: number for number, program in enumerate(programs)}
    return {
        "clock_hz": trace.clock_hz,
        "bodies": described,
        "programs": list(programs.values()),
        "code": [[*line, text] for line, text in lines.items()],
        "lanes": [
            {
                "cores": lane.cores,
                "groups": lane.groups,
                "kind": lane.kind,
                "program": numbers[lane.program],
                "gm_bytes": int(lane.gm_bytes),
                "l2_bytes": int(lane.l2_bytes),
            }
            for lane in trace.lanes
        ],
    }


def _short(line: Line) -> Line:
    """*line* with its file as people name it: from the package on, or without folders."""
    file = Path(line[0])
    above = Path(__file__).parents[2]
    name = file.relative_to(above).as_posix() if file.is_relative_to(above) else file.name
    return name, line[1]


def _text(line: Line) -> str:
    return linecache.getline(*line).strip()


def _read_trace(path: Path, facts: dict[str, Any]) -> tuple[Trace | None, dict[Line, str]]:
    if facts["cycles"] is None or not facts["counters"]:
        return None, {}
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        tree = json.loads(arrays["programs"].tobytes())
        times = [_times(arrays[f"times{number}"]) for number in range(len(tree["lanes"]))]
    bodies = [
        Body(tuple(map(_from_json, ops)), tuple((file, line) for file, line in lines))
        for ops, lines in tree["bodies"]
    ]
    programs = [
        Program(
            row["name"],
            tuple(Call(bodies[body], shifts) for body, shifts in row["calls"]),
            row["claimed_bytes"],
        )
        for row in tree["programs"]
    ]
    lanes = tuple(
        LaneTrace(
            tuple(row["cores"]),
            row["kind"],
            programs[row["program"]],
            start,
            free,
            end,
            row["gm_bytes"],
            row["l2_bytes"],
            tuple(row["groups"]),
        )
        for row, (start, free, end) in zip(tree["lanes"], times, strict=True)
    )
    code = {(file, line): text for file, line, text in tree["code"]}
    return Trace(lanes, tree["clock_hz"]), code


def _to_json(value: Any) -> Any:
    """A micro-op, or a part of one, as lists that begin with their type."""
    if isinstance(value, DType):
        return ["DType", value.name]
    if isinstance(value, tuple):
        return ["tuple", *map(_to_json, value)]
    if is_dataclass(value):
        parts = (_to_json(getattr(value, field.name)) for field in fields(value))
        return [type(value).__name__, *parts]
    return value.item() if isinstance(value, np.generic) else value


def _from_json(value: Any) -> Any:
    """The other way round of `_to_json`."""
    if not isinstance(value, list):
        return value
    name, *parts = value
    if name == "DType":
        return dtype_named(parts[0])
    if name == "tuple":
        return tuple(map(_from_json, parts))
    return _KNOWN[name](*map(_from_json, parts))


# ---- times ----


def _deltas(lane: LaneTrace) -> Times:
    """Small numbers `(3, ops)`, which compress well."""
    starts = np.diff(lane.start, prepend=0)
    return np.array([starts, lane.free - lane.start, lane.end - lane.free], np.int64)


def _times(deltas: Times) -> tuple[Times, Times, Times]:
    start = np.cumsum(deltas[0])
    free = start + deltas[1]
    return start, free, free + deltas[2]
