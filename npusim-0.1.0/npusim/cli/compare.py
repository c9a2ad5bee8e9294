"""`npusim compare`: how far two arrays are apart, or the times of runs of models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from npusim.cli.call import UsageError
from npusim.cli.models import are_models, compare_models
from npusim.cli.screen import show, table
from npusim.data.dtypes import Array
from npusim.data.json import Json, json_text
from npusim.data.tensor import Tensor
from npusim.explain.comparison import Comparison, Mismatch, compare
from npusim.run.inputs import parse

__all__ = ["compare_files"]


def compare_files(a: str, b: str, more: Sequence[str], as_json: bool) -> None:
    """Compare what *a* and *b* describe; raises typer.Exit where the accuracy is not reached.

    Folders with runs of models are compared by their times, and there may be *more* of them.
    """
    paths = [Path(each) for each in (a, b, *more)]
    if are_models(paths, "compare"):
        compare_models(paths, as_json)
        return
    if more:
        raise UsageError(
            f"compare: arrays must be two, not {len(paths)}; compare each with the golden one by "
            f"itself"
        )
    found = compare(_array(a), _array(b))
    if as_json:
        typer.echo(json_text(_facts(found)))
    else:
        show(Group(_measures(found), *_worst(found)))
    if not found.is_reached:
        raise typer.Exit(1)


def _array(text: str) -> Array:
    value = parse(text)
    if isinstance(value, Tensor):
        return value.numpy()
    if not isinstance(value, np.ndarray):
        raise UsageError(f"compare: both sides must have values, not {text}; name a file")
    return value


def _measures(found: Comparison) -> Table:
    lines = Table.grid(padding=(0, 2))
    lines.add_column(style="bold")
    lines.add_column()
    one, other = found.dtypes
    types = one if one == other else f"{one} and {other}"
    share = f"{found.mismatches} of {found.count} differ"
    bad = f", {found.not_finite} of them not finite" if found.not_finite else ""
    relative = found.relative_euclidean
    rows = {
        "arrays": f"{types} {found.shape}: {share}{bad}",
        "Cosine": f"{found.cosine:.9g}",
        "MaxAbsErr": f"{found.max_abs:.6g}",
        "MaxRelativeErr": f"{found.max_relative:.6g}",
        "MeanAbsoluteError": f"{found.mean_abs:.6g}",
        "RootMeanSquareError": f"{found.root_mean_square:.6g}",
        "RelativeEuclideanDistance": "undefined" if relative is None else f"{relative:.6g}",
        "max ulps": "undefined for two types" if found.max_ulps is None else str(found.max_ulps),
        "Accuracy Reached or Not": _verdict(found),
    }
    for key, value in rows.items():
        lines.add_row(key, Text(value))
    return lines


def _verdict(found: Comparison) -> str:
    return "Yes" if found.is_reached else "No"


def _worst(found: Comparison) -> list[Any]:
    if not found.worst:
        return []
    listing = table("index", "A", "B", "absolute", "relative", "ulps")
    for column in listing.columns[1:]:
        column.justify = "right"
    for one in found.worst:
        absolute, relative = _errors(one)
        cells = (
            ",".join(map(str, one.index)) or "()",
            *(str(one.a), str(one.b)),
            "" if absolute is None else f"{absolute:.6g}",
            "" if relative is None else f"{relative:.6g}",
            "" if one.ulps is None else str(one.ulps),
        )
        listing.add_row(*(Text(cell) for cell in cells))
    more = found.mismatches - len(found.worst)
    return [Text(), listing, *([Text(f"and {more} more")] if more else [])]


def _errors(one: Mismatch) -> tuple[float | None, float | None]:
    """Absolute and relative error; None where it is not finite, or for a relative one of zero."""
    a, b = float(one.a), float(one.b)
    if not (math.isfinite(a) and math.isfinite(b)):
        return None, None
    # Python's integers lose nothing.
    error = float(abs(one.a - one.b))
    return error, error / abs(b) if b else None


def _facts(found: Comparison) -> dict[str, object]:
    facts = _to_json(asdict(found))
    facts["worst"] = [_to_json(one) for one in facts["worst"]]
    return facts | {"accuracy_reached": found.is_reached}


def _to_json(facts: dict[str, object]) -> Json:
    """*facts* with words for infinity and NaN, which JSON does not have."""
    return {
        key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in facts.items()
    }
