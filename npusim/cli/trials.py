"""The trials behind what bounds a run, as `npusim run --prove` prints them."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from npusim.cli.screen import table
from npusim.reports import style
from npusim.reports.causes import CAUSES
from npusim.reports.trials import numbers_of
from npusim.run.result import Result
from npusim.trace import Trial

__all__ = ["trial_tables"]


def trial_tables(run: Result) -> Group:
    """What was made faster, how long the run took then, what that gained, and every number that
    was changed."""
    before_us = run.time_us or 0.0
    gains = table("tried: a little faster", "us", "gained", "so its share is")
    numbers = table("number of the chip", "in the run", "in the trial")
    values = numbers_of(run.device)
    for trial in run.trials:
        gain = 1 - trial.time_us / before_us
        gains.add_row(
            *(_named(trial), f"{trial.time_us:.2f}", f"{100 * gain:.2f} %"),
            style.percent(trial.share(before_us)),
        )
        if len(trial.causes) == 1:
            for name, value in trial.settings.items():
                numbers.add_row(name, f"{values[name]:g}", f"{value:g}")
    return Group(Text(), _right(gains, 1, 2, 3), Text(), _right(numbers, 1, 2))


def _named(trial: Trial) -> str:
    return " and ".join(CAUSES[cause].words for cause in trial.causes)


def _right(listing: Table, *columns: int) -> Table:
    for number in columns:
        listing.columns[number].justify = "right"
    return listing
