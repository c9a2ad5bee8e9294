"""The page of runs in memory, and the advice for runs in folders."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from npusim import ops
from npusim.data.files import FileError, check_place, taken, write
from npusim.data.tensor import TensorSpec
from npusim.reports.subject import trace_of
from npusim.run.advice import Advice, advise
from npusim.run.call import play
from npusim.run.options import Options
from npusim.run.result import REFUSALS, Result, trials_json
from npusim.trace import record
from npusim.trace.record import Record

if TYPE_CHECKING:
    from npusim.chip import Progress

__all__ = ["MOST_MICRO_OPS", "advice_for", "recorded", "write_page"]

MOST_MICRO_OPS = 200_000
"""By default the page of a longer run has no advice: simulating it ten to thirty times takes about
a minute."""


def write_page(runs: Sequence[Result], path: str | os.PathLike[str], force: bool) -> Path:
    """Write the page of *runs*, as `npusim report` does, with the advice for each."""
    from npusim.reports.html import report  # imports matplotlib

    for run in runs:
        trace_of(run)
    target = Path(path)
    if not force and taken(target) is not None:
        raise FileError(
            f"report: {target} must be a new file, but there is one; name another, or pass "
            f"force=True to replace it"
        )
    check_place(target, force, "report")
    with TemporaryDirectory(prefix="npusim-") as above:
        records = [recorded(run, Path(above, str(number))) for number, run in enumerate(runs)]
        text = report(records, advice=[advise(run) for run in runs])
    write(target, partial(_fill, text), "report", force=force)
    return target


def _fill(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8")


def recorded(run: Result, folder: Path) -> Record:
    """*run* as read back from a folder, so that pages do not depend on its origin."""
    folder.mkdir(parents=True)
    record.write(folder, run.device, run.trace)
    record.seal(folder, run.to_json() | trials_json(run))
    return record.read(folder)


# ---- runs in folders ----


def not_tried(why: str, remedy: str) -> str:
    """Why a page has no advice, and the command that gets it."""
    return f"Advice is not computed here because {why}. Run: {remedy}"


NO_VALUES = not_tried(
    "times of this operator depend on values, which the folder does not hold",
    "npusim run ... --advice",
)
NO_KERNEL = not_tried(
    "it would run the file of your kernel again", "npusim run FILE:KERNEL ... --advice"
)
TOO_LONG = not_tried("the run is long", "npusim report DIR --advice")
OTHER_TIMES = not_tried(
    "another version of npusim wrote the folder, with another time for the call",
    "npusim run ... -o DIR",
)


def advice_for(
    found: Record, asked: bool | None, progress: Progress | None = None
) -> list[Advice] | str:
    """The advice for the run in *found*, or a sentence why there is none.

    The call is run again, from the shapes and types in the folder. A long run is not, unless
    *asked* for.
    """
    is_own = found.accuracy is None or found.accuracy.kind is None  # a custom kernel of any name
    if is_own or found.op not in ops.names():
        return NO_KERNEL
    if asked is None and trace_of(found).micro_ops > MOST_MICRO_OPS:
        return TOO_LONG
    arguments = {name: _argument(value) for name, value in found.facts["arguments"].items()}
    seen = ops.load(found.op).value_dependent_inputs
    if any(isinstance(arguments.get(name), TensorSpec) for name in seen):
        return NO_VALUES
    run = _again(found, arguments)
    if run is None or run.time_us is None or not math.isclose(run.time_us, found.time_us or 0.0):
        return OTHER_TIMES
    return advise(run, progress)


def _again(found: Record, arguments: dict[str, object]) -> Result | None:
    """The run that *found* describes; None if this version of npusim refuses it."""
    l2 = found.facts["l2"]
    state = tuple(l2) if isinstance(l2, list) else l2
    options = Options(values=False, l2=state, icache=found.facts["icache"])
    try:
        return play(found.op, (), arguments, found.device, options)
    except REFUSALS:
        return None


def _argument(value: object) -> Any:
    """The original argument, from its form in `run.json`."""
    if isinstance(value, list):
        return [_argument(part) for part in value]
    if isinstance(value, dict):
        plain = {"shape": tuple(value["shape"]), "dtype": value["dtype"]}
        return TensorSpec(
            **plain, layout=value["layout"], transposed=value.get("transposed", False)
        )
    return value
