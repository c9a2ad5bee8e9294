"""The course: its code runs as it stands, draws its pictures, and its links lead somewhere."""

from __future__ import annotations

import doctest
import re
import shutil
from pathlib import Path

import pytest
from test_readme import shell

from npusim.ascendc.compiler import COMPILERS

ROOT = Path(__file__).parent.parent
COURSE, PICTURES = ROOT / "docs" / "course", ROOT / "docs" / "pictures" / "course"
PAGES = sorted(COURSE.glob("[01]*.md"))
LONG = (
    "09_norms_and_dynamic_quantisation",
    "10_weights_in_int8",
    "11_planning_a_model",
    "13_planning_a_service",
)
"""Lessons that take from five seconds to a minute."""
COMPILED = "12_your_first_ascend_c_kernel"
"""The lesson whose code is C++."""
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, COMPILERS)),
    reason=f"page 12 compiles C++, and there is no {' and no '.join(COMPILERS)}; install one",
)
MARKS = dict.fromkeys(LONG, pytest.mark.nightly) | {COMPILED: needs_compiler}
MOST_PICTURE_BYTES = 100_000


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The course in a folder of its own, without pictures, and in it."""
    folder = tmp_path / "docs" / "course"
    shutil.copytree(COURSE, folder)
    (tmp_path / "docs" / "pictures" / "course").mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def shown(page: Path) -> list[str]:
    """The pictures that *page* shows."""
    return re.findall(
        r"^!\[[^\]]+\]\(\.\./pictures/course/(.+?)\)$", page.read_text(), re.MULTILINE
    )


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.stem, marks=MARKS.get(page.stem, ())) for page in PAGES],
)
def test_a_page_gives_what_it_shows_and_draws_its_pictures(page: Path, copy: Path) -> None:
    text = page.read_text(encoding="utf-8")
    lesson = doctest.DocTestParser().get_doctest(text, {}, page.name, None, 0)
    answers: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(lesson, out=answers.append)
    assert len(lesson.examples) > 10
    assert "".join(answers) == ""
    drawn = sorted((copy.parent / "pictures" / "course").iterdir())
    assert [path.name for path in drawn] == sorted(shown(page))
    for picture in drawn:
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_picture_of_layouts_says_what_their_letters_say(copy: Path) -> None:
    """Its numbers follow the capital of each name, its arrows the small letter."""
    text = (copy / "04_nd_and_nz.md").read_text(encoding="utf-8")
    lesson = doctest.DocTestParser().get_doctest(text, {}, "04_nd_and_nz.md", None, 0)
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(lesson, clear_globs=False)
    said = {
        ax.get_title(loc="left"): [text.get_text() for text in ax.texts]
        for ax in lesson.globs["figure"].axes
    }
    assert said == {
        "ND": [],
        "Nz": ["0 →", "2 →", "4 →", "1 →", "3 →", "5 →"],
        "Zz": ["0 →", "1 →", "2 →", "3 →", "4 →", "5 →"],
        "Zn": ["0 ↓", "1 ↓", "2 ↓", "3 ↓", "4 ↓", "5 ↓"],
    }


def test_each_picture_is_small_and_shown_once() -> None:
    names = sorted(name for page in PAGES for name in shown(page))
    assert sorted(path.name for path in PICTURES.iterdir()) == names
    assert all((PICTURES / name).stat().st_size < MOST_PICTURE_BYTES for name in names)


def test_there_are_thirteen_pages_in_order_and_the_first_page_lists_them() -> None:
    titles = [page.read_text(encoding="utf-8").partition("\n")[0] for page in PAGES]
    assert [title.split()[1] for title in titles] == [f"{number}." for number in range(1, 14)]
    listed = re.findall(r"^\| \[.+?\]\((.+?)\)", (COURSE / "README.md").read_text(), re.MULTILINE)
    assert listed == [page.name for page in PAGES]


@pytest.mark.parametrize("page", [*PAGES, COURSE / "README.md"], ids=lambda page: page.stem)
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (COURSE / link).exists()] == []


@pytest.mark.parametrize(
    ("page", "begins", "file"),
    [
        ("02_a_first_kernel.md", 'python\n"""', "vector_add.py"),
        (f"{COMPILED}.md", "cpp\n//", "scale.cpp"),
    ],
)
def test_a_first_kernel_is_the_file_as_shown(page: str, begins: str, file: str) -> None:
    """And short enough for a page."""
    text = (COURSE / page).read_text(encoding="utf-8")
    (block,) = re.findall(rf"^```({begins}.*?)^```", text, re.DOTALL | re.MULTILINE)
    code = block.partition("\n")[2]
    assert code == (COURSE / file).read_text(encoding="utf-8")
    assert len(code.splitlines()) <= 40


@needs_compiler
def test_the_kernel_in_cpp_runs_on_the_command_line(copy: Path) -> None:
    text = (COURSE / f"{COMPILED}.md").read_text(encoding="utf-8")
    (commands,) = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    said = shell(commands, copy)
    assert said.startswith("operator  scale\n")
    assert "\noutput     262144   equal\n" in said


def test_the_first_kernel_runs_on_the_command_line(copy: Path) -> None:
    text = (COURSE / "02_a_first_kernel.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    said = shell(command, copy)
    assert said.startswith("operator  add\n")
    made = {path.name for path in (copy.parents[1] / "out" / "add").iterdir()}
    assert {"pipes.png", "run.json", "timeline.png", "z.npy"} <= made


@needs_compiler
@pytest.mark.nightly
def test_python_follows_the_pages_without_a_word(copy: Path) -> None:
    text = (COURSE / "README.md").read_text(encoding="utf-8")
    _, command = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert shell(command, copy.parents[1]) == ""
