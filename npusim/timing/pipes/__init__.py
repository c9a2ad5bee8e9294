"""The pipes of a core: when each micro-op starts, and when its result is available.

The scalar unit processes the program and issues each micro-op to its pipe; pipes execute theirs in
order. Within a core this is plain arithmetic: a micro-op starts when it has been issued, its pipe
is free and the flags it waits for are set. So a pipe runs ahead of the global clock until it needs
a time that is not known yet: that of a flag not set so far, or the end of a copy, which other cores
can delay and which therefore goes through SimPy (temporal decoupling), as do flags between cores.

``decode`` prepares micro-ops for timing, each shared body once; ``lane`` times them, ``copying``
those that move bytes; ``cross_core_flags`` passes flags from core to core.
"""

from __future__ import annotations

from npusim.timing.pipes.copying import Member
from npusim.timing.pipes.cross_core_flags import CrossCoreFlags
from npusim.timing.pipes.decode import Code, Decoder
from npusim.timing.pipes.lane import Lane

__all__ = ["Code", "CrossCoreFlags", "Decoder", "Lane", "Member"]
