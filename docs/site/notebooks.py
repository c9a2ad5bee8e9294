"""The pages of the course as notebooks: a cell for each piece of code that answers something.

A page is a session at the prompt; a notebook has the same statements without their prompts, and
what the page shows as the answers of its cells. A figure that the page saves, the notebook shows.
What a page folds away begins with its title in bold: a cell cannot be folded with text around it.
"""

from __future__ import annotations

import doctest
import re
from base64 import b64encode
from pathlib import Path
from typing import Any

import nbformat
from nbformat import v4

SAVED = re.compile(r"figure\.savefig\(\"\.\./pictures/course/(.+?)\".*\)\n")
PICTURE = re.compile(r"^!\[[^\]]*\]\([./]*/pictures/course/[^)]+\)\n\n", re.MULTILINE)
FOLDED = re.compile(r"<details>\n<summary>(.*?)</summary>\n")
PICTURES = Path(__file__).parents[1] / "pictures" / "course"
INLINE = "%matplotlib inline"
"""What the first cell says, so that a figure at the end of a cell is shown."""
CODE = re.compile(r"^```python\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
KERNEL = "vector_add.py"
"""The file that pages run a kernel of; a notebook that does writes it first."""


LESSONS = "\n```{toctree}\n:hidden:\n:glob:\n\n[01]*\n```\n"
"""What lists the lessons below the first page of the course in the navigation."""


def offer(_app: Any, docname: str, source: list[str]) -> None:
    """Name the notebook of a page of the course below the page's title."""
    if docname in ("course/README", "course/zh/README"):
        source[0] += LESSONS
    elif _is_lesson(docname):
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
    return folder in ("course", "course/zh") and name[:2].isdigit()


def notebook(page: Path) -> Any:
    """The notebook of *page*."""
    text = FOLDED.sub(r"**\1**\n", page.read_text(encoding="utf-8")).replace("</details>\n", "")
    cells = [v4.new_code_cell(INLINE)]
    if f'"{KERNEL}:' in text:
        kernel = (PICTURES.parents[1] / "course" / KERNEL).read_text(encoding="utf-8")
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
        saved = SAVED.fullmatch(example.source)
        lines += "figure\n" if saved else example.source
        if saved:
            cells.append(_cell(lines, _picture(PICTURES / saved[1])))
        elif example.want:
            cells.append(_cell(lines, v4.new_output("stream", text=example.want)))
        else:
            continue
        lines = ""
    return cells + ([_cell(lines)] if lines else [])


def _cell(lines: str, *outputs: Any) -> Any:
    return v4.new_code_cell(lines.rstrip(), outputs=list(outputs))


def _picture(path: Path) -> Any:
    """What a figure at the end of a cell shows."""
    data = {"image/png": b64encode(path.read_bytes()).decode()}
    return v4.new_output("display_data", data=data)
