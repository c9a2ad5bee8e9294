"""`npusim explain`: what an operator computes, who takes a call, and how it is split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import accumulate

import typer
from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.table import Table
from rich.text import Text

from npusim import ops
from npusim.cli.call import UsageError, arguments, chip, parameters
from npusim.cli.operators import attribute_table, described
from npusim.cli.screen import GAP, INDENT, PAGE_COLUMNS, RemarkedTable, folded, show, table
from npusim.data.json import json_text
from npusim.data.tensor import TensorSpec
from npusim.explain.operator import Explanation, explain, formula

__all__ = ["explain_operator"]


def explain_operator(
    op: str,
    device: str,
    inputs: Sequence[str],
    attributes: Sequence[str],
    settings: Sequence[str],
    as_json: bool,
) -> None:
    """Explain *op*, and a call of it where any of its arguments are given."""
    parameters(op)  # an unknown operator is reported before an unknown device
    if op not in ops.names():
        raise UsageError(
            f"explain: OP must be an operator, one of {', '.join(ops.names())}, not the kernel "
            f"{op}; use npusim run for your own kernel"
        )
    spec = chip(device, settings, "explain")
    found = None
    if inputs or attributes:
        call_arguments = arguments(op, inputs, attributes, "explain")
        found = explain(op, spec, call_arguments)
    caption, written, notes = formula(op)
    if as_json:
        facts = {"op": op, "summary": caption, "formula": written, "notes": notes}
        facts["support"] = ops.support_text(ops.load(op))
        typer.echo(json_text(facts | ({"call": _facts(found)} if found else {})))
        return
    parts: list[RenderableType] = [
        _signature(op),
        Text(f"{caption}\n"),
        Text(folded(written, first=INDENT, then=2 * INDENT)),
    ]
    if found is None:
        listing = attribute_table(op)
        parts += [Text(f"\n{folded(notes)}\n"), *_support(op)]
        parts += [] if listing is None else [Text(), listing]
        parts += [Text("\nWith -i and -a it explains a call.")]
    else:
        parts += [Text(f"\nnpusim explain {op} says what the words mean."), *_call(found)]
    show(Group(*parts))


def _signature(op: str) -> Text:
    text = Text(folded(op + described(op)["signature"], then=INDENT))
    text.stylize("bold", 0, len(op))
    return text


def _support(op: str) -> list[RenderableType]:
    """What goes together: as many columns as a page has, and the others below each row."""
    header, *lines = ops.support_table(ops.load(op))
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    ends = accumulate(widths, lambda end, width: end + GAP + width)
    fitting = sum(end <= PAGE_COLUMNS for end in ends)
    listing = RemarkedTable(*header[:fitting])
    for line in lines:
        others = zip(header[fitting:], line[fitting:], strict=True)
        remark = "; ".join(f"{name} {cell}" for name, cell in others if cell not in ("", "-"))
        listing.add_row(*line[:fitting], remark=remark)
    is_whole = fitting == len(header)
    return [listing] if is_whole else [listing, Text("What a row does not name must be left out.")]


# ---- a call ----


def _call(found: Explanation) -> list[RenderableType]:
    parts: list[RenderableType] = [Text(), Constrain(_lines(found), PAGE_COLUMNS), Text()]
    lines = Table.grid(padding=(0, 2))
    lines.add_column(style="bold")
    lines.add_column(overflow="fold")
    lines.add_row("chip", found.device)
    if not found.outputs:
        lines.add_row("refused", Text(_refusal(found)))
        return [*parts, Constrain(lines, PAGE_COLUMNS)]
    if found.earlier:
        lines.add_row("launched first", Text(", ".join(found.earlier)))
    for name, spec in found.kernel_inputs.items():
        lines.add_row(f"in   {name}", Text(_describe(spec)))
    for name, spec in found.outputs.items():
        lines.add_row(f"out  {name}", Text(_describe(spec)))
    if found.template is not None:
        reason = f": {found.reason}" if found.reason else ""
        lines.add_row("template", Text(f"{found.template}{reason}"))
    if found.plan is None:
        lines.add_row("tiling", "none, for no kernel runs")
    else:
        for name, value in found.plan.items():
            lines.add_row(f"tiling {name}", Text(str(value)))
    return [*parts, Constrain(lines, PAGE_COLUMNS)]


def _refusal(found: Explanation) -> str:
    own = next(line for line in found.lines if line.device == found.device)
    return own.refusal or ""


def _describe(spec: TensorSpec) -> str:
    layout = "" if spec.layout == "ND" else f" {spec.layout}"
    return f"{spec.dtype} {spec.shape}{layout}{', transposed' if spec.transposed else ''}"


def _lines(found: Explanation) -> Table:
    """What each product line makes of the call, and what else it would take."""
    listing = table("product line", "the call", "tensor", "could be, all else as it is")
    for line in found.lines:
        verdict = "taken" if line.refusal is None else "refused"
        cells: list[tuple[str, str]] = []
        for names, dtypes in line.dtypes.items():
            also = line.layouts.get(names[0], ()) if len(names) == 1 else ()
            layouts = f" as {' or '.join(also)}" if also else ""
            cells.append((" + ".join(names), f"{', '.join(dtypes) or 'nothing'}{layouts}"))
        for place, (tensors, could) in enumerate(cells or [("", "")]):
            first = (Text(line.series, "bold"), verdict) if place == 0 else ("", "")
            listing.add_row(*first, Text(tensors), Text(could))
        if line.refusal is not None:
            listing.add_row("", "", "", Text(line.refusal))
    return listing


def _facts(found: Explanation) -> dict[str, object]:
    facts = asdict(found)
    for line in facts["lines"]:
        line["dtypes"] = {" + ".join(names): kinds for names, kinds in line["dtypes"].items()}
    return facts
