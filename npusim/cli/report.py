"""`npusim report`: a run, or two side by side, as a page or as pictures."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated

import typer

from npusim.cli import folder
from npusim.cli.folder import FolderError
from npusim.cli.screen import show
from npusim.trace import record
from npusim.trace.record import Record, RecordError

__all__ = ["write_report"]


class Format(StrEnum):
    """What to write."""

    HTML = "html"
    PNG = "png"
    SVG = "svg"
    PDF = "pdf"


Run = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="What `npusim run -o` has written.")]
Other = Annotated[
    Path | None, typer.Argument(metavar="RUN_DIR2", help="Another run to compare it with.")
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="PATH",
        help="The page or the PDF; for png and svg the folder. Default: report.html and so on.",
    ),
]
FormatOption = Annotated[
    Format, typer.Option("--format", "-f", help="A page, or its pictures alone.")
]
Force = Annotated[bool, typer.Option("--force", help="Let -o replace earlier pictures.")]


def write_report(
    run: Run,
    other: Other = None,
    output: Output = None,
    kind: FormatOption = Format.HTML,
    force: Force = False,
) -> None:
    """Write a report: pictures, an interactive timeline, tables, the numbers of the chip.

    For example: npusim report quantize_run -o report.html
    """
    folders = [run] if other is None else [run, other]
    target = output or Path(f"report.{kind}" if kind in (Format.HTML, Format.PDF) else "pictures")
    if kind in (Format.PNG, Format.SVG):
        folder.check(target, force, "report", f"timeline{_letter(len(folders), 0)}.{kind}")
    runs = [_timed(path) for path in folders]
    if kind == Format.HTML:
        _whole(target, lambda path: _write_page(runs, path))
        written = str(target)
    elif kind == Format.PDF:
        _whole(target, lambda path: _write_pages(runs, path))
        written = str(target)
    else:
        names = folder.write_with(lambda new: _write_pictures(runs, new, kind), target, "report")
        written = f"{', '.join(names)} to {target}"
    show(f"wrote {written}")


def _timed(path: Path) -> Record:
    found = record.read(path)
    if found.trace is None:
        raise RecordError(
            f"report: the run in {path} must have been timed and have had work to do, but it has "
            f"no trace; run it with --timing on tensors that are not empty"
        )
    return found


def _letter(count: int, number: int) -> str:
    """The suffix of a picture's name when there are two runs: a or b."""
    return f"_{'ab'[number]}" if count > 1 else ""


def _whole(target: Path, fill: Callable[[Path], None]) -> None:
    """Have *fill* write a file that takes the place of *target* once it is whole."""
    if target.is_dir():
        raise FolderError(f"report: {target} must be a file, not a folder; name a file in it")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(
            dir=target.parent, prefix=f".{target.name}-", delete=False
        ) as beside:
            new = Path(beside.name)
        try:
            fill(new)
            new.chmod(0o666 & ~_umask())
            new.replace(target)
        finally:
            new.unlink(missing_ok=True)
    except OSError as error:
        raise FolderError(
            f"report: {target} must be a file that can be written, but: {error.strerror}; "
            f"name another"
        ) from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _write_page(runs: list[Record], path: Path) -> None:
    # Loading matplotlib takes longer than reading a run; only pictures need it.
    from npusim.reports.html import report

    path.write_text(report(runs), encoding="utf-8")


def _write_pages(runs: list[Record], path: Path) -> None:
    from matplotlib.backends.backend_pdf import PdfPages

    from npusim.reports.gallery import figures

    with PdfPages(path, metadata={"CreationDate": None}) as pages:
        for run in runs:
            for _, figure in figures(run):
                pages.savefig(figure)


def _write_pictures(runs: list[Record], new: Path, kind: Format) -> list[str]:
    from npusim.reports.gallery import figures

    names = []
    for number, run in enumerate(runs):
        for picture, figure in figures(run):
            names.append(f"{picture.name}{_letter(len(runs), number)}.{kind}")
            figure.savefig(new / names[-1], dpi=120)
    return names
