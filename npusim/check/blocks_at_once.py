"""Blocks that wait for all others must all run at once."""

from __future__ import annotations

from npusim.check.hazards import DeadlockError
from npusim.devices.schema import DeviceSpec
from npusim.isa import CrossCoreWaitFlag
from npusim.kernel.program import Block
from npusim.kernel.table import LaunchTable
from npusim.kernel.waves import most_at_once

__all__ = ["check_at_once"]


def check_at_once(blocks: tuple[Block, ...], spec: DeviceSpec) -> None:
    """Raise DeadlockError if more blocks wait for each other than *spec* has cores for.

    Blocks without a core start only when another block ends (asc-devkit, SyncAll.md, constraints).
    """
    started, most = most_at_once(blocks, spec)
    if started <= most:
        return
    ops = (op for body in LaunchTable.of(blocks).bodies for op in body.ops)
    if any(isinstance(op, CrossCoreWaitFlag) and op.mode == "all" for op in ops):
        raise DeadlockError(
            f"{blocks[0].program.name}: blocks that wait for all others must run at once, but "
            f"{started} are started, of which {spec.name} runs {most}; start at most {most}"
        )
