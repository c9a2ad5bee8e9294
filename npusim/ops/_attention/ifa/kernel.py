"""The plan and the programs of kernel IFA: those of kernel FIA, with digits."""

from __future__ import annotations

from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Block
from npusim.ops._attention.description import Attention
from npusim.ops._attention.fia.kernel import Plan, launch, plan_of
from npusim.ops._attention.fia.schedule import schedule
from npusim.ops._attention.ifa.cube import DigitCube
from npusim.ops._attention.ifa.places import DigitMemory
from npusim.ops._attention.ifa.vector import DigitVector

__all__ = ["build", "tile"]


def tile(spec: DeviceSpec, a: Attention, nbytes_of_keys: int, reason: str) -> Plan:
    """Split *a*, whose keys and values take *nbytes_of_keys* together."""
    memory = DigitMemory(schedule(a, spec.cores["aic"].count))
    return plan_of(spec, memory, nbytes_of_keys, "IFA", reason)


def build(spec: DeviceSpec, a: Attention, names: tuple[str, ...], plan: Plan) -> tuple[Block, ...]:
    """Three blocks a group; *names* are those of the call's tensors."""
    memory = DigitMemory(schedule(a, spec.cores["aic"].count))
    return launch(memory, DigitCube(spec, memory), DigitVector(spec, memory), names, plan)
