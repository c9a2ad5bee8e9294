"""The schema of `run.json`, and the checksums that detect damage to a run on disk."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue

from npusim.accuracy.kernels import Span
from npusim.data.files import opened
from npusim.devices.schema import ICache, Pipe
from npusim.trace.programs import Count, Name
from npusim.trace.trial import Known

__all__ = ["CHECKSUM", "Facts", "digest", "file_digest", "own_digest"]

CHECKSUM = "sha256"
"""Key of `run.json`: file name -> its :func:`digest`; its own digest excludes this key."""

Us = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _relative(text: str) -> str:
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or path.as_posix() != text:
        raise ValueError("must be a path below the folder")
    return text


class Part(BaseModel):
    """A table of `run.json`; other keys are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)


class Tensor(Part):
    """A tensor without its values."""

    shape: list[Count]
    dtype: Name
    layout: Name
    transposed: bool = False


class LaunchRow(Part):
    """A kernel that the call launched, with the fields of :class:`Launch`."""

    model_config = ConfigDict(extra="forbid")

    op: Name
    block_dim: Count
    time_us: Us | None
    launch_us: Us
    cycles: Count | None
    gm_bytes: Count
    l2_bytes: Count


class TrialRow(Part):
    """The run on a slightly faster chip, with the fields of :class:`Trial`."""

    model_config = ConfigDict(extra="forbid")

    causes: Annotated[list[Known], Field(min_length=1, max_length=2)]
    removed: Annotated[float, Field(gt=0, le=1)]
    settings: dict[Name, float]
    time_us: Us


class KnownRow(Part):
    """A measured kernel, with the fields of :class:`Known`."""

    model_config = ConfigDict(extra="forbid")

    id: Name
    sizes: list[Count]
    measured_us: Us
    simulated_us: Us
    error: float


class AccuracyRow(Part):
    """The expected error of the time, with the fields of :class:`Accuracy`."""

    model_config = ConfigDict(extra="forbid")

    kind: Name | None
    series: Name
    rows: Count
    span: Span | None
    median: Annotated[float, Field(ge=0)] | None
    p90: Annotated[float, Field(ge=0)] | None
    bias: float | None
    nearest: KnownRow | None


class Facts(Part):
    """The contents of `run.json`: :meth:`Run.to_json`, the command line, and the list of files."""

    version: int
    op: Name
    device: Name
    arguments: dict[
        Name, Tensor | str | bool | int | float | list[JsonValue] | dict[str, JsonValue] | None
    ]
    l2: str | list[str]
    icache: ICache
    output: Tensor | list[Tensor]
    template: str | None
    reason: str | None
    plan: dict[str, JsonValue] | None
    engine: Name | None
    time_us: Us | None
    launch_us: Us
    cycles: Count | None
    clock_hz: Annotated[int, Field(gt=0)]
    accuracy: AccuracyRow | None
    launches: list[LaunchRow]
    """The launch of the trace comes last; empty if none ran."""
    trials: list[TrialRow] = Field(default_factory=list)
    """Trials of the causes that bound it; empty if no kernel was timed."""
    gm_bytes: Count
    gm_written_bytes: Count
    l2_bytes: Count
    l2_hit_bytes: Count
    counters: dict[Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,8})$")],
                   dict[Pipe, dict[Name, Count]]]  # fmt: skip
    """Core -> pipe -> counters."""
    typed: dict[str, list[str]] = Field(default_factory=dict)
    files: list[Annotated[str, AfterValidator(_relative)]]
    """All files written, relative to the folder."""
    sha256: dict[str, str]


def digest(content: bytes) -> str:
    """SHA-256 of the *content* of a file, as hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def file_digest(path: Path) -> str:
    """The digest of the file at *path*; raises OSError."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def own_digest(facts: dict[str, object]) -> str:
    """The digest of *facts*, independent of key order and formatting."""
    bare = {key: value for key, value in facts.items() if key != CHECKSUM}
    return digest(json.dumps(bare, sort_keys=True, separators=(",", ":")).encode())
