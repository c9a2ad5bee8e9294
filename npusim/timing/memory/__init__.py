"""Global memory, the L2, and the links to them that all cores share.

There are four links: read and write, past the L2 and out of it. What all cores ask for in one cycle
is looked at together when the cycle is over, so that its order makes no difference.
"""

from npusim.timing.memory.l2 import L2, Lines, Use, touched_lines
from npusim.timing.memory.link import PORT_UNITS, Copy, Link
from npusim.timing.memory.shared import Request, SharedMemory

__all__ = [
    "L2",
    "PORT_UNITS",
    "Copy",
    "Lines",
    "Link",
    "Request",
    "SharedMemory",
    "Use",
    "touched_lines",
]
