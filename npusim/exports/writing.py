"""Write traces as a stream: one event after the other, without storing them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from npusim.data.json import Json

__all__ = ["Clock", "Scale", "TraceFile", "quoted"]

Scale = Literal["us", "cycles"]
"""The meaning of a microsecond of a trace: a microsecond, or a thousand cycles of the core."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Converts cycles to the whole nanoseconds of a trace.

    Tools store nanoseconds: starts and ends are rounded separately, so that spans without a gap
    between them have none in the trace either.
    """

    hz: int
    scale: Scale = "us"

    def ns(self, cycles: int) -> int:
        return cycles if self.scale == "cycles" else round(cycles * 1e9 / self.hz)

    def all_ns(self, cycles: NDArray[np.int64]) -> NDArray[np.int64]:
        """The same for an array, `(n,)`."""
        if self.scale == "cycles":
            return cycles
        return np.rint(cycles * 1e9 / self.hz).astype(np.int64)


def stamp(ns: int) -> str:
    """*ns* as the microseconds of a trace, exact to the last digit."""
    return f"{ns // 1000}.{ns % 1000:03d}"


@lru_cache(maxsize=4096)
def quoted(text: str) -> str:
    """*text* as JSON."""
    return json.dumps(text, ensure_ascii=False)


class TraceFile:
    """A file of trace events, valid JSON once it is closed.

    The keys of *head* come before the events, where MindStudio Insight looks for them
    (Ascend/msinsight, JsonFileProcess). Every event has a `ph`, by which Insight splits large
    files.
    """

    def __init__(self, path: Path, head: Json) -> None:
        # The file is closed by __exit__: events come one by one, from the body of a `with`.
        self._file = path.open("w", encoding="utf-8", newline="\n")
        self._file.write(json.dumps(head, separators=(",", ":"))[:-1] + ',"traceEvents":[')
        self._before = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.write("]}\n")
        self._file.close()

    def raw(self, event: str) -> None:
        """One event, as the inside of a JSON object."""
        self._file.write(f"{self._before}{{{event}}}")
        self._before = ",\n"

    def name(self, what: str, pid: str | int, tid: str | int, value: str | int) -> None:
        """Metadata: the name or the position of a process or a lane."""
        key = "sort_index" if what.endswith("sort_index") else "name"
        text = json.dumps({"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {key: value}})
        self.raw(text[1:-1])

    def slice(self, name: str, start: int, end: int, where: str, more: str) -> None:
        """A span from *start* to *end* ns, *where* and *more* as JSON."""
        self.raw(
            f'"name":{name},"ph":"X","ts":{stamp(start)},"dur":{stamp(end - start)},{where},{more}'
        )

    def point(self, name: str, phase: str, at: int, where: str, more: str) -> None:
        """A begin, an end or one end of an arrow, at *at* ns."""
        self.raw(f'"name":{name},"ph":"{phase}","ts":{stamp(at)},{where},{more}')

    def counter(self, pid: str | int, name: str, at: int, key: str, value: float) -> None:
        """*name* has *value* from *at* ns on."""
        args = json.dumps({key: round(value, 3)})
        self.raw(
            f'"pid":{json.dumps(pid)},"tid":0,"name":{quoted(name)},"ph":"C","ts":{stamp(at)},'
            f'"args":{args}'
        )
