"""Compile sources with the host's C++ compiler, with a cache for later runs.

The key of a program consists of its inputs: its sources and the headers of its author, npusim's
headers, the chip, the compiler and its flags.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from npusim.ascendc import adv_api
from npusim.ascendc.errors import CompileError
from npusim.ascendc.missing import what_is_missing
from npusim.devices.schema import CORE_KINDS, DeviceSpec

__all__ = ["GENERATED", "HERE", "Build", "Program", "compiled", "preprocessed", "printed"]

HERE = Path(__file__).parent
INCLUDE, RUNTIME = HERE / "include", HERE / "runtime"
COMPILERS = ("g++", "clang++")
OLDEST_GCC = 12
FLAGS = (
    "-std=c++17",
    "-O1",
    "-g",
    "-no-pie",
    "-fno-pie",
    # The callers of an API call are read from the stack.
    "-fno-omit-frame-pointer",
    "-fno-optimize-sibling-calls",
    # Sums of products are rounded twice, as in the scalar unit.
    "-ffp-contract=off",
    "-w",
)
FUNCTIONS = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "erfc", "log"),
    *("power", "sign", "sin", "sinh", "tan", "tanh"),
)
"""Parts of the advanced API, each with a separate header."""
FORWARDED = {
    "kernel_operator.h": (
        *("kernel_basic_intf.h", "kernel_common.h", "kernel_operator_intf.h", "kernel_tensor.h"),
        *("kernel_tpipe.h", "kernel_type.h", "kernel_utils.h", "kernel_vec_intf.h"),
        *("kernel_operator_block_sync_intf.h", "kernel_operator_data_copy_intf.h"),
        *("kernel_operator_determine_compute_sync_intf.h", "kernel_operator_fixpipe_intf.h"),
        *("kernel_operator_atomic_intf.h", "kernel_event.h", "kernel_macros.h"),
        *("kernel_operator_mm_intf.h", "kernel_operator_vec_reduce_intf.h"),
        *("kernel_operator_list_tensor_intf.h", "kernel_operator_dump_tensor_intf.h"),
        *(f"basic_api/kernel_{name}.h" for name in ("basic_intf", "common", "tensor", "tpipe")),
        *(f"basic_api/kernel_{name}.h" for name in ("vec_intf", "operator_block_sync_intf")),
        "basic_api/kernel_operator_data_copy_intf.h",
        "basic_api/kernel_operator_determine_compute_sync_intf.h",
        "basic_api/kernel_operator_vec_reduce_intf.h",
        *("adv_api/reduce/reduce.h", "impl/dav_c220/kernel_operator_reg_others_impl.h"),
        *(f"lib/math/kernel_operator_{name}_intf.h" for name in FUNCTIONS),
        "lib/sigmoid/kernel_operator_sigmoid_intf.h",
        *(f"utils/debug/asc_{name}.h" for name in ("assert", "dump", "printf")),
    ),
    "npusim_ascendc/matmul.h": (
        *("adv_api/matmul/matmul_intf.h", "kernel_tiling/kernel_tiling.h", "lib/matmul_intf.h"),
        *("lib/matmul/matmul.h", "lib/matmul/tiling.h", "lib/matrix/matmul/matmul.h"),
    ),
    "npusim_ascendc/tiling_keys.h": (
        "ascendc/host_api/tiling/template_argument.h",
        "tiling/template_argument.h",
    ),
    "npusim_ascendc/c_api.h": ("c_api/asc_simd.h",),
    "acl/acl.h": ("acl/acl_base.h", "acl/acl_rt.h"),
}
"""Headers that declare everything that sources also include under these other names."""
LAYERS = "lib/", "adv_api/"
"""The prefixes of headers of the layers above the basic API."""
BUFFERS = ("ub", "l1", "l0a", "l0b", "l0c", "bt", "fb")
GENERATED = "generated.cpp"
"""The text that a compiler reads, with the line numbers of the source."""
CACHE_VARIABLE = "XDG_CACHE_HOME"


@dataclass(frozen=True, slots=True)
class Build:
    """The options for building and checking a source, as in its author's build."""

    defines: tuple[str, ...] = ()
    """NAME or NAME=VALUE each."""
    include: tuple[Path, ...] = ()
    """Folders of headers."""
    sources: tuple[Path, ...] = ()
    """Further sources of the program."""
    watches: tuple[tuple[int, str], ...] = ()
    """The lines after which a tensor is printed, and its name."""
    auto_sync: bool = True
    """Whether the compiler orders dependent micro-ops if it can: --cce-auto-sync."""
    is_strict: bool = False
    """Whether harmless hazards, which the vendor's kernels have too, are errors."""
    tiling_headers: tuple[Path, ...] = ()
    """Headers of the host that define tilings."""
    tiling_struct: str = ""
    """The structure of tilings, if it is ambiguous."""
    adv_api: Path | None = None
    """A checkout of asc-devkit whose headers are used for the layers above the basic API."""


@dataclass(frozen=True, slots=True)
class Program:
    """An executable, and the messages of its compiler."""

    file: Path


def compiled(
    text: str, source: Path, spec: DeviceSpec, build: Build, others: Mapping[Path, str]
) -> Program:
    """The program of *text*, made from *source*, for *spec*, linked with the texts of *others*.

    Raises CompileError.
    """
    command = _command(source, spec, build)
    texts = {source: text, **others}
    words = [word for each, its in texts.items() for word in (its, str(each))]
    folder = _folder(command, *words)
    program = folder / "program"
    if _is_current(program):
        return Program(program)
    with tempfile.TemporaryDirectory(dir=_made(folder)) as scratch:
        work = Path(scratch)
        used, parts = [], []
        for number, (each, its) in enumerate(texts.items()):
            main = work / str(number) / GENERATED
            main.parent.mkdir()
            main.write_text(its)
            used.append(main.with_suffix(".d"))
            part = main.with_suffix(".o")
            _run([*command, "-MMD", "-MF", str(used[-1]), "-c", str(main), "-o", str(part)], each)
            parts.append(str(part))
        parts += map(str, _runtime(spec))
        _run([command[0], "-no-pie", "-g", *parts, "-o", str(work / "program")], source)
        _keep(work / "program", folder, _hashes(used, work))
    return Program(program)


def printed(
    text: str,
    source: Path,
    spec: DeviceSpec,
    build: Build,
    added: Callable[[str], str],
    topic: str,
) -> str:
    """The output of *text*, made from *source*, with the code of *added*, which runs first.

    *added* gets the preprocessed text, and otherwise depends only on *topic*.
    Raises CompileError.
    """
    command = _command(source, spec, build)
    folder = _folder(command, text, str(source), topic)
    found = folder / "printed"
    if _is_current(found):
        return found.read_text()
    with tempfile.TemporaryDirectory(dir=_made(folder)) as scratch:
        work = Path(scratch)
        main, used, program = work / GENERATED, work / "used.d", work / "program"
        main.write_text(text)
        whole = _run([*command, "-E", "-MMD", "-MF", str(used), str(main)], source)
        main.write_text(text + added(whole))
        # Later flags override earlier ones: this runs once, for a few lines.
        made = "-O0", "-g0", str(main), *map(str, _runtime(spec)), "-o", str(program)
        _run([*command, *made], source)
        (work / "printed").write_text(_run([str(program)], source))
        _keep(work / "printed", folder, _hashes([used], work))
    return found.read_text()


def preprocessed(text: str, source: Path, spec: DeviceSpec, build: Build) -> str:
    """The preprocessed *text*, made from *source*; raises CompileError."""
    with tempfile.TemporaryDirectory() as scratch:
        main = Path(scratch) / GENERATED
        main.write_text(text)
        return _run([*_command(source, spec, build), "-E", "-P", str(main)], source)


def _command(source: Path, spec: DeviceSpec, build: Build) -> list[str]:
    """The command that compiles *source* for *spec*, without the files."""
    command = [_compiler(), *FLAGS, *_macros(spec), *(f"-D{each}" for each in build.defines)]
    given = (each.resolve() for each in build.include)
    folders = [source.resolve().parent, *given, INCLUDE, _forwarded(build.adv_api is None)]
    if build.adv_api is not None:
        command.append("-DNPUSIM_ADV_API")
        folders += adv_api.folders(build.adv_api, _cache_folder())
    command += [word for folder in folders for word in ("-I", str(folder))]
    return [*command, "-include", "npusim_ascendc/launch.h"]


def _folder(command: list[str], *words: str) -> Path:
    """The cache folder for the result of *command* on *words*."""
    return _cache_folder() / _hash(" ".join(command), _version(command[0]), _own_headers(), *words)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _hashes(dependencies: Iterable[Path], work: Path) -> dict[str, str]:
    """The headers in *dependencies* that are neither npusim's nor in *work*, by content."""
    own = INCLUDE, _forwarded(), _forwarded(False), work.resolve()
    files = [file for each in dependencies for file in _used(each)]
    headers = [file for file in files if not any(map(file.is_relative_to, own))]
    return {str(file): _hash(file.read_bytes()) for file in headers}


def _keep(made: Path, folder: Path, headers: Mapping[str, str]) -> None:
    """Move what was *made* from *headers* to *folder*, as the last step: if it exists, all does."""
    listed = made.with_name("headers.json")
    listed.write_text(json.dumps(headers))
    listed.replace(folder / listed.name)
    made.replace(folder / made.name)


@cache
def _compiler() -> str:
    """The compiler that the environment names, or the first that is installed."""
    named = os.environ.get("CXX")
    found = next(filter(None, map(shutil.which, (named,) if named else COMPILERS)), None)
    if found is None:
        raise CompileError(
            f"ascendc: a C++ compiler must be there to compile kernels, but there is no "
            f"{named or ' and no '.join(COMPILERS)}; install g++ {OLDEST_GCC} or newer, or clang, "
            f"for example by apt install g++, or name one in CXX"
        )
    major = re.search(r"\b(\d+)\.\d+", _version(found))
    if "clang" not in _version(found) and major and int(major[1]) < OLDEST_GCC:
        raise CompileError(
            f"ascendc: g++ must be {OLDEST_GCC} or newer, not {major[0]} ({found}); install a "
            f"newer one, or clang, and name it in CXX"
        )
    return found


@cache
def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout


def _macros(spec: DeviceSpec) -> list[str]:
    """The properties of the chip that a source can query."""
    is_split = spec.arch == "2201"
    found = [f"-D__NPU_ARCH__={spec.arch}", f"-D__CCE_AICORE__={220 if is_split else 200}"]
    for name, kind in zip(("CUBE", "VECTOR"), CORE_KINDS[spec.arch], strict=True):
        cores = spec.cores.get(kind, spec.cores[CORE_KINDS[spec.arch][0]])
        found.append(f"-DNPUSIM_{name}_CORES={cores.count}")
    for name in BUFFERS:
        sizes = [getattr(core, f"{name}_bytes") or 0 for core in spec.cores.values()]
        found.append(f"-DNPUSIM_{name.upper()}_BYTES={max(sizes)}")
    return found


def _hash(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
        digest.update(b"\0")
    return digest.hexdigest()[:32]


@cache
def _own_headers() -> str:
    files = sorted([Path(__file__), *INCLUDE.rglob("*"), *RUNTIME.rglob("*")])
    return _hash(*(file.read_bytes() for file in files if file.is_file()))


@cache
def _forwarded(with_layers: bool = True) -> Path:
    """A folder of headers, each of which includes the header with its declarations.

    *with_layers* selects whether headers of the layers above the basic API are included.
    """
    layers = "" if with_layers else "-basic"
    folder = _cache_folder() / f"headers{layers}-{_own_headers()}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            made = Path(scratch) / "include"
            for target, names in FORWARDED.items():
                for name in names:
                    if not with_layers and name.startswith(LAYERS):
                        continue
                    (made / name).parent.mkdir(parents=True, exist_ok=True)
                    (made / name).write_text(f'#pragma once\n#include "{target}"\n')
            try:
                made.rename(folder)
            except OSError:  # another process created it first
                assert folder.is_dir()
    return folder


def _cache_folder() -> Path:
    root = os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache"
    return Path(root) / "npusim" / "ascendc"


def _is_current(made: Path) -> bool:
    """Whether *made* exists, and none of the headers it was made from has changed."""
    if not made.is_file():
        return False
    theirs = json.loads(made.with_name("headers.json").read_text())
    return all(
        Path(file).is_file() and _hash(Path(file).read_bytes()) == known
        for file, known in theirs.items()
    )


def _used(dependencies: Path) -> list[Path]:
    """The files that a compiler lists as its dependencies."""
    words = dependencies.read_text().replace("\\\n", " ").partition(":")[2]
    names = re.findall(r"(?:\\.|\S)+", words)
    files = [Path(name.replace("\\ ", " ")).resolve() for name in names]
    return [file for file in files if not str(file).startswith("/usr/")]


def _runtime(spec: DeviceSpec) -> list[Path]:
    """The runtime that every program is linked with, compiled once."""
    command = [_compiler(), *FLAGS, *_macros(spec), "-I", str(INCLUDE)]
    found = []
    for source in sorted(RUNTIME.glob("*.cpp")):
        key = _hash(" ".join(command), _version(command[0]), _own_headers(), source.name)
        made = _cache_folder() / f"{key}.o"
        if not made.is_file():
            made.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
                part = Path(scratch) / "part.o"
                _run([*command, "-c", str(source), "-o", str(part)], source)
                part.replace(made)
        found.append(made)
    return found


def _run(command: list[str], source: Path) -> str:
    """The output of *command*."""
    in_english = os.environ | {"LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, text=True, env=in_english)
    if done.returncode:
        said = _at_the_users_lines(done.stderr)
        missing = what_is_missing(said, source)
        raise CompileError(
            f"ascendc: {source} must compile, but {missing}{missing and '; '}"
            f"{Path(command[0]).name} says:\n{said}"
        )
    return done.stdout


def _at_the_users_lines(said: str) -> str:
    """The messages of a compiler, without npusim's folders."""
    for folder in (INCLUDE, _forwarded()):
        said = said.replace(f"{folder}{os.sep}", "")
    return said.rstrip()
