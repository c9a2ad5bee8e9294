"""Flags between cores, by which all cores of a kind wait for each other."""

from __future__ import annotations

from npusim.devices.schema import Pipe
from npusim.kernel.builder import Builder

__all__ = ["sync_all"]

__kernel_vocabulary__ = True


def sync_all(
    builder: Builder, set_pipe: Pipe, wait_pipe: Pipe, event: int, group_event: int | None = None
) -> None:
    """Make *wait_pipe* wait until *set_pipe* of every core of this kind gets here (SyncAll).

    All cube cores, or all vector cores, of the launch share flag *event*. With *group_event*, that
    flag is then set for the other cores of the group, which wait on it for this kind of core.
    """
    builder.cross_core_set_flag("all", set_pipe, event)
    builder.cross_core_wait_flag("all", wait_pipe, event)
    if group_event is not None:
        builder.cross_core_set_flag("group", wait_pipe, group_event)
