"""Flags between cores: where all cores of a kind wait for each other."""

from __future__ import annotations

from npusim.devices.schema import Pipe
from npusim.kernel.builder import Builder

__all__ = ["sync_all"]

__kernel_vocabulary__ = True


def sync_all(builder: Builder, done: Pipe, go: Pipe, event: int, tell: int | None = None) -> None:
    """Hold pipe *go* until pipe *done* of every core of this kind has come here (SyncAll).

    Flag *event* is that of all cube cores, or of all vector cores, of the launch. With *tell*, that
    flag is then raised for the other cores of the group, which wait for this kind of core by it.
    """
    builder.cross_core_set_flag("all", done, event)
    builder.cross_core_wait_flag("all", go, event)
    if tell is not None:
        builder.cross_core_set_flag("group", go, tell)
