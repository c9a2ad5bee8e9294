"""`npusim model`: a step of decode and one of prefill of a model that is served."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from rich.table import Table
from rich.text import Text

from npusim import models
from npusim.cli.screen import show, table
from npusim.data import folders
from npusim.data.files import content
from npusim.data.json import json_text
from npusim.data.text import counted
from npusim.models.step import Step
from npusim.reports.style import percent

__all__ = ["time_model"]

RECORD = "step.json"
PAGES = {"decode": "decode.html", "prefill": "prefill.html"}
"""Step -> its page."""
MAX_BYTES = 1 << 24
MOST_KERNELS = 12
"""Of a step, those that take longest are printed."""


def time_model(
    config: Path,
    device: str,
    asked: Mapping[str, Any],
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Print, and write if asked, what a step of the model at *config* takes on *device*."""
    model = models.load(config)
    if output is not None:
        folders.check(output, force, KIND)
    step = model.step(device=device, **asked)
    written = []
    if output is not None:
        written = folders.write(lambda new: _fill(new, step), output, KIND, force=force)
    if as_json:
        typer.echo(json_text(step.to_json()))
        return
    show(*_lines(step), Text(), _parts(step), Text(), _kernels(step), *_notes(step))
    if output is not None:
        show(f"\nwrote {', '.join(written)} to {output}")


# ---- files ----


def _made(where: Path) -> frozenset[str]:
    """What an earlier one wrote into *where*; raises ValueError if it wrote none."""
    try:
        facts = json.loads(content(where / RECORD, MAX_BYTES))
    except (OSError, RecursionError):
        facts = None
    if not isinstance(facts, dict) or not {"decode", "prefill", "memory"} <= set(facts):
        raise ValueError(f"model: {RECORD} must be one of a step; write it again")
    return frozenset({RECORD, *PAGES.values()})


KIND = folders.Kind("model", RECORD, _made)


def _fill(new: Path, step: Step) -> list[str]:
    # The pages load what draws; a table does without.
    from npusim.models.report import lead, run_of
    from npusim.reports.model import page

    for name, file in PAGES.items():
        (new / file).write_text(page([run_of(step, name)], lead(step, name)), encoding="utf-8")
    (new / RECORD).write_text(json_text(step.to_json()) + "\n", encoding="utf-8")
    return [*PAGES.values(), RECORD]


# ---- what is printed ----


def _lines(step: Step) -> list[Text]:
    own = step.asked
    cards = f"{own.cards} x {own.device.name}" if own.cards > 1 else own.device.name
    return [
        Text(f"{own.shapes.architecture}, {own.quant}, on {cards}, served by {own.engine.name}"),
        Text(
            f"decode: {counted(own.batch, 'request', 'requests')} of {own.context} tokens: "
            f"{step.decode.tokens_per_s:,.0f} tokens a second, {1e6 / step.tpot_us:.1f} each"
        ),
        Text(
            f"prefill: a prompt of {own.prompt} tokens is read at "
            f"{step.prefill.tokens_per_s:,.0f} tokens a second"
        ),
        Text(f"memory: {step.memory}"),
    ]


def _parts(step: Step) -> Table:
    """The parts of both steps, with shares and error bars."""
    listing = table("", "decode", "share", "off by", "prefill", "share", "off by")
    for column in listing.columns[1:]:
        column.justify = "right"
    both = step.decode.parts.named(), step.prefill.parts.named()
    for name in both[0]:
        cells = []
        for parts, phase in zip(both, (step.decode, step.prefill), strict=True):
            part = parts[name]
            cells += [_ms(part.time_us), percent(part.time_us / phase.time_us), _off(part.off_us)]
        listing.add_row(name, *cells)
    whole = []
    for phase in (step.decode, step.prefill):
        whole += [_ms(phase.time_us), "", _off(phase.parts.off_us)]
    listing.add_row("TPOT, TTFT", *whole)
    return listing


def _ms(time_us: float) -> str:
    return f"{time_us / 1e3:.2f} ms"


def _off(time_us: float) -> str:
    return f"± {time_us / 1e3:.2f}"


def _kernels(step: Step) -> Table:
    """What takes longest in decode, and what the same takes in prefill."""
    listing = table("kernel", "operator", "launches", "decode", "prefill")
    for column in listing.columns[2:]:
        column.justify = "right"
    decode, prefill = step.decode.by_word(), step.prefill.by_word()
    for word, total in list(decode.items())[:MOST_KERNELS]:
        also = prefill.get(word)
        listing.add_row(
            word,
            total.op,
            str(total.launches),
            _ms(total.time_us),
            _ms(also.time_us) if also else "",
        )
    return listing


def _notes(step: Step) -> list[Text]:
    found = [each for phase in (step.decode, step.prefill) for each in phase.stand_ins()]
    if not found:
        return []
    names = ", ".join(dict.fromkeys(found))
    return [Text(), Text(f"timed by kernels that do the same work: {names}")]
