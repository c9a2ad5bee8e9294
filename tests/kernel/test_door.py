"""npusim.kernel is the one module that a kernel imports from."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from npusim import isa, kernel
from npusim.kernel import launch, rows, views

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "docs/tour.md")),
    *sorted((ROOT / "docs" / "course").glob("*.*")),
]
WITHIN = re.compile(r"^(?:>>> )?(?:from|import) npusim\.(?:isa|kernel\.\w+|data\.dtypes)\b.*", re.M)


@pytest.mark.parametrize("module", [kernel, launch, rows, views], ids=lambda m: m.__name__)
def test_the_examples_of_docstrings_give_what_they_show(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


def test_a_kernel_can_be_written_with_every_micro_op() -> None:
    micro_ops = {kind.__name__ for kind in isa.MICRO_OPS}
    assert micro_ops - set(kernel.__all__) == set()


def test_every_name_is_there_once_and_in_order() -> None:
    assert sorted(set(kernel.__all__)) == sorted(kernel.__all__)
    assert [name for name in kernel.__all__ if not hasattr(kernel, name)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_import_from_no_module_behind_it(page: Path) -> None:
    assert WITHIN.findall(page.read_text(encoding="utf-8")) == []


def test_an_import_from_a_module_behind_it_would_be_seen() -> None:
    wrong = ">>> from npusim.isa import Mmad\n>>> from npusim.kernel.matmul import BaseTile\n"
    assert len(WITHIN.findall(wrong)) == 2
