"""How long each micro-op holds its pipe when nobody else is in the way, in cycles of its core.

Vector: `head + max(repeats x rate, bank cycles) + tail`, a repeat being 256 bytes of the widest
operand; the head is paid when the pipe was drained, the tail before anybody may read the result.
Cube: a cycle a tile and what an Mmad costs beside them. Between the buffers of a core: the start-up
of the path and the bytes at its rate. Copies to and from global memory: bytes as the memory moves
them (whole sectors, whole lines where a burst starts off one), which the links of ``memory`` turn
into time.
"""

from __future__ import annotations

from npusim.devices.schema import Core, DeviceSpec
from npusim.isa import (
    Barrier,
    BroadcastToL0c,
    CopyL0c,
    CopyToL1,
    CrossCoreSetFlag,
    CrossCoreWaitFlag,
    Fixpipe,
    LoadData,
    LoadTable,
    Local,
    MicroOp,
    Mmad,
    ScalarAlu,
    ScalarLoad,
    ScalarLoop,
    ScalarOp,
    ScalarStore,
    SetFlag,
    Trap,
    WaitFlag,
)
from npusim.timing.cost.copies import Charge, charge
from npusim.timing.cost.cycles import Cost
from npusim.timing.cost.matrix import between_buffers, mmad
from npusim.timing.cost.vector import VectorOp, vector

__all__ = ["Charge", "Cost", "charge", "cost"]


def cost(op: MicroOp, spec: DeviceSpec, core: Core) -> Cost:
    """Cycles of *op* on a *core* of *spec*.

    Raises TypeError for copies to and from global memory, whose time other cores decide: see
    `charge`. Raises ValueError where the device does not say what it takes.
    """
    match op:
        case ScalarLoad() | ScalarStore() | ScalarAlu() | Trap():
            return Cost(_scalar(op, spec))
        case ScalarLoop():
            return Cost(op.count * sum(_scalar(part, spec) for part in op.body))
        case SetFlag() | CrossCoreSetFlag():
            return Cost(spec.sync.set_flag_cycles)
        case WaitFlag() | CrossCoreWaitFlag():
            return Cost(spec.sync.wait_flag_cycles)
        case Barrier():
            return Cost(spec.sync.barrier_cycles)
        case Mmad():
            return mmad(op, spec.cube)
        case LoadData() | LoadTable() | CopyL0c() | BroadcastToL0c() | CopyToL1():
            return between_buffers(op, core)
        case Fixpipe(dst=Local()):
            return between_buffers(op, core)
        case _ if isinstance(op, VectorOp):
            return vector(op, spec)
        case _:
            raise TypeError(f"cost: {op} must be charged with the offset of its tensor; use charge")


def _scalar(op: ScalarOp, spec: DeviceSpec) -> int:
    match op:
        case ScalarLoad():
            return spec.scalar.load_cycles
        case ScalarStore():
            return spec.scalar.store_cycles
        case ScalarAlu() | Trap():
            return spec.scalar.alu_cycles
