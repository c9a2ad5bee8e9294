"""How much a timeline shows, as it is typed."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

__all__ = ["Level", "LevelOption"]


class Level(StrEnum):
    """Whether a timeline shows every micro-op, or a summary of them."""

    FULL = "full"
    SUMMARY = "summary"


LevelOption = Annotated[
    Level | None,
    typer.Option(
        "--level",
        help="What timelines show: every micro-op, or a summary with one bar for each loop"
        " iteration. Default: the summary of long runs.",
    ),
]
