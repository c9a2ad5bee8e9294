"""The trials behind what bounds a run, as `npusim run --prove` prints them."""

from __future__ import annotations

from rich.console import Group
from rich.text import Text

from npusim.cli.screen import table
from npusim.reports import style
from npusim.reports.causes import CAUSES
from npusim.run.result import Result
from npusim.trace import Trial

__all__ = ["trial_table"]


def trial_table(run: Result) -> Group:
    """What was made a twentieth faster, how long the run took then, what that gained, and the
    numbers that were changed, a star for any name; JSON has their values.
    """
    before_us = run.time_us or 0.0
    listing = table("a twentieth faster", "us", "gained", "which is", "by its numbers")
    for trial in run.trials:
        gain = 1 - trial.time_us / before_us
        listing.add_row(
            " and ".join(CAUSES[cause].words for cause in trial.causes),
            f"{trial.time_us:.2f}",
            f"{100 * gain:.2f} %",
            f"{style.percent(trial.share(before_us))} of the time",
            _numbers(trial),
        )
    for column in listing.columns[1:4]:
        column.justify = "right"
    listing.columns[4].overflow = "fold"
    return Group(Text(), listing)


def _numbers(trial: Trial) -> str:
    if len(trial.causes) > 1:
        return "of both"
    return ", ".join(CAUSES[trial.causes[0]].numbers)
