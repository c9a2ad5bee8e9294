"""Tilings given by the names of their fields, as `{"totalLength": 65536, "tileNum": 8}`.

The structure of a pointer is found in the source, where the kernel reads it, or in a header of the
host, from which only the structures are taken, and nothing that only the host can compile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from npusim.ascendc import structures
from npusim.ascendc.arguments import layouts, packed
from npusim.ascendc.compiler import Build, printed
from npusim.ascendc.errors import AscendCError
from npusim.ascendc.source import Parameter, texts_of
from npusim.data.dtypes import Array
from npusim.devices.schema import DeviceSpec

__all__ = ["of_headers", "tiling_bytes"]

DEFINITION = re.compile(
    r"BEGIN_TILING_DATA_DEF\s*\(\s*(\w+)\s*\)(.*?)END_TILING_DATA_DEF\s*;?", re.DOTALL
)
REGISTERED = re.compile(r"REGISTER_TILING_DATA_CLASS\s*\(\s*(\w+)\s*,\s*(\w+)\s*\)")
CONSTANT = re.compile(
    r"^[ \t]*(?:(?:static|inline)\s+)*const(?:expr)?\s+(?:static\s+)?"
    r"(u?int\w*|size_t|unsigned|int)\s+(\w+)\s*=\s*([^;{\"]+);",
    re.MULTILINE,
)
MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(\(?\d\w*\)?)[ \t]*$", re.MULTILINE)
WITHIN = re.compile(r"TILING_DATA_FIELD_DEF_STRUCT\s*\(\s*(\w+)")
KEY = "TILING_KEY_VAR="


def of_headers(build: Build, kernel: str) -> str:
    """The prefix of a kernel's source: the structures of the host's headers of *build*.

    The structure that they register for *kernel* is its tiling. Raises AscendCError.
    """
    if not build.tiling_headers:
        return ""
    texts = [
        re.sub(r"/\*.*?\*/|//[^\n]*|\\\n", " ", text, flags=re.DOTALL)
        for file in build.tiling_headers
        for text in texts_of(file).values()
    ]
    whole = "\n".join(texts)
    bodies = dict(DEFINITION.findall(whole))
    if not bodies:
        raise AscendCError(
            f"ascendc: {build.tiling_headers[0]} must define a tiling, but has no "
            f"BEGIN_TILING_DATA_DEF; name the header that has"
        )
    constants = {
        name: f"constexpr {kind} {name} = {value};" for kind, name, value in CONSTANT.findall(whole)
    }
    constants |= {name: f"#define {name} {value}" for name, value in MACRO.findall(whole)}
    used = set(re.findall(r"\w+", " ".join([*bodies.values(), *constants.values()])))
    includes = ["kernel_operator.h", "register/tilingdata_base.h"]
    includes += ["npusim_ascendc/matmul.h"] if "TCubeTiling" in used else []
    return "\n".join(
        [
            *(f'#include "{name}"' for name in includes),
            *(line for name, line in constants.items() if name in used),
            *(_defined(name, bodies[name]) for name in _ordered(bodies)),
            _main(build, kernel, bodies, dict(REGISTERED.findall(whole))),
            "",
        ]
    )


def _defined(name: str, fields: str) -> str:
    fields = re.sub(r"\)\s*;?", ");", fields)  # the host's macros need no semicolon
    return f"BEGIN_TILING_DATA_DEF({name})\n{fields}\nEND_TILING_DATA_DEF;"


def _ordered(bodies: Mapping[str, str]) -> list[str]:
    """The names of structures, members before the structures that contain them."""
    found: dict[str, None] = {}

    def add(name: str) -> None:
        if name in bodies and name not in found:
            for inner in WITHIN.findall(bodies[name]):
                add(inner)
            found[name] = None

    for name in bodies:
        add(name)
    return list(found)


def _main(
    build: Build, kernel: str, bodies: Mapping[str, str], registered: Mapping[str, str]
) -> str:
    """The structure that GET_TILING_DATA reads, if it is unambiguous."""
    operator = "".join(word.capitalize() for word in kernel.split("_"))
    keys = [each.removeprefix(KEY) for each in build.defines if each.startswith(KEY)]
    inner = {name for body in bodies.values() for name in WITHIN.findall(body)}
    outer = {name for name in bodies if name not in inner}
    by_name = {name.lower(): each for name, each in registered.items()}
    known = [build.tiling_struct, *(by_name.get(f"{operator}_{key}".lower()) for key in keys)]
    known += [by_name.get(operator.lower()), *(outer if len(outer) == 1 else ())]
    chosen = next(filter(None, known), None)
    return f"using NpusimTilingData = {chosen};" if chosen else ""


def tiling_bytes(
    kernel: str,
    parameter: Parameter,
    values: Mapping[str, object],
    text: str,
    source: Path,
    spec: DeviceSpec,
    build: Build,
) -> Array:
    """The bytes of the structure of *parameter* of *kernel*, with these *values*.

    *text* is the program of *source*. Raises AscendCError.
    """

    def printing(preprocessed: str) -> str:
        whole = structures.own_text(preprocessed)
        name = _structure(kernel, parameter, whole, build)
        return structures.printing(structures.needed(whole, name))

    topic = f"{kernel} {parameter.name} {build.tiling_struct}"
    known = layouts(printed(text, source, spec, build, printing, topic))
    made = packed(kernel, parameter.name, next(iter(known)), values, known)
    return np.frombuffer(made, np.uint8)


def _structure(kernel: str, parameter: Parameter, text: str, build: Build) -> str:
    """The name of the structure of *parameter*; raises AscendCError if it is ambiguous."""
    found = [parameter.type] if structures.structure(text, parameter.type) else []
    found = found or structures.read_by(text, kernel, parameter.name)
    name = build.tiling_struct or (found[0] if len(found) == 1 else "")
    if name and structures.structure(text, name):
        return name.rpartition("::")[2]
    if name:
        came, hint = f"{name}, which the source does not define", "name one that it does"
    else:
        came = f"one of {', '.join(found)}" if found else "what no GET_TILING_DATA reads"
        hint = "say which by --tiling-struct, or pass its bytes"
    raise AscendCError(
        f"{kernel}: {parameter.name} must be a structure of the source where it is given by its "
        f"fields, not {came}; {hint}"
    )
