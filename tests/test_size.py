"""Functions and modules stay small enough to be read at once."""

from __future__ import annotations

import ast
from pathlib import Path

import npusim

FUNCTION_LINES = 60
MODULE_LINES = 450
ROOT = Path(npusim.__file__).parent


def long_functions(source: str) -> list[str]:
    """Functions of *source* beyond the limit, with their length."""
    functions = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    lengths = ((node.name, (node.end_lineno or 0) - node.lineno + 1) for node in functions)
    return [f"{name}: {lines} lines" for name, lines in lengths if lines > FUNCTION_LINES]


def test_functions_are_short() -> None:
    modules = {path.relative_to(ROOT).as_posix(): path for path in sorted(ROOT.rglob("*.py"))}
    assert {"data/dtypes.py", "isa/vector.py", "ops/npu_quantize/kernel.py"} <= set(modules)

    found = {name: long_functions(path.read_text("utf-8")) for name, path in modules.items()}
    assert {name: long for name, long in found.items() if long} == {}


def test_modules_are_short() -> None:
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in ROOT.rglob("*.py")}
    assert {path: lines for path, lines in lengths.items() if lines > MODULE_LINES} == {}


def test_a_long_function_would_be_found() -> None:
    body = "    pass\n"
    assert long_functions("def short():\n" + body * 59) == []
    assert long_functions("def long():\n" + body * 60) == ["long: 61 lines"]
