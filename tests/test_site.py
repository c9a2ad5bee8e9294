"""The site: it is built without a warning, and its notebooks are the pages of the course."""

from __future__ import annotations

import doctest
import json
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import axe
import pytest
from browser import Browser
from test_course import PAGES, ROOT
from test_readme import shell

pytest.importorskip("sphinx", reason="the extra docs is not installed")
sys.path.insert(0, str(ROOT / "docs" / "site"))
import landing
import notebooks
import words

pytestmark = pytest.mark.nightly


LESSONS = [*PAGES, *(page.parent / "zh" / page.name for page in PAGES)]


def cells(page: Path) -> list[str]:
    """The code of the notebook of *page*, cell by cell."""
    told = notebooks.notebook(page)["cells"]
    return [cell["source"] for cell in told if cell["cell_type"] == "code"]


def test_the_site_is_complete(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """In one test, as building takes minutes; a warning fails it."""
    shell(f"{sys.executable} -m sphinx -W -q {ROOT / 'docs'} {tmp_path}", tmp_path)
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    found = [(tmp_path / page).with_suffix(".html").exists() for page in sorted(pages)]
    assert all(found)
    for page in pages:
        language = "zh-CN" if "zh" in (*page.parts, page.stem[-2:]) else "en"
        html = (tmp_path / page).with_suffix(".html").read_text(encoding="utf-8")
        assert f' lang="{language}"' in html.partition("<head>")[0], page
    for page in LESSONS:
        written = (tmp_path / page.relative_to(ROOT / "docs")).with_suffix(".ipynb")
        assert notebooks.nbformat.read(written, as_version=4) == notebooks.notebook(page)
    run = (tmp_path / "_static" / landing.NAME).read_text(encoding="utf-8")
    assert "<h1>npu_quant_matmul (tbe) on ascend910b2</h1>" in run
    assert "<h2>What to change: " in run
    gallery = (tmp_path / "gallery.html").read_text(encoding="utf-8")
    for script in (ROOT / "examples").glob("*.py"):
        assert f"<h2>{script.name}" in gallery
        drawn = f'alt="What {script.name} draws"' in gallery
        assert drawn == (".savefig(" in script.read_text(encoding="utf-8"))
    with subtests.test("axe finds nothing"):
        axe_finds_nothing(tmp_path)


def axe_finds_nothing(site: Path) -> None:
    if not axe.HERE:
        pytest.skip(axe.MISSING_HERE)
    names = (
        *("index", "questions", "gallery", "interface", "reports", "tour_zh"),
        "course/04_nd_and_nz",
    )
    with Browser(site / "profile") as browser:
        for name, (width, scheme) in product(names, [(1400, "light"), (360, "dark")]):
            axe.shown(browser, site / f"{name}.html", width, scheme)
            assert axe.violations(browser) == [], name


@pytest.mark.parametrize("page", LESSONS, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_a_notebook_has_the_statements_of_its_page(page: Path) -> None:
    said = doctest.DocTestParser().get_examples(page.read_text(encoding="utf-8"))
    written = "\n".join(cell for cell in cells(page) if not cell.startswith("%"))
    expected = "".join(
        "figure\n" if example.source.startswith("figure.savefig(") else example.source
        for example in said
    )
    assert written + "\n" == expected


def test_a_notebook_has_its_pictures_and_folds_nothing() -> None:
    shown = 0
    for page in LESSONS:
        told = notebooks.notebook(page)["cells"]
        assert told[0]["source"] == "%matplotlib inline"
        texts = [cell["source"] for cell in told if cell["cell_type"] == "markdown"]
        assert not any(
            tag in text for text in texts for tag in ("details>", "summary>", "pictures")
        )
        pictures = [output["data"]["image/png"] for cell in told
                    for output in cell.get("outputs", ()) if "data" in output]  # fmt: skip
        text = page.read_text(encoding="utf-8")
        assert len(pictures) == text.count("figure.savefig(") == text.count("pictures/course/") / 2
        shown += len(pictures)
    assert shown >= 2 * 12


def test_a_notebook_has_its_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as Jupyter would, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    inline, first, *rest = cells(PAGES[0])
    assert inline == "%matplotlib inline"
    magic, _, kernel = first.partition("\n")
    Path(magic.removeprefix("%%writefile ")).write_text(kernel, encoding="utf-8")
    for cell in rest:
        exec(cell, names)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["vector_add.py"]


SEARCHED = "用 npusim 做矩阵乘, mte2 和 L0C 的 16 x 16"


def test_chinese_is_searched_by_pairs_of_characters() -> None:
    assert words.Words({}).split(SEARCHED) == [
        *("用", "npusim", "做矩", "矩阵", "阵乘", "mte2", "和", "L0C", "的", "16", "x", "16"),
    ]


@pytest.mark.skipif(shutil.which("node") is None, reason="node, which runs a page's code, is not")
def test_what_is_typed_is_split_as_what_is_indexed() -> None:
    code = f"{words.Words.js_splitter_code}; console.log(splitQuery({json.dumps(SEARCHED)}).join())"
    ran = subprocess.run(["node", "-e", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip().split(",") == words.Words({}).split(SEARCHED)
