"""`npusim report`: a run, or several side by side, as a page or as pictures."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from os.path import lexists
from pathlib import Path
from typing import TYPE_CHECKING

from npusim.check.rules import Place, RuleError, check
from npusim.chip import Progress
from npusim.cli.call import UsageError
from npusim.cli.commands.formats import PageFormat
from npusim.cli.models import are_models, write_page
from npusim.cli.progress import shown
from npusim.cli.screen import open_page, show
from npusim.data import folders
from npusim.data.files import check_place, write
from npusim.reports.run_labels import heads, letters
from npusim.reports.style import INK, TEXT_POINTS, plain
from npusim.trace import record
from npusim.trace.record import Record, RecordError
from npusim.trace.summary import Level

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from npusim.reports.picture import Picture

__all__ = ["write_report"]


def write_report(
    paths: Sequence[Path],
    output: Path | None,
    kind: PageFormat,
    force: bool,
    level: Level | None,
    advice: bool | None,
    is_opened: bool,
) -> None:
    """Write a report of the run in each of *paths*; a page *is_opened* then."""
    if kind != PageFormat.HTML:
        _check_no_page(kind, level, bool(advice), is_opened)
    if are_models(paths, "report"):
        if kind != PageFormat.HTML or level is not None or advice:
            words = f"--format {kind}" if kind != PageFormat.HTML else f"--level {level}"
            words = "--advice" if advice else words
            raise UsageError(
                f"report: the report of a model must be a page that shows all, not {words}; "
                f"leave that out"
            )
        page = output or Path("report.html")
        write_page(paths, page, force)
        if is_opened:
            open_page(page)
        return
    target = output or Path(
        f"report.{kind}" if kind in (PageFormat.HTML, PageFormat.PDF) else "pictures"
    )
    earlier = folders.Kind("report", _mark(target, kind), _pictures)
    if kind in (PageFormat.PNG, PageFormat.SVG):
        folders.check(target, force, earlier)
    else:
        check_place(target, force, "report")
    with shown() as progress:
        runs = []
        for number, path in enumerate(paths):
            progress("reading", number / len(paths))
            runs.append(_timed(path))
        if kind == PageFormat.HTML:
            fill = partial(_write_page, runs, level, advice, progress)
            write(target, fill, "report", force=force)
            written = str(target)
        elif kind == PageFormat.PDF:
            write(target, partial(_write_pages, runs, progress), "report", force=force)
            written = str(target)
        else:
            names = folders.write(
                partial(_write_pictures, runs, kind, progress), target, earlier, force=force
            )
            written = f"{', '.join(names)} to {target}"
    show(f"wrote {written}")
    if is_opened:
        open_page(target)


def _check_no_page(kind: PageFormat, level: Level | None, advice: bool, is_opened: bool) -> None:
    """Raise UsageError for what only a page can have."""
    only_pages = {
        "--open": (is_opened, "which it opens"),
        f"--level {level}": (level is not None, "whose timelines it is for"),
        "--advice": (advice, "which it is for"),
    }
    for option, (is_asked, why) in only_pages.items():
        if is_asked:
            raise UsageError(
                f"report: {option} must come with a page, {why}; leave --format {kind} out"
            )


def _mark(target: Path, kind: PageFormat) -> str:
    """The picture by which an earlier report in *target* is known, of one run or of several."""
    names = (f"timeline{ending}" for ending in _endings(2))
    return next((name for name in names if lexists(target / name)), f"timeline.{kind}")


def _pictures(where: Path) -> frozenset[str]:
    """What an earlier report may have written into a folder."""
    from npusim.reports.gallery import PICTURES

    # A run leaves a picture at least, so there were no more runs than files.
    endings = _endings(len(os.listdir(where)))
    return frozenset(f"{picture.name}{ending}" for picture in PICTURES for ending in endings)


def _endings(runs: int) -> list[str]:
    """How names of pictures end, of one run and of so many."""
    suffixes = ["", *(_suffix(runs, number) for number in range(runs) if runs > 1)]
    return [f"{suffix}.{kind}" for suffix in suffixes for kind in (PageFormat.PNG, PageFormat.SVG)]


def _timed(path: Path) -> Record:
    found = record.read(path)
    if found.trace is None:
        raise RecordError(
            f"report: the run in {path} must have been timed and have had work to do, but it has "
            f"no trace; run it with --timing on tensors that are not empty"
        )
    for program, kind in dict.fromkeys((lane.program, lane.kind) for lane in found.trace.lanes):
        try:
            check(program, Place(found.device, kind))
        except RuleError as error:
            raise RecordError(
                f"report: the folder {path} must hold a whole run, but trace.npz is damaged: "
                f"{error}; write it again with npusim run -o"
            ) from None
    return found


def _suffix(count: int, number: int) -> str:
    """What ends a picture's name where there are several runs: _a, _b and so on."""
    return f"_{letters(count)[number].lower()}" if count > 1 else ""


def _write_page(
    runs: list[Record], level: Level | None, advice: bool | None, progress: Progress, path: Path
) -> None:
    # Loading matplotlib takes longer than reading a run; only pictures need it.
    from npusim.reports.html import report
    from npusim.run.page import advice_for

    pieces = [] if advice is False else [advice_for(run, advice, progress) for run in runs]
    path.write_text(report(runs, level, progress, pieces), encoding="utf-8")


def _others(run: Record, runs: list[Record]) -> list[Record]:
    """What *run* is compared with."""
    return [other for other in runs if other is not run]


def _write_pages(runs: list[Record], progress: Progress, path: Path) -> None:
    from matplotlib.backends.backend_pdf import PdfPages

    with PdfPages(path, metadata={"CreationDate": None}) as pages:
        for _, _, figure in _figures(runs, progress):
            pages.savefig(figure)


def _write_pictures(
    runs: list[Record], kind: PageFormat, progress: Progress, new: Path
) -> list[str]:
    names = []
    for number, picture, figure in _figures(runs, progress):
        names.append(f"{picture.name}{_suffix(len(runs), number)}.{kind}")
        figure.savefig(new / names[-1], dpi=120)
    return names


def _figures(runs: list[Record], progress: Progress) -> Iterator[tuple[int, Picture, Figure]]:
    """Number of the run, picture and figure, one after the other; of several, with their heads."""
    from npusim.reports.gallery import figures

    for number, (run, head) in enumerate(zip(runs, heads(runs), strict=True)):
        progress("pictures", number / len(runs))
        for picture, figure in figures(run, _others(run, runs)):
            if head.letter:
                figure.suptitle(plain(str(head)), x=0.01, ha="left", size=TEXT_POINTS, color=INK)
            yield number, picture, figure
