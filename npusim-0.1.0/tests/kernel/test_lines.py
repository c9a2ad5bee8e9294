"""Which line of a kernel wrote a micro-op: the first one outside of modules that are marked."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny import builder

import npusim
import npusim.kernel
from npusim.devices.schema import DeviceSpec
from npusim.isa import Barrier
from npusim.kernel.builder import MARK, Builder

VOCABULARY = [
    "npusim.kernel",
    *(info.name for info in pkgutil.walk_packages(npusim.kernel.__path__, "npusim.kernel.")),
]


@pytest.mark.parametrize("name", VOCABULARY)
def test_every_module_of_the_vocabulary_is_marked(name: str) -> None:
    assert vars(importlib.import_module(name)).get(MARK) is True


def test_nothing_outside_of_the_vocabulary_is_marked() -> None:
    package = Path(npusim.__file__).parent
    marked = {path for path in package.rglob("*.py") if f"\n{MARK} = " in path.read_text("utf-8")}
    assert marked == set((package / "kernel").rglob("*.py"))


def shared(marks: dict[str, Any]) -> Callable[[Builder], None]:
    """A function that writes a barrier, of a module with these marks."""
    scope = {"Barrier": Barrier, "__name__": "npusim_shared", **marks}
    source = "def write(builder):\n    builder.emit(Barrier())\n"
    exec(compile(source, "shared.py", "exec"), scope)
    write: Callable[[Builder], None] = scope["write"]
    return write


def test_a_marked_module_writes_for_its_caller(tiny: DeviceSpec) -> None:
    write = builder(tiny)
    shared({})(write)
    shared({MARK: True})(write)
    (call,) = write.build().calls
    assert call.lines[0] == ("shared.py", 2)
    assert call.lines[1][0] == __file__
