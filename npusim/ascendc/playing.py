"""Play back what a kernel has recorded so far, so that it can read the values it computed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from npusim.ascendc.calls.table import GM
from npusim.devices.schema import DeviceSpec
from npusim.isa import MicroOp, moved
from npusim.values.buffers import Buffers
from npusim.values.semantics import Memory, State, run

__all__ = ["Playing"]


class Playing:
    """The cores of a launch on global *memory*; *kinds* has the kind of each core."""

    def __init__(
        self,
        spec: DeviceSpec,
        kinds: list[str],
        memory: NDArray[np.uint8],
        micro_ops: Callable[[int, int], tuple[MicroOp, ...]],
    ) -> None:
        self._spec, self._kinds, self._micro_ops = spec, kinds, micro_ops
        self._memories = {GM: Memory(memory)}
        self._states: dict[int, State] = {}

    def play(self, records: NDArray[np.void]) -> None:
        """Compute *records* in the order of recording."""
        rows = zip(*(records[name].tolist() for name in ("called", "core", "address")), strict=True)
        for called, core, address in rows:
            ops = self._micro_ops(called, core)
            if address >= 0:
                ops = tuple(moved(op, address) for op in ops)
            run(ops, self._state(core))

    def read(self, core: int, buffer: str, address_bytes: int, nbytes: int) -> bytes:
        """Bytes of a buffer of *core*."""
        raw = self._state(core).buffers.raw(buffer)
        return bytes(raw[address_bytes : address_bytes + nbytes])

    def _state(self, core: int) -> State:
        if core not in self._states:
            buffers = Buffers(self._spec.cores[self._kinds[core]])
            self._states[core] = State(buffers, self._memories, self._spec.half_overflow)
        return self._states[core]
