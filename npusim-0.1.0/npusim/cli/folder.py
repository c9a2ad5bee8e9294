"""The folder that `npusim run -o` leaves: numbers and pictures of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from npusim.data import folders
from npusim.data.folders import FolderError, Kind
from npusim.data.tensor import Tensor
from npusim.run.result import Result, trials_json
from npusim.trace import record
from npusim.trace.record import RECORD

__all__ = ["RUN", "write"]

RUN = Kind("run", RECORD, record.made)


def write(
    run: Result,
    folder: Path,
    typed: dict[str, list[str]],
    more: Callable[[Path], list[str]] = lambda _: [],
    *,
    force: bool = False,
) -> list[str]:
    """Write *run* into *folder*, in place of an earlier run if *force*; returns the names of files.

    *typed* are the words of the command line that made its arguments, written next to them.
    *more* may add files and returns their names.
    """

    def fill(new: Path) -> list[str]:
        names = _fill(run, new) + more(new)
        record.seal(new, run.to_json() | trials_json(run) | {"typed": typed})
        return names

    return folders.write(fill, folder, RUN, force=force)


def _fill(run: Result, folder: Path) -> list[str]:
    names = []
    for name, output in run.outputs.items():
        values = output.storage if isinstance(output, Tensor) else output
        if isinstance(values, np.ndarray):
            _check_name(name)
            names.append(f"{name}.npy")
            np.save(folder / f"{name}.npy", values, allow_pickle=False)
    names.append(RECORD)
    names += record.write(folder, run.device, run.trace)
    if run.trace is not None:
        names += _draw(run, folder)
    return names


def _check_name(output: str) -> None:
    """Raise FolderError unless *output*, a name from a custom kernel, is that of a file."""
    if Path(output).name != output or not output.isprintable():
        raise FolderError(
            f"run: an output that is written must have a name for a file, not {output!r}; "
            f"rename it, or leave -o out"
        )


def _draw(run: Result, folder: Path) -> list[str]:
    # Loading matplotlib takes longer than a small run; only pictures need it.
    from matplotlib.figure import Figure

    from npusim.reports.pipes import pipes
    from npusim.reports.timeline import timeline

    names = []
    for name, picture in (("timeline.png", timeline), ("pipes.png", pipes)):
        figure = Figure((10, 5), layout="constrained")
        picture(run, ax=figure.subplots())
        figure.savefig(folder / name, dpi=100)
        names.append(name)
    return names
