"""Kernels of Ascend C as they stand: C++ compiled for the host, its calls played on a chip.

.. code-block:: python

    kernels = npusim.ascendc.load("add_custom.cpp")
    run = kernels.add_custom[8](x, y, z, x.size, device="Atlas A2")

Docs: docs/kernels.md.
"""

from __future__ import annotations

import os
from pathlib import Path

from npusim.ascendc.errors import AscendCError, CompileError, CrashError, StuckError
from npusim.ascendc.kernel import SourceKernel, SourceLaunch, find, named, names_source
from npusim.ascendc.program import HostProgram, ProgramLaunch

__all__ = [
    "AscendCError",
    "CompileError",
    "CrashError",
    "HostProgram",
    "ProgramLaunch",
    "Source",
    "SourceKernel",
    "SourceLaunch",
    "StuckError",
    "load",
    "named",
    "names_source",
]


class Source:
    """The kernels of a file, by attribute, or by item where they have template arguments."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __getattr__(self, name: str) -> SourceKernel:
        if name.startswith("__"):
            raise AttributeError(name)
        return find(self.file, name)

    def __getitem__(self, instance: str) -> SourceKernel:
        """The kernel that *instance* names, as in `["add<float, 2>"]`."""
        return find(self.file, instance)


def load(file: str | os.PathLike[str]) -> Source:
    """The kernels of *file*, a source of C++; it is compiled when one is called."""
    return Source(Path(file))
