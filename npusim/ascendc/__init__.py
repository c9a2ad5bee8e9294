"""Unmodified Ascend C kernels: C++ compiled for the host, whose API calls run on a chip.

.. code-block:: python

    kernels = npusim.ascendc.load("add_custom.cpp")
    run = kernels.add_custom[8](x, y, z, x.size, device="Atlas A2")

Docs: docs/kernels.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from npusim.ascendc.compiler import Build
from npusim.ascendc.errors import AscendCError, CompileError, CrashError, StuckError
from npusim.ascendc.kernel import SourceKernel, SourceLaunch, find, named, names_source
from npusim.ascendc.program import HostProgram, ProgramLaunch

__all__ = [
    "AscendCError",
    "Build",
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
    """The kernels of a file, by attribute, or by item if they have template arguments."""

    def __init__(self, file: Path, build: Build) -> None:
        self.file, self._build = file, build

    def __getattr__(self, name: str) -> SourceKernel:
        if name.startswith("__"):
            raise AttributeError(name)
        return find(self.file, name, self._build)

    def __getitem__(self, instance: str) -> SourceKernel:
        """The kernel that *instance* names, as in `["add<float, 2>"]`."""
        return find(self.file, instance, self._build)


def load(
    file: str | os.PathLike[str],
    defines: Iterable[str] = (),
    include: Iterable[str | os.PathLike[str]] = (),
    sources: Iterable[str | os.PathLike[str]] = (),
    auto_sync: bool = True,
    strict: bool = False,
    tiling_headers: Iterable[str | os.PathLike[str]] = (),
    tiling_struct: str = "",
    adv_api: str | os.PathLike[str] | None = None,
) -> Source:
    """The kernels of *file*, a C++ source, which is compiled when one of them is called.

    *defines* are NAME or NAME=VALUE each, *include* folders of headers, *sources* further files to
    link. *auto_sync* adds the flags and barriers that the vendor's compiler adds: see
    :mod:`npusim.ascendc.auto_sync`. *strict* turns a HazardWarning into an error.
    *tiling_headers* are the host's headers that define tilings, *tiling_struct* is the structure of
    a tiling that is given by its fields, if it is ambiguous. *adv_api* is a checkout of asc-devkit,
    whose headers replace npusim's for the layers above the basic API.
    """
    return Source(
        Path(file),
        Build(
            defines=tuple(defines),
            include=tuple(map(Path, include)),
            sources=tuple(map(Path, sources)),
            auto_sync=auto_sync,
            is_strict=strict,
            tiling_headers=tuple(map(Path, tiling_headers)),
            tiling_struct=tiling_struct,
            adv_api=None if adv_api is None else Path(adv_api),
        ),
    )
