"""Traces and tables that `npusim run` writes next to its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from npusim.cli.call import UsageError

if TYPE_CHECKING:
    from npusim.chip import Progress
    from npusim.exports import Format, Level, Scale
    from npusim.run.result import Result

__all__ = ["Writer", "formats"]


def formats(
    words: str | None, scale: Scale, level: Level | None, has_folder: bool, is_timed: bool
) -> list[Format]:
    """The formats that *words* name, each once; raises UsageError for what makes no sense."""
    asked = [] if words is None else [word.strip() for word in words.split(",")]
    known = _known() if asked else ()
    unknown = [word for word in asked if word not in known]
    if unknown:
        raise UsageError(
            f"run: --export must be out of {', '.join(known)}, not {unknown[0]!r}; "
            f"separate several by commas"
        )
    if asked and not has_folder:
        raise UsageError("run: --export must have a folder to go to; add -o DIR")
    if asked and not is_timed:
        raise UsageError("run: --export must have times to write; leave --no-timing out")
    if scale != "us" and "perfetto" not in asked:
        raise UsageError(
            f"run: --trace-time {scale} must come with a trace for Perfetto; add --export perfetto"
        )
    if level is not None and not asked:
        raise UsageError(
            f"run: --level {level} must come with timelines of other tools; add --export perfetto"
        )
    return [each for each in known if each in asked]


def _known() -> tuple[Format, ...]:
    from npusim.exports import Format  # loads what writes them, which few runs need

    return get_args(Format)


@dataclass(slots=True)
class Writer:
    """Writes what was asked for of a run."""

    run: Result
    chosen: list[Format]
    scale: Scale
    level: Level | None
    progress: Progress | None
    is_joined: bool = False
    """Whether a summary was written, once it is."""
    left_out: list[str] = field(default_factory=list)
    """What was too large, once it is written."""

    def write(self, folder: Path) -> list[str]:
        """Write into *folder*; returns the names of what is new there."""
        if not self.chosen:
            return []
        from npusim.exports import export

        exported = export(
            *(self.run, folder, self.chosen),
            scale=self.scale,
            level=self.level,
            progress=self.progress,
        )
        self.left_out, self.is_joined = exported.left_out, exported.level == "summary"
        return exported.names
