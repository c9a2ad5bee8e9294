"""The pages of the course as notebooks: a cell for each piece of code that answers something.

A page is a session at the prompt; a notebook has the same statements without their prompts, and
what the page shows as the answers of its cells. A figure that the page saves, the notebook shows.
"""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

import nbformat
from nbformat import v4

SAVED = re.compile(r"figure\.savefig\(.*\)\n")
PICTURE = re.compile(r"^!\[[^\]]*\]\(\.\./pictures/course/[^)]+\)\n\n", re.MULTILINE)
CODE = re.compile(r"^```python\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
KERNEL = "vector_add.py"
"""The file that pages run a kernel of; a notebook that does writes it first."""


def offer(_app: Any, docname: str, source: list[str]) -> None:
    """Name the notebook of a page of the course below the page's title."""
    if _is_lesson(docname):
        title, rest = source[0].split("\n", 1)
        name = Path(docname).name
        up = "../" * docname.count("/")
        here = f'<a href="{up}try.html#course={docname.partition("/")[2]}">in this browser</a>'
        source[0] = (
            f'{title}\n\n<a href="{name}.ipynb" download>As a notebook</a>, or {here}\n{rest}'
        )


def write(app: Any, exception: Exception | None) -> None:
    """Write the notebook of each page of the course next to the page."""
    if exception is None:
        for docname in filter(_is_lesson, app.env.found_docs):
            page = Path(app.env.doc2path(docname))
            path = Path(app.outdir, f"{docname}.ipynb")
            path.parent.mkdir(parents=True, exist_ok=True)
            nbformat.write(notebook(page), path)


def _is_lesson(docname: str) -> bool:
    folder, _, name = docname.rpartition("/")
    return folder.endswith("course") and name[:2].isdigit()


def notebook(page: Path) -> Any:
    """The notebook of *page*."""
    text = page.read_text(encoding="utf-8")
    cells = []
    if f'"{KERNEL}:' in text:
        kernel = (page.parent / KERNEL).read_text(encoding="utf-8")
        cells.append(v4.new_code_cell(f"%%writefile {KERNEL}\n{kernel}".rstrip()))
    # Of a text that is split by a pattern with one group, every second piece is what it found.
    for number, piece in enumerate(CODE.split(PICTURE.sub("", text))):
        if number % 2 and piece.startswith(">>>"):
            cells += _code_cells(piece)
        elif number % 2:
            cells.append(v4.new_markdown_cell(f"```python\n{piece}```"))
        elif piece.strip():
            cells.append(v4.new_markdown_cell(piece.strip()))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"  # the same at every build
    return v4.new_notebook(
        cells=cells,
        metadata={
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}
        },
    )


def _code_cells(piece: str) -> list[Any]:
    """The statements of one block of a page, cut behind each that answers."""
    cells, lines = [], ""
    for example in doctest.DocTestParser().get_examples(piece):
        lines += SAVED.sub("figure\n", example.source)
        if example.want or lines.endswith("figure\n"):
            cells.append(_cell(lines, example.want))
            lines = ""
    return cells + ([_cell(lines, "")] if lines else [])


def _cell(lines: str, answer: str) -> Any:
    outputs = [v4.new_output("stream", text=answer)] if answer else []
    return v4.new_code_cell(lines.rstrip(), outputs=outputs)
