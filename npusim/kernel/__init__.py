"""Programs, and the builder that kernels write them with.

A kernel is written as in Ascend C: claim buffers, let queues carry them from pipe to pipe, and call
one micro-op after the other. The queues set and await the flags, as TPipe and TQue do:

====================  ===========================================================
``slot = q.alloc()``  a free buffer; waits until its last reader is done with it
``q.enque(slot)``     the producer is done: raise the flag
``slot = q.deque()``  the consumer waits for that flag
``q.free(slot)``      the consumer is done: the buffer may be filled again
====================  ===========================================================

With depth 1 the producer waits for the consumer each time; with depth 2 it fills one buffer while
the other is read. Flags can also be placed by hand (:meth:`Builder.set_flag`,
:meth:`Builder.wait_flag`), right or wrong.

Work that comes again and again, a tile at a time, is written once and called
(:meth:`Builder.call`): each :class:`Call` shifts the names of global memory to its own tile, as a
loop on the chip moves its addresses. Whatever looks at a program can look at such a body once.
"""

from npusim.kernel.builder import Builder
from npusim.kernel.program import Binding, Block, Body, Call, Line, Program
from npusim.kernel.queues import ProgramError, Queue, Slot

__all__ = [
    "Binding",
    "Block",
    "Body",
    "Builder",
    "Call",
    "Line",
    "Program",
    "ProgramError",
    "Queue",
    "Slot",
]

__kernel_vocabulary__ = True
