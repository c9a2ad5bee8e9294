"""The names of Ascend C that a compiler did not find, and the alternatives to them.

``missing_names.txt`` holds the names that have a page or a prototype in asc-devkit@82b89a1,
docs/zh, and that npusim's headers do not declare.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from npusim.kernel.program import Line, short_line

__all__ = ["DOCUMENTED", "what_is_missing"]

DOCUMENTED = Path(__file__).with_name("missing_names.txt")
ERROR = re.compile(r"^(.+?):(\d+):\d+: (?:fatal )?error: (.*?)(?:; did you mean .*)?$")
HEADER = re.compile(r"'?([\w./+-]+)'?(?:: No such file or directory| file not found)$")
QUOTED = re.compile(r"'(?:[\w:]*::)?(~?\w+)(?:<.*?>)?(?:\(.*\))?'")
IN_THE_API = re.compile(
    r"(?:is not a member of|in namespace|is not declared in) "
    r"'(?:AscendC|matmul_tiling|optiling|platform_ascendc)\b"
)
OWN_REFUSAL = re.compile(r"static assertion failed[^\"]*?: \"?npusim: (.*?)\"?$")
MOST_NAMES = 8
"""The most names that a message lists."""


class Family(NamedTuple):
    """Names of one form, what they are, and the alternative to them."""

    form: re.Pattern[str]
    what: str
    advice: str


FAMILIES = (
    Family(
        re.compile(r"__(?:simd|simt)_\w+__|__launch_bounds__|Reg|MicroAPI|RegTensor|MaskReg"),
        "of the register-based API, which Atlas A2, A3 and 310P do not have",
        "write the kernel for these chips with the calls that docs/kernels.md lists",
    ),
    Family(
        re.compile(r"__aicpu__|(?:aicpu|aicpu_api)\b.*"),
        "of the AI CPU, of which npusim simulates nothing",
        "compute what it computes in host code",
    ),
    Family(
        re.compile(r"acl[a-zA-Z]\w*|ACL_\w+"),
        "of the runtime's host API, of which npusim has memory, copies, streams and launches",
        "launch the kernel by <<<...>>> alone",
    ),
    Family(
        re.compile(r"asc_\w+"),
        "of the C API, of which npusim has what docs/kernels.md lists",
        "call the C++ API in its place",
    ),
)
HEADER_FAMILIES = (
    Family(
        re.compile(r"(?:torch|torch_npu|ATen|c10|pybind11)/.*|torch_npu.*"),
        "of PyTorch, with which npusim compiles nothing",
        "put the kernel into a source of its own, and call it by npusim.torch.launch",
    ),
    Family(
        re.compile(
            r"(?:graph|exe_graph|ge|register|op_proto|flow_graph|aclnn|external)/.*|aclnn.*"
        ),
        "of the graph engine, with which npusim compiles nothing",
        "put the kernel into a source of its own, and name it, as in kernel.cpp:add",
    ),
)
OF_THE_API = Family(
    re.compile(r"\w+"),
    "of Ascend C that npusim does not have",
    "use what docs/kernels.md lists in place of it",
)
OTHER_HEADER = Family(
    re.compile(r".*"),
    "found neither in npusim nor in a folder that is given",
    "pass the right folder by -I, or leave the #include out",
)


@cache
def _documented() -> frozenset[str]:
    return frozenset(DOCUMENTED.read_text().split())


def what_is_missing(said: str, source: Path) -> str:
    """The names of Ascend C that a compiler that *said* this did not find, as a sentence.

    Empty if the message is about other things.
    """
    found: dict[tuple[str, Family], dict[str, Line]] = {}
    refused = list[str]()
    for line in said.splitlines():
        match = ERROR.match(line)
        if match is None:
            continue
        refused += OWN_REFUSAL.findall(match[3])
        for noun, find in (("header", _header), ("name", _name)):
            named = find(match[3])
            if named is not None:
                name, family = named
                lines = found.setdefault((noun, family), {})
                lines.setdefault(name, (match[1], int(match[2])))
                break
    listed = (
        f"{_listed(names, source)} {f'is a {noun}' if len(names) == 1 else f'are {noun}s'} "
        f"{family.what}: {family.advice}"
        for (noun, family), names in found.items()
    )
    return "; ".join((*dict.fromkeys(refused), *listed))


def _header(message: str) -> tuple[str, Family] | None:
    """A missing header."""
    match = HEADER.match(message)
    if match is None:
        return None
    own = (each for each in HEADER_FAMILIES if each.form.fullmatch(match[1]))
    return match[1], next(own, OTHER_HEADER)


def _name(message: str) -> tuple[str, Family] | None:
    """A missing name of the API."""
    names = QUOTED.findall(message)
    for name in names:
        for family in FAMILIES:
            if family.form.fullmatch(name):
                return name, family
        if name in _documented():
            return name, OF_THE_API
    if names and IN_THE_API.search(message):
        return names[0], OF_THE_API
    return None


def _listed(names: dict[str, Line], source: Path) -> str:
    """Names and the lines where they first appear."""
    listed = []
    for name, (file, line) in list(names.items())[:MOST_NAMES]:
        where = "" if Path(file) == source.resolve() else f" of {short_line((file, line))[0]}"
        listed.append(f"{name} (line {line}{where})")
    more = len(names) - len(listed)
    if more:
        listed.append(f"{more} more")
    return " and ".join(filter(None, (", ".join(listed[:-1]), listed[-1])))
