"""npusim for a page of the site: what it runs, and what comes back, all of it text.

Pyodide loads this into its Python; in any other Python it works as well.
"""

from __future__ import annotations

import ast
import base64
import io
import traceback
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib

matplotlib.use("agg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from npusim.cli import app

__all__ = ["cell", "command"]


def command(words: list[str]) -> dict[str, Any]:
    """What `npusim run`, followed by *words*, prints, and the page of the run.

    The page is empty where the command refuses.
    """
    with TemporaryDirectory() as folder, chdir(folder):
        code, printed = _said(["run", *words, "-o", "run"])
        if code == 0:
            code, also = _said(["report", "run", "-o", "report.html"])
            printed += "" if code == 0 else also
        page = Path("report.html")
        return {
            "printed": printed,
            "page": page.read_text(encoding="utf-8") if page.exists() else "",
        }


def _said(words: list[str]) -> tuple[int, str]:
    """The exit code of the command `npusim`, and what it prints."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        try:
            app(words)
        except SystemExit as end:
            return int(end.code or 0), printed.getvalue()
    return 0, printed.getvalue()


_names: dict[str, Any] = {"__name__": "__main__"}
"""What the cells have defined so far."""


def cell(source: str) -> dict[str, Any]:
    """What a cell of a notebook prints; what its last line is, as text, HTML or a picture."""
    printed = io.StringIO()
    shown: dict[str, Any] = {}
    with redirect_stdout(printed), redirect_stderr(printed):
        try:
            shown = _shown(_run(source))
        except Exception:
            traceback.print_exc(limit=-1)
    return {"printed": printed.getvalue(), "text": "", "html": "", "picture": ""} | shown


def _run(source: str) -> Any:
    """Run the statements of *source*; the value of the last one, None unless it is an expression.

    A first line `%%writefile NAME` writes the rest to a file, and other lines of Jupyter's own are
    left out.
    """
    first, _, rest = source.partition("\n")
    if first.startswith("%%writefile "):
        Path(first.removeprefix("%%writefile ").strip()).write_text(rest, encoding="utf-8")
        return None
    lines = ["" if line.startswith("%") else line for line in source.splitlines()]
    tree = ast.parse("\n".join(lines))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), _names)
    return (
        None
        if last is None
        else eval(compile(ast.Expression(last.value), "<cell>", "eval"), _names)
    )


def _shown(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    figure = value.figure if isinstance(value, Axes) else value
    if isinstance(figure, Figure):
        drawn = io.BytesIO()
        figure.savefig(drawn, format="png", dpi=120, bbox_inches="tight")
        return {"picture": base64.b64encode(drawn.getvalue()).decode("ascii")}
    if hasattr(value, "_repr_html_"):
        return {"html": value._repr_html_()}
    return {"text": repr(value)}
