"""The trials behind what bounds a run, as `npusim run --prove` prints them."""

from __future__ import annotations

from rich.console import Group
from rich.text import Text

from npusim.cli.screen import RemarkedTable
from npusim.reports import style
from npusim.reports.causes import CAUSES
from npusim.run.result import Result

__all__ = ["trial_table"]


def trial_table(run: Result) -> Group:
    """What was made a twentieth faster, how long the run took then, what that gained, and the
    numbers that were changed, a star for any name; JSON has their values.
    """
    before_us = run.time_us or 0.0
    headings = "a twentieth faster, by its numbers", "us", "gained", "which is"
    listing = RemarkedTable(*headings, numbers=slice(1, None))
    for trial in run.trials:
        gain = 1 - trial.time_us / before_us
        causes = [CAUSES[cause] for cause in trial.causes]
        if len(causes) == 1:
            name, remark = causes[0].words, ", ".join(causes[0].numbers)
        else:
            name, remark = "both together", " and ".join(cause.words for cause in causes)
        listing.add_row(
            name,
            f"{trial.time_us:.2f}",
            f"{100 * gain:.2f} %",
            f"{style.percent(trial.share(before_us))} of the time",
            remark=remark,
        )
    return Group(Text(), listing)
