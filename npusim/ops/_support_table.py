"""The rows of support as a table, for the command line and the documents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from npusim.ops._protocol import Operator
from npusim.ops._signature import Parameter
from npusim.ops._support import MAX_RANK, Operands, Row, dimensions, listed


def support_table(operator: Operator) -> tuple[tuple[str, ...], ...]:
    """A header and lines of text: product lines, tensors, attributes, and the kernel if types alone
    decide it."""
    support = _merged(operator.support)
    named = [
        each for each in operator.parameters if any(each.name in row.entries for row in support)
    ]
    has_templates = any(row.template for row in support)
    header = ("product lines", *(each.name for each in named), *["template"] * has_templates)
    lines = (
        (
            ", ".join(row.on),
            *(_cell(row.entries.get(each.name), each) for each in named),
            *[row.template or ""] * has_templates,
        )
        for row in support
    )
    return header, *lines


def support_text(operator: Operator) -> str:
    """The same as a Markdown table, which is also readable as plain text."""
    header, *lines = support_table(operator)
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    ruled = [header, tuple("-" * width for width in widths), *lines]
    return "\n".join(
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |"
        for line in ruled
    )


def _cell(entry: Any, parameter: Parameter) -> str:
    """What a tensor or an attribute may be; empty for a tensor that must be left out."""
    if entry is None:
        return "-" if parameter.is_tensor else "any"
    if not isinstance(entry, Operands):
        return ", ".join(map(str, entry))
    words = ", ".join(dtype.name for dtype in entry.dtypes)
    if entry.layouts != ("ND",):
        words += f" as {listed(entry.layouts)}"
    if entry.shape:
        words += f" of shape ({', '.join(entry.shape.split())})"
    elif entry.ranks != (0, MAX_RANK):
        words += f" of {dimensions(*entry.ranks)}"
    if parameter.is_list and entry.most == 1:
        words += ", one"
    must = entry.presence == "required" or not parameter.may_be_none
    return words if must else f"{words}, or None"


def _merged(support: tuple[Row, ...]) -> list[Row]:
    """Merge rows that differ in the types of one tensor."""
    found: list[Row] = []
    for row in support:
        if found and (both := _both(found[-1], row)) is not None:
            found[-1] = both
        else:
            found.append(row)
    return found


def _both(first: Row, second: Row) -> Row | None:
    """Both as one row; None unless they differ only in the types of one tensor."""
    if (first.on, first.template) != (second.on, second.template):
        return None
    entries = dict(first.entries)
    names = {*first.entries, *second.entries}
    others = [name for name in names if first.entries.get(name) != second.entries.get(name)]
    if len(others) != 1 or not isinstance(first.entries.get(others[0]), Operands):
        return None
    (name,) = others
    one, other = first.operands(name), second.operands(name)
    if replace(one, dtypes=()) != replace(other, dtypes=()):
        return None
    entries[name] = replace(one, dtypes=tuple(dict.fromkeys((*one.dtypes, *other.dtypes))))
    return Row(on=first.on, template=first.template, **entries)
