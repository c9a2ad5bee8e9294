"""The contents of a source: its kernels, their parameters and cores, and its launches.

C++ is not parsed here, only split into tokens: that is enough to find `__global__`, the parentheses
after it, and `<<<...>>>`, which a host compiler does not know.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from npusim.ascendc.errors import AscendCError
from npusim.devices.schema import DeviceSpec

__all__ = [
    "CUBE",
    "VECTOR",
    "Cores",
    "Kernel",
    "Parameter",
    "Word",
    "closing_of",
    "guessed_cores",
    "has_main",
    "kernels",
    "on_chip",
    "other_sources",
    "texts_of",
    "with_launches",
    "with_watches",
    "with_workspaces",
    "words_of",
]

WORDS = re.compile(
    r"""
    (?P<blank>\s+ | //[^\n]* | /\*.*?\*/ | \\\n)
    | (?P<text>R"(?P<mark>[^\s()\\]{0,16})\(.*?\)(?P=mark)"
              | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*')
    | (?P<line>\#(?:\\\n|/\*.*?\*/|[^\n])*)
    | (?P<name>[A-Za-z_]\w*)
    | (?P<number>\.?\d(?:[eEpP][+-]|['.\w])*)
    | (?P<sign><<<|>>>|::|->|.)
    """,
    re.VERBOSE | re.DOTALL,
)
PAIRS = {"(": ")", "[": "]", "{": "}"}


class Word(NamedTuple):
    """A token of C++, and its position."""

    kind: str
    text: str
    start: int
    end: int


class Cores(NamedTuple):
    """The cores of a block: the number of its kind, and the vector cores per cube core.

    The numbers are those of `CoreKind` in include/npusim_ascendc/recorder.h.
    """

    kind: int
    halves: int


VECTOR, CUBE, AI = Cores(0, 0), Cores(1, 0), Cores(2, 0)
TASK_TYPES = {
    "KERNEL_TYPE_AIV_ONLY": VECTOR,
    "KERNEL_TYPE_AIC_ONLY": CUBE,
    "KERNEL_TYPE_MIX_AIV_1_0": VECTOR,
    "KERNEL_TYPE_MIX_AIC_1_0": CUBE,
    "KERNEL_TYPE_MIX_AIC_1_1": Cores(1, 1),
    "KERNEL_TYPE_MIX_AIC_1_2": Cores(1, 2),
}
"""asc-devkit, docs/zh/api, KERNEL_TASK_TYPE."""
MARK = "npusim_kernel_"
"""The prefix of the name that marks a `__global__` in the input of the preprocessor."""
WORKSPACE = "__kfc_workspace__"
"""Marks the parameter that the library may write to (asc-devkit, docs/zh/api)."""
OF_THE_CUBE = frozenset(("Mmad", "Matmul", "MatmulImpl", "LoadData", "Fixpipe", "Conv3D"))
"""Names of the API that do not exist on a vector core."""


class Parameter(NamedTuple):
    """A parameter of a kernel."""

    name: str
    is_pointer: bool
    type: str
    """The last word of its type, without pointers."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A `__global__` function."""

    name: str
    parameters: tuple[Parameter, ...]
    cores: Cores | None
    """The cores that the source declares, if it does."""
    is_template: bool
    line: int
    is_defined: bool
    """Whether it is a definition, not only a declaration."""


def kernels(text: str, preprocess: Callable[[str], str] | None = None) -> dict[str, Kernel]:
    """The kernels that *text* defines, by name. Raises AscendCError.

    Text that the preprocessor would remove counts as well, unless a kernel has different cores
    there: then *preprocess*, if given, decides which text remains.
    """
    words = [word for word in words_of(text) if word.kind not in ("blank", "line")]
    starts = [index for index, word in enumerate(words) if word.text == "__global__"]
    try:
        return _kernels(text, words, starts)
    except AscendCError:
        if preprocess is None:
            raise
    marked, done = "", 0
    for index in starts:
        marked += f"{text[done : words[index].end]} {MARK}{index}_ "
        done = words[index].end
    left = preprocess(marked + text[done:])
    return _kernels(text, words, [index for index in starts if f"{MARK}{index}_" in left])


def _kernels(text: str, words: Sequence[Word], starts: Iterable[int]) -> dict[str, Kernel]:
    """The kernels whose `__global__` are the tokens at *starts*."""
    found: dict[str, Kernel] = {}
    for index in starts:
        kernel = _kernel(text, words, index)
        if kernel is None:
            continue
        other = found.get(kernel.name)
        if other and other.is_defined and kernel.is_defined and other.cores != kernel.cores:
            raise AscendCError(
                f"ascendc: {kernel.name} must have the same cores wherever a source defines it, "
                f"but has others in line {other.line} than in line {kernel.line}, and npusim does "
                f"not evaluate #if here; leave one of them"
            )
        if other is None or kernel.is_defined:
            found[kernel.name] = kernel
    return found


def with_launches(text: str, cores: dict[str, Cores]) -> str:
    """*text* with each `f<<<blocks, ...>>>(...)` replaced by a call, line for line.

    *cores* has the cores of a block of each kernel.
    """
    words = [word for word in words_of(text) if word.kind not in ("blank", "line")]
    pieces: list[str] = []
    done = 0
    # A function pointer may point to any of the kernels.
    of_all = VECTOR if len({*cores.values()}) != 1 else next(iter(cores.values()))
    for index, word in enumerate(words):
        if word.text != "<<<":
            continue
        first = _callee(words, index)
        close = next((i for i in range(index, len(words)) if words[i].text == ">>>"), None)
        if close is None or close + 1 == len(words) or words[close + 1].text != "(":
            continue
        last = closing_of(words, close + 1)
        callee = text[words[first].start : word.start]
        grid = text[word.end : words[close].start]
        given = text[words[close + 1].end : words[last].start]
        name = _name(words[first:index])
        own = cores.get(name, of_all)
        pieces += [
            text[done : words[first].start],
            f'::npusim::launch("{name}", {{{own.kind}, {own.halves}}}, '
            f"::npusim::Grid({grid}).blocks, ::npusim::pointers({_on_one_line(given)}), "
            f"[&] {{ {callee}({given}); }})",
        ]
        done = words[last].end
    return "".join([*pieces, text[done:]])


def with_workspaces(text: str) -> str:
    """*text* in which each kernel first declares its `__kfc_workspace__` parameter."""
    words = [word for word in words_of(text) if word.kind not in ("blank", "line")]
    pieces: list[str] = []
    done = 0
    for index, word in enumerate(words):
        opening = _opening(words, index) if word.text == "__global__" else None
        if opening is None:
            continue
        closing = closing_of(words, opening)
        given = words[opening + 1 : closing]
        marked = next((i for i, each in enumerate(given) if each.text == WORKSPACE), None)
        is_defined = closing + 1 < len(words) and words[closing + 1].text == "{"
        if marked is None or not is_defined:
            continue
        own = list(takewhile(lambda each: each.text != ",", given[marked + 1 :]))
        name = next(each.text for each in reversed(own) if each.kind == "name")
        brace = words[closing + 1].end
        pieces += [text[done:brace], f" ::AscendC::SetSysWorkspace((GM_ADDR)({name}));"]
        done = brace
    return "".join([*pieces, text[done:]])


def with_watches(text: str, watches: Iterable[tuple[int, str]]) -> str:
    """*text* with code that prints tensors, each after the statement that ends in a line.

    *watches* are line numbers and expressions. Raises AscendCError.
    """
    wanted = sorted(watches, reverse=True)
    starts = [0, *(match.end() for match in re.finditer("\n", text)), len(text) + 1]
    for number, name in wanted:
        ends = [
            word.end
            for word in words_of(text)
            if word.text == ";" and 0 < number < len(starts)
            if starts[number - 1] <= word.start < starts[number]
        ]
        if not ends:
            raise AscendCError(
                f"ascendc: --watch {number}:{name} must name a line in which a statement ends, but "
                f"line {number} has none; name the line of its semicolon"
            )
        shown = f' ::npusim::watch("{name}", {number}, {name});'
        text = text[: ends[-1]] + shown + text[ends[-1] :]
    return text


def has_main(text: str) -> bool:
    """Whether *text* contains the token main."""
    return any(word.text == "main" for word in words_of(text) if word.kind == "name")


def texts_of(file: Path) -> dict[Path, str]:
    """The text of *file*, and of the headers that it includes relative to its folder.

    Raises AscendCError.
    """
    if not file.is_file():
        raise AscendCError(
            f"ascendc: {file} must be a source of C++, but there is no such file; check the path"
        )
    found: dict[Path, str] = {}
    waiting = [file]
    while waiting:
        path = waiting.pop(0)
        if path in found or not path.is_file():
            continue
        found[path] = path.read_text()
        names = re.findall(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', found[path], re.MULTILINE)
        waiting += [path.parent / name for name in names]
    return found


def other_sources(files: Iterable[Path], cores: dict[str, Cores]) -> dict[Path, str]:
    """The compiler's input for the additional *files* of a program."""
    found = {}
    for file in files:
        text = with_launches(with_workspaces(texts_of(file)[file]), cores)
        found[file] = f'#line 1 "{file.resolve()}"\n{text}'
    return found


def on_chip(cores: Cores, spec: DeviceSpec) -> Cores:
    """The cores of a block on *spec*: chips without cube cores have one kind for all."""
    return cores if spec.arch == "2201" else AI


def _on_one_line(text: str) -> str:
    without = re.sub(r"//[^\n]*", "", text)
    return " ".join(without.split())


def words_of(text: str) -> Iterator[Word]:
    """The tokens of *text*, including blanks and preprocessor lines."""
    for match in WORDS.finditer(text):
        assert match.lastgroup is not None
        kind = "text" if match.lastgroup == "mark" else match.lastgroup
        yield Word(kind, match.group(), match.start(), match.end())


def _opening(words: Sequence[Word], index: int) -> int | None:
    """The opening parenthesis of the parameters after the `__global__` at token *index*."""
    for number in range(index, len(words)):
        if words[number].text in (";", "{", "}"):
            return None
        is_qualifier = words[number - 1].text in ("__mix__", "__attribute__")
        if words[number].text == "(" and not is_qualifier:
            return number
    return None


def _kernel(text: str, words: Sequence[Word], index: int) -> Kernel | None:
    """The kernel whose `__global__` is token *index*."""
    opening = _opening(words, index)
    if opening is None:
        return None
    name, closing = words[opening - 1].text, closing_of(words, opening)
    follows = words[closing + 1].text if closing + 1 < len(words) else ";"
    body = words[closing + 1 : closing_of(words, closing + 1)] if follows == "{" else []
    first = index
    while first > 0 and words[first - 1].text not in (";", "}", "{"):
        if "#" in text[words[first - 1].end : words[first].start]:
            break
        first -= 1
    return Kernel(
        name=name,
        parameters=tuple(_parameters(words[opening + 1 : closing])),
        cores=_cores(words[first:opening], body),
        is_template=any(word.text == "template" for word in words[first:index]),
        line=text.count("\n", 0, words[opening - 1].start) + 1,
        is_defined=follows != ";",
    )


def _parameters(words: Sequence[Word]) -> Iterator[Parameter]:
    """The parameters: the name of each is the last token before a comma, a default or the end."""
    depth, name, kind, is_pointer = 0, "", "", False
    for word in [*words, Word("sign", ",", 0, 0)]:
        if word.text in ("(", "[", "{", "<"):
            depth += 1
        elif word.text in (")", "]", "}", ">"):
            depth -= 1
        elif word.text == "," and depth == 0:
            if name:
                yield Parameter(name, is_pointer, kind)
            name, kind, is_pointer = "", "", False
        elif depth == 0:
            is_pointer |= word.text in ("*", "GM_ADDR")
            if word.kind == "name":
                name, kind = word.text, name


def _cores(qualifiers: Sequence[Word], body: Sequence[Word]) -> Cores | None:
    """The cores according to qualifiers, or to a task type in the body."""
    texts = [word.text for word in qualifiers]
    if "__mix__" in texts:
        numbers = [word.text for word in qualifiers[texts.index("__mix__") :]][1:]
        sizes = [int(each) for each in numbers[: numbers.index(")")] if each.isdigit()]
        if sizes[:1] == [0]:
            return VECTOR
        return Cores(1, sizes[1] if len(sizes) > 1 else 2)
    if "__cube__" in texts:
        return CUBE
    if "__vector__" in texts:
        return VECTOR
    return next((TASK_TYPES[word.text] for word in body if word.text in TASK_TYPES), None)


def guessed_cores(text: str) -> Cores:
    """The default cores of a block: cube cores with vector cores if both are used."""
    names = {word.text for word in words_of(text) if word.kind == "name"}
    if not names & OF_THE_CUBE:
        return VECTOR
    return Cores(1, 2) if names & {"Matmul", "MatmulImpl", "VECIN", "VECCALC"} else CUBE


def _callee(words: Sequence[Word], index: int) -> int:
    """The first token of the name before token *index*, with its template arguments."""
    first = index - 1
    if words[first].text == ">":
        depth = 0
        while True:
            depth += {">": 1, "<": -1, ">>>": 3}.get(words[first].text, 0)
            if depth == 0:
                break
            first -= 1
        first -= 1
    while words[first - 1].text == "::":
        first -= 2 if words[first - 2].kind == "name" else 1
    return first


def _name(callee: Sequence[Word]) -> str:
    """The name of a function without its namespaces and template arguments."""
    texts = [word.text for word in callee]
    return texts[texts.index("<") - 1 if "<" in texts else -1]


def closing_of(words: Sequence[Word], index: int) -> int:
    """The index of the bracket that closes token *index*; the last token if none does."""
    opening, closing, depth = words[index].text, PAIRS[words[index].text], 0
    for place in range(index, len(words)):
        depth += (words[place].text == opening) - (words[place].text == closing)
        if depth == 0:
            return place
    return len(words) - 1
