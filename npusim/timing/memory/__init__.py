"""Global memory, the L2, and their links, which all cores share.

There are four links: reads and writes of global memory, reads and writes of the L2. The requests of
all cores in one cycle are served together at its end, so that their order does not matter.
"""

from npusim.timing.memory.at_launch import L2_STATES, L2State, at_launch
from npusim.timing.memory.carried import Arrival, CarriedL2
from npusim.timing.memory.l2 import (
    L2,
    WHOLE,
    Lines,
    Use,
    resident_share,
    touched_lines,
    unaligned_lines,
)
from npusim.timing.memory.link import PORT_UNITS, Copy, Link
from npusim.timing.memory.shared import Answer, Moved, Request, SharedMemory

__all__ = [
    "L2",
    "L2_STATES",
    "PORT_UNITS",
    "WHOLE",
    "Answer",
    "Arrival",
    "CarriedL2",
    "Copy",
    "L2State",
    "Lines",
    "Link",
    "Moved",
    "Request",
    "SharedMemory",
    "Use",
    "at_launch",
    "resident_share",
    "touched_lines",
    "unaligned_lines",
]
