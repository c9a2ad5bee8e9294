"""The site: it is built without a warning, and its notebooks are the pages of the course."""

from __future__ import annotations

import doctest
import json
import sys
from pathlib import Path

import pytest
from test_course import PAGES, ROOT
from test_readme import shell

pytest.importorskip("sphinx", reason="the extra docs is not installed")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as docs/conf.py says; a warning fails it."""
    folder = tmp_path_factory.mktemp("site")
    shell(f"{sys.executable} -m sphinx -W -q {ROOT / 'docs'} {folder}", folder)
    return folder


def cells(notebook: Path) -> list[str]:
    """The code of *notebook*, cell by cell."""
    told = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in told if cell["cell_type"] == "code"]


def test_every_page_is_there(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    assert [page for page in sorted(pages) if not (site / page).with_suffix(".html").exists()] == []


def test_the_gallery_has_a_picture_of_each_example_that_draws(site: Path) -> None:
    gallery = (site / "gallery.html").read_text(encoding="utf-8")
    for script in (ROOT / "examples").glob("*.py"):
        assert f"<h2>{script.name}" in gallery
        drawn = f'alt="What {script.name} draws"' in gallery
        assert drawn == (".savefig(" in script.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_notebook_has_the_statements_of_its_page(site: Path, page: Path) -> None:
    said = doctest.DocTestParser().get_examples(page.read_text(encoding="utf-8"))
    written = "\n".join(
        cell for cell in cells(site / "course" / f"{page.stem}.ipynb") if not cell.startswith("%%")
    )
    expected = "".join(
        "figure\n" if example.source.startswith("figure.savefig(") else example.source
        for example in said
    )
    assert written + "\n" == expected


def test_a_notebook_brings_the_kernel_that_it_runs(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run as Jupyter would, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    first, *rest = cells(site / "course" / "01_the_core.ipynb")
    magic, _, kernel = first.partition("\n")
    Path(magic.removeprefix("%%writefile ")).write_text(kernel, encoding="utf-8")
    for cell in rest:
        exec(cell, names)
    assert {path.name for path in tmp_path.iterdir()} == {"vector_add.py"}
