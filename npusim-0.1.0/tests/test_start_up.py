"""What is not used is not loaded: neither by an import, nor by a command that only prints words."""

from __future__ import annotations

import subprocess
import sys

import pytest
from engine_times import needs_compiled

import npusim
from npusim import run
from npusim.run import call, inputs

HEAVY = {"matplotlib", "ml_dtypes", "numpy", "pydantic", "simpy"}
COMMAND = """
import sys
from npusim.cli import main
sys.argv[1:] = {words}
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""


def loaded(code: str) -> set[str]:
    """The modules in a new process once it has run *code*."""
    code += "\nimport sys; print(*sys.modules, file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(ran.stderr.split())


def ours(modules: set[str]) -> set[str]:
    return {name for name in modules if name.partition(".")[0] == "npusim"}


def test_an_import_loads_the_door_alone() -> None:
    modules = loaded("import npusim")
    assert ours(modules) == {"npusim", "npusim.run"}
    assert not modules & {*HEAVY, "markdown_it", "rich", "typer"}


def test_a_part_is_loaded_with_what_it_needs() -> None:
    modules = loaded("import npusim; assert npusim.run; npusim.ops.load('npu_quantize')")
    assert "npusim.ops.npu_quantize" in modules
    assert not modules & {"matplotlib", "rich", "simpy", "npusim.chip", "npusim.run.call"}


def test_help_loads_the_words_alone() -> None:
    modules = loaded(COMMAND.format(words=["--help"]))
    beyond = {name for name in ours(modules) if not name.startswith("npusim.cli.commands")}
    assert beyond == {
        *("npusim", "npusim.cli", "npusim.data", "npusim.data.files", "npusim.data.garbage"),
        *("npusim.data.text", "npusim.run"),
    }
    assert not modules & HEAVY


RUN = [
    *("run", "npu_dynamic_quant", "-d", "A2", "-i", "x=randn:8x64:float16"),
]
ON_REQUEST = {
    *("matplotlib", "rich", "simpy"),
    *(
        "npusim.cli.folder",
        "npusim.cli.screen",
        "npusim.exports",
        "npusim.run.advice",
        "npusim.run.disk_cache",
    ),
    *("npusim.run.page", "npusim.timing.simpy_engine", "npusim.trace.record"),
}


@needs_compiled
def test_a_run_as_json_loads_what_it_uses() -> None:
    modules = loaded(COMMAND.format(words=[*RUN, "--engine", "compiled", "--json"]))
    assert "npusim.run.call" in modules
    assert not modules & ON_REQUEST


def test_simpy_is_loaded_where_its_engine_runs() -> None:
    assert "simpy" in loaded(COMMAND.format(words=[*RUN, "--engine", "simpy", "--json"]))


def test_a_name_of_a_chip_is_found_in_no_file_but_its_own() -> None:
    code = """
import sys
seen = []
sys.addaudithook(lambda event, args: event == "open" and seen.append(str(args[0])))
import npusim
assert npusim.devices.load("Atlas A2").name == "ascend910b2"
files = sorted(name.rpartition("/")[2] for name in seen if name.endswith(".toml"))
assert files == ["ascend910b1.toml", "ascend910b2.toml"], files
sources = [name for name in seen if name.endswith(".py")]
assert not sources or sys.dont_write_bytecode, sources
"""
    assert loaded(code)


def test_the_list_of_operators_plays_none() -> None:
    modules = loaded(COMMAND.format(words=["ops"]))
    parts = {".".join(name.split(".")[:2]) for name in ours(modules)}
    assert "npusim.ops" in parts
    assert not parts & {
        *("npusim.chip", "npusim.exports", "npusim.reports", "npusim.timing", "npusim.validation"),
        "npusim.values",
    }
    assert not modules & {"matplotlib", "simpy", "npusim.run.call"}


def test_every_part_is_there_without_another_import() -> None:
    assert "npusim.timing.pipes" in loaded("import npusim; npusim.chip.verify; npusim.kernel.Queue")


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", npusim.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert name in dir(npusim)
    assert loaded(f"from npusim import {name}")


def test_the_package_of_a_name_does_not_take_its_place() -> None:
    assert call.play
    assert inputs.parse
    assert npusim.run is run
    assert callable(run)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("npusim.walk", "AttributeError: module 'npusim' has no attribute 'walk'"),
        ("from npusim.run import walk", "ImportError: cannot import name 'walk' from 'npusim.run'"),
    ],
)
def test_a_name_that_there_is_not(code: str, message: str) -> None:
    command = [sys.executable, "-c", f"import npusim; {code}"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.stderr.splitlines()[-1].startswith(message)
