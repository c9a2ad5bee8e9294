"""Modules and functions stay small enough to be read in one sitting."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import npusim

MODULE_LINES, FUNCTION_LINES = 400, 60
ROOT = Path(npusim.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))


def long_functions(source: str) -> list[str]:
    """Functions of *source* beyond the limit, with their length."""
    functions = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    lengths = ((node.name, (node.end_lineno or 0) - node.lineno + 1) for node in functions)
    return [f"{name}: {lines} lines" for name, lines in lengths if lines > FUNCTION_LINES]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_and_its_functions_are_short(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= MODULE_LINES, "cut the module into a folder of its name"
    assert long_functions(source) == []


def test_a_long_function_would_be_found() -> None:
    body = "    pass\n"
    assert long_functions("def short():\n" + body * 59) == []
    assert long_functions("def long():\n" + body * 60) == ["long: 61 lines"]


def test_all_modules_are_looked_at() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in MODULES}
    assert {"dtypes.py", "isa/vector.py", "ops/npu_quantize/kernel.py"} <= names
