"""The pipes of a core: when each micro-op starts, and when its result is there.

The scalar unit goes through the program and hands each micro-op to its pipe; pipes take theirs in
order. Inside a core all of that is arithmetic: a micro-op starts when it has been issued, its
pipe is free and the flags it waits for are set. So a pipe runs ahead of the global clock until it
needs a time that is not known yet: that of a flag not set so far, or the end of a copy, which
other cores can delay and which therefore goes through SimPy (temporal decoupling), as flags between
cores do.

``decode`` makes micro-ops ready to be timed, each shared body once; ``lane`` times them, and
``copying`` those that move bytes; ``cross_core_flags`` carries flags from core to core.
"""

from __future__ import annotations

from npusim.timing.pipes.copying import Member
from npusim.timing.pipes.cross_core_flags import CrossCoreFlags
from npusim.timing.pipes.decode import Code, Decoder
from npusim.timing.pipes.lane import Lane

__all__ = ["Code", "CrossCoreFlags", "Decoder", "Lane", "Member"]
