"""A change that tests must notice, and whether a table of such changes still fits the tree."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Mutant", "TableError", "of", "require_fitting"]


class TableError(ValueError):
    """Rows of the table do not fit the tree."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One *text* of a file, and what it *becomes*."""

    name: str
    path: str
    """The file, from the root of the tree."""
    text: str
    """What stands there, exactly once."""
    becomes: str
    tests: tuple[str, ...]
    """The narrow tests that are to fail: files, or tests as pytest names them."""

    @property
    def is_compiled(self) -> bool:
        """Whether the engine must be built anew."""
        return self.path.endswith(".c")

    def applied(self, source: str) -> str:
        """*source*, the contents of its file, with the change; raises TableError."""
        count = source.count(self.text)
        if count != 1:
            raise TableError(
                f"mutants: {self.path} must have the text of {self.name} once, not {count} times: "
                f"{self.text!r}; change the row, or put another one in its place"
            )
        return source.replace(self.text, self.becomes)

    def line(self, root: Path) -> int:
        """The number of the line where its text begins."""
        source = (root / self.path).read_text("utf-8")
        return source[: source.index(self.text)].count("\n") + 1


def of(path: str, *tests: str, **changes: tuple[str, str]) -> tuple[Mutant, ...]:
    """A row for each of *changes* of the file at *path*: name=(text, what it becomes)."""
    return tuple(Mutant(name, path, *change, tests) for name, change in changes.items())


def require_fitting(mutants: Sequence[Mutant], root: Path) -> None:
    """Raise TableError, naming every row that does not fit the tree at *root*."""
    names = Counter(mutant.name for mutant in mutants)
    wrong = [
        f"mutants: a name must be that of one row, not of {count}, as {name}; rename one"
        for name, count in names.items()
        if count > 1
    ]
    wrong += [text for mutant in mutants for text in _misfits(mutant, root)]
    if wrong:
        raise TableError("\n".join(wrong))


def _misfits(mutant: Mutant, root: Path) -> Iterator[str]:
    """What is wrong with a row, in words."""
    path = root / mutant.path
    try:
        changed = mutant.applied(path.read_text("utf-8") if path.is_file() else "")
        if path.suffix == ".py":
            ast.parse(changed)
    except TableError as error:
        yield str(error)
    except SyntaxError as error:
        yield (
            f"mutants: {mutant.name} must leave {mutant.path} Python, but it does not: "
            f"{error.msg}; change what the text becomes"
        )
    for test in mutant.tests:
        file, *function = test.split("::")
        found = (root / file).is_file() and all(
            f"def {name}(" in (root / file).read_text("utf-8") for name in function
        )
        if not found:
            yield (
                f"mutants: {mutant.name} must name tests that there are, not {test}; name those "
                f"that took its place"
            )
