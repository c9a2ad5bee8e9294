"""Sweeps: one operator over shapes, templates, chips and settings, in any executor.

    found = npusim.sweep(
        "npu_quantize",
        lambda m: {"input": TensorSpec((m, 4096), "float16"), ...},
        {"m": [1, 2, 4, 8]},
        device=["A2", "310P"],
    )
    found.to_csv(), found.crossovers(), found.draw()

A refused cell is a row with its message. Rows are in the order of settings, chips, templates and
variables, of which the last changes fastest, regardless of the order in which they are computed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

from npusim.data.errors import shown
from npusim.devices.schema import DeviceSpec
from npusim.run.options import Options
from npusim.sweeps import notebook
from npusim.sweeps.cells import Arguments, Cell, Chip, Settings, cells_of
from npusim.sweeps.errors import SweepError
from npusim.sweeps.journal import journal_at
from npusim.sweeps.playing import Outcome, played
from npusim.sweeps.table import LABELS, OUTCOME, Row, Sweep
from npusim.timing.engines import engine_named

if TYPE_CHECKING:
    from npusim.chip import EngineChoice, L2State
    from npusim.devices.schema import ICache

__all__ = ["CellProgress", "Outcome", "Row", "Sweep", "SweepError", "sweep"]

CellProgress = Callable[[int, int], None]
"""Called with the number of finished calls and the total: equal cells are one call."""


def sweep(
    op: str,
    call: Arguments | Callable[..., Arguments],
    over: Mapping[str, Sequence[object]] | None = None,
    *,
    device: Chip | Sequence[Chip],
    template: str | Sequence[str] | None = None,
    settings: Settings | None = None,
    l2: L2State = "cold",
    icache: ICache | None = None,
    engine: EngineChoice = "auto",
    cache: str | os.PathLike[str] | None = None,
    executor: Executor | None = None,
    jobs: int | None = None,
    resume: str | os.PathLike[str] | None = None,
    progress: CellProgress | None = None,
) -> Sweep:
    """Time operator *op*, or the kernel FILE.py:FUNCTION, once for each cell.

    *call* holds the arguments, or is a function that returns them for one value of each variable in
    *over*. *device* is one chip or several, *template* the name of a template, several, or "all":
    the vendor's choice and each other template that accepts the call. *settings* change numbers of
    the chips like :func:`npusim.devices.changed`, each to one value or to several in turn. *l2*,
    *icache* and *engine* are those of :func:`npusim.run`, and so is *cache*, a folder that stores
    rows beyond the end of the process.

    The calls run on *executor*, any executor of concurrent.futures, or in *jobs* processes, by
    default one per processor; 1 runs all in this process. None of this changes a row. With several
    processes a script must have its own calls below `if __name__ == "__main__"`. *resume* names a
    file for finished calls, from which the same sweep continues; its owner removes it. *progress*
    is called with the number of finished calls and the total; by default a notebook shows them.

    Raises SweepError for an invalid sweep, for the file of another sweep, and for lost workers; the
    errors of :func:`npusim.run` if no cell can make the call, and for an unknown operator or chip.
    """
    chips = [device] if isinstance(device, str | os.PathLike | DeviceSpec) else list(device)
    over, settings = dict(over or {}), dict(settings or {})
    _check(over, settings, jobs)
    if engine == "auto":
        engine_named()  # warns here, where the user sees it; workers are silent
    options = Options(values=False, l2=l2, icache=icache, engine=engine, cache=cache)
    cells = cells_of(op, call, over, chips, template, settings, options)
    rows = _rows(cells, executor, jobs or os.cpu_count() or 1, resume, progress or notebook.shown())
    return Sweep(op, tuple(settings), tuple(over), rows)


def _rows(
    cells: Sequence[Cell],
    executor: Executor | None,
    jobs: int,
    resume: str | os.PathLike[str] | None,
    progress: CellProgress | None,
) -> tuple[Row, ...]:
    """Each cell with its outcome."""
    keys = [None if cell.call is None else cell.call.key() for cell in cells]
    done = _done(cells, keys, executor, jobs, resume, progress)
    return tuple(
        Row(cell, Outcome(error=cell.refusal) if key is None else done[key])
        for key, cell in zip(keys, cells, strict=True)
    )


def _done(
    cells: Sequence[Cell],
    keys: Sequence[str | None],
    executor: Executor | None,
    jobs: int,
    resume: str | os.PathLike[str] | None,
    progress: CellProgress | None,
) -> dict[str, Outcome]:
    """The outcome of each call by its key; equal calls are simulated once."""
    every = {key: cell.call for key, cell in zip(keys, cells, strict=True) if key and cell.call}
    with ExitStack() as stack:
        kept = None
        if resume is not None:
            path = Path(resume)
            kept = stack.enter_context(journal_at(path, [key or "" for key in keys]))
        done = {} if kept is None else dict(kept.done)
        work = [(key, call) for key, call in every.items() if key not in done]
        if progress is not None:
            progress(len(every) - len(work), len(every))
        answers = stack.enter_context(closing(played(work, executor, jobs)))
        for number, (key, outcome) in enumerate(answers, 1):
            done[key] = outcome
            if kept is not None:
                kept.add(key, outcome)
            if progress is not None:
                progress(len(every) - len(work) + number, len(every))
    return done


def _check(over: Mapping[str, object], settings: Mapping[str, object], jobs: int | None) -> None:
    taken = (*LABELS, *settings, *OUTCOME)
    for name in over:
        if not str(name).isidentifier() or name in taken:
            raise SweepError(
                f"sweep: a variable must have its own name, such as m, not {shown(name)}; rename it"
            )
    if jobs is not None and (isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1):
        raise SweepError(f"sweep: jobs must be 1 or more, not {shown(jobs)}; leave it out")
