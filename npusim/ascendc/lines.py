"""The lines of C++ that correspond to an address of a program."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from npusim.ascendc.compiler import GENERATED, HERE
from npusim.kernel.program import Line

__all__ = ["Lines"]

UNKNOWN = ("", 0)


class Lines:
    """The lines of *program*, which was compiled from *source* with debugging information."""

    def __init__(self, program: Path, source: Path) -> None:
        self._program, self._source = program, source.resolve()
        self._known: dict[int, tuple[Line, ...]] = {}
        """The lines of the user's code at an address, the innermost first."""

    def learn(self, addresses: Iterable[int]) -> None:
        """Find the lines of return *addresses*, all at once."""
        unknown = sorted({address for address in addresses if address not in self._known})
        if not unknown or not shutil.which("addr2line"):
            return  # messages then have no lines
        # A call returns to the next instruction: its line is that of the byte before.
        words = [hex(address - 1) for address in unknown]
        said = subprocess.run(
            ["addr2line", "-a", "-i", "-e", str(self._program)],
            input="\n".join(words),
            capture_output=True,
            text=True,
        ).stdout
        found: list[list[Line]] = []
        for line in said.splitlines():
            if line.startswith("0x"):
                found.append([])
            else:
                found[-1].append(self._line(line))
        for address, lines in zip(unknown, found, strict=False):
            self._known[address] = tuple(x for x in lines if x[0] and not _is_ours(x[0]))

    def _line(self, text: str) -> Line:
        file, _, number = text.partition(" (")[0].rpartition(":")
        if not number.isdigit() or file.startswith("?"):
            return UNKNOWN
        path = Path(file)
        return str(self._source if path.name == GENERATED else path), int(number)

    def calls(self, addresses: Iterable[int]) -> tuple[Line, ...]:
        """The call stack in lines of the user's code, the innermost first."""
        return tuple(line for address in addresses for line in self._known.get(address, ()))


@cache
def _is_ours(file: str) -> bool:
    """Whether a file belongs to npusim, to the compiler, or to the code that starts kernels."""
    path = Path(file)
    return path.is_relative_to(HERE) or path.is_relative_to("/usr") or path.name == "driver.cpp"
