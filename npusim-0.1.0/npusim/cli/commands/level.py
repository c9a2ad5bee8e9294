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
        help="What timelines of other tools and of reports show: every micro-op, or a summary in "
        "which most are joined, call by call. Unless given, the summary where there are too many.",
    ),
]
