"""`npusim compare KERNEL OPERATOR`: a kernel of C++ next to an operator, in tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import cast

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from npusim.ascendc import Build, names_source
from npusim.ascendc.kernel import find
from npusim.cli.call import UsageError, arguments, attribute, chip, options_of, parameters
from npusim.cli.screen import show, table
from npusim.cli.structures import structures
from npusim.data.errors import shown
from npusim.data.json import json_text
from npusim.explain.kernel_comparison import Given, KernelComparison, TilingFunction, compare
from npusim.run.inputs import parse
from npusim.run.user_kernel import load

__all__ = ["Typed", "compare_kernels", "is_kernel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """The words of the command line that are about a kernel and an operator."""

    inputs: list[str]
    attributes: list[str]
    pointers: list[str]
    settings: list[str]

    def check_unused(self, a: str, device: str | None) -> None:
        """Raise UsageError where *a* is no kernel and there are such words."""
        if device is not None or any(getattr(self, field.name) for field in fields(self)):
            raise UsageError(
                f"compare: -d, -i, -a, -p and --set must come with a kernel of C++, such as "
                f"add.cpp:add, not with {a}; leave them out"
            )


def is_kernel(word: str) -> bool:
    """Whether *word* names a kernel of C++."""
    return ":" in word and names_source(word)


def compare_kernels(
    kernel: str,
    others: Sequence[str],
    device: str | None,
    typed: Typed,
    blocks: int | None,
    timeout_s: float | None,
    build: Build,
    as_json: bool,
) -> None:
    """Print *kernel* next to the one operator of *others*; raises typer.Exit if a bit differs."""
    if len(others) != 1:
        raise UsageError(
            f"compare: a kernel must stand next to one operator, not {len(others)}; compare it "
            f"with each by itself"
        )
    if device is None:
        raise UsageError(
            f"compare: it must be said where {kernel} and {others[0]} run; add for example -d A2"
        )
    (op,) = others
    file, _, instance = kernel.partition(":")
    own = find(Path(file), instance, build)
    known = {each.name for each in parameters(op) if "-a" in options_of(each)}
    by_value_only = [each for each in own.parameters if not each.is_pointer]
    names = {each.name for each in by_value_only}
    by_value, attributes = structures("compare", by_value_only, typed.attributes, attribute)
    by_pointer, pointers = structures("compare", own.parameters, typed.pointers, attribute)
    scalars = [word for word in attributes if _name(word) in names]
    rest = [word for word in attributes if word not in scalars or _name(word) in known]
    found = compare(
        own,
        op,
        arguments(op, typed.inputs, rest, "compare"),
        device=chip(device, typed.settings, "compare"),
        blocks=blocks,
        timeout_s=timeout_s,
        pointers={_name(word): _pointer(word) for word in pointers} | by_pointer,
        scalars={_name(word): _scalar(word) for word in scalars} | by_value,
    )
    if as_json:
        typer.echo(json_text(_facts(found)))
    else:
        show(Group(*_shown(found)))
    if not found.is_equal:
        raise typer.Exit(1)


# ---- words ----


def _name(word: str) -> str:
    name, equals, _ = word.partition("=")
    if not equals:
        raise UsageError(
            f"compare: -p and -a must be NAME=VALUE, not {shown(word)}; write for example "
            f"-p tiling=tiling.bin"
        )
    return name


def _pointer(word: str) -> str | Given:
    """What is behind the name of -p."""
    what = word.partition("=")[2]
    made = _made(what)
    if made is not None or what == "none":
        return made
    return parse(what) if ":" in what or what.endswith(".npy") else what


def _scalar(word: str) -> object:
    what = word.partition("=")[2]
    made = _made(what)
    return attribute(what) if made is None else made


def _made(what: str) -> bytes | TilingFunction | None:
    """The bytes of a file, or the function of one; None where *what* names neither."""
    file = what.partition(":")[0]
    if file.endswith(".py"):
        return cast(TilingFunction, load(what))
    return Path(file).read_bytes() if file.endswith(".bin") else None


# ---- tables ----


def _shown(found: KernelComparison) -> list[RenderableType]:
    names = f"{found.kernel.op} (C++)", found.operator.op
    bits = table("output", "elements", "bits", "first at", *names)
    for each in found.outputs:
        words = f"{each.different} differ" if each.different else "equal"
        index = ",".join(map(str, each.first or ()))
        values = map(str, each.values or ("", ""))
        _add(bits, each.name, str(each.count), words, index, *values)
    kinds = table("micro-ops of the first core", *names)
    for kind, counts in found.counts.items():
        _add(kinds, kind, *map(str, counts))
    _add(kinds, "all", *(str(sum(each)) for each in zip(*found.counts.values(), strict=True)))
    times = table("time", *names, "difference")
    cycles = [str(run.cycles) for run in (found.kernel, found.operator)]
    _add(times, "us", *(f"{time:.3f}" for time in found.times_us), f"{found.time_difference:+.2%}")
    _add(times, "cycles", *cycles, "")
    for listing in (bits, kinds, times):
        for column in listing.columns[1:]:
            column.justify = "right"
    parts = [bits] if found.outputs else []
    return [*parts, Text(), kinds, Text(), *map(Text, _order(found, names)), Text(), times]


def _add(listing: Table, *cells: str) -> None:
    listing.add_row(*(Text(cell) for cell in cells))


def _order(found: KernelComparison, names: tuple[str, str]) -> list[str]:
    """Where the order of micro-ops departs, in lines."""
    if found.departure is None:
        return ["The micro-ops are of the same kinds in the same order."]
    steps = found.departure.kernel, found.departure.operator
    width = max(map(len, names))
    return [
        "The order of micro-ops departs first at:",
        *(f"  {name:{width}}  {step or 'ends'}" for name, step in zip(names, steps, strict=True)),
    ]


def _facts(found: KernelComparison) -> dict[str, object]:
    kernel_us, operator_us = found.times_us
    return {
        "kernel": found.kernel.op,
        "operator": found.operator.op,
        "device": found.operator.device.name,
        "blocks": found.kernel.plan.block_dim if found.kernel.plan else None,
        "is_equal": found.is_equal,
        "outputs": [asdict(each) | {"values": _words(each.values)} for each in found.outputs],
        "micro_ops": {
            kind: {"kernel": kernel, "operator": operator}
            for kind, (kernel, operator) in found.counts.items()
        },
        "departure": asdict(found.departure) if found.departure else None,
        "time_us": {"kernel": kernel_us, "operator": operator_us},
        "cycles": {"kernel": found.kernel.cycles, "operator": found.operator.cycles},
        "time_difference": found.time_difference,
    }


def _words(values: tuple[float, float] | None) -> list[float | str] | None:
    """*values* with words for infinity and NaN, which JSON does not have."""
    if values is None:
        return None
    return [value if math.isfinite(value) else str(value) for value in values]
