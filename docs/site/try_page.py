"""The page that runs npusim in a browser: its lists, and the files that it loads."""

from __future__ import annotations

import os
import subprocess
import sys
from html import escape
from pathlib import Path
from typing import Any

from npusim import devices, ops

PAGE = "try"
ROOT = Path(__file__).parent.parent.parent
WHEEL = "npusim-{version}-py3-none-any.whl"


def fill(_app: Any, docname: str, source: list[str]) -> None:
    """Put the names of operators, chips and pages of the course into the page."""
    if docname == PAGE:
        for place, text in LISTS.items():
            source[0] = source[0].replace(place, text)


def write(app: Any, exception: Exception | None) -> None:
    """Build the wheel of every platform, and the page of layouts, next to the page's script."""
    if exception is not None:
        return
    folder = Path(app.outdir, "_static")
    layout = ["npusim", "layout", "--html", "--force", "-o", str(folder / "layout.html")]
    subprocess.run([sys.executable, "-m", *layout], check=True)
    build_wheel(folder)


def build_wheel(folder: Path) -> None:
    """Put the wheel that has no compiled engine, and so is one for all platforms, into *folder*."""
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)],
        env=os.environ | {"NPUSIM_PURE": "1"},
        check=True,
    )


def wheel_name() -> str:
    from importlib.metadata import version

    return WHEEL.format(version=version("npusim"))


def chips() -> dict[str, str]:
    """A name that the command line takes -> what it is, A2 first."""
    series = {devices.load(name).series: "" for name in reversed(devices.names())}
    return dict(sorted(series.items(), key=lambda each: each[0] != "Atlas A2"))


def lessons() -> dict[str, str]:
    """The file of a page of the course, without its ending -> its title."""
    pages = sorted((ROOT / "docs" / "course").glob("[01]*.md"))
    return {page.stem: page.read_text(encoding="utf-8").split("\n")[0][2:] for page in pages}


def options(values: dict[str, str]) -> str:
    return "".join(
        f'<option value="{escape(value)}">{escape(text or value)}</option>'
        for value, text in values.items()
    )


LISTS = {
    "@OPERATORS@": options(dict.fromkeys(ops.names(), "")),
    "@CHIPS@": options(chips()),
    "@LESSONS@": options(lessons()),
    "@WHEEL@": wheel_name(),
}
"""Read before autodoc imports anything: it has pydantic see names that are for type checkers."""
