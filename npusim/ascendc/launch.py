"""A launch: the calls of its cores, the values that they read, and its errors."""

from __future__ import annotations

import signal
import struct
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from npusim.ascendc.calls import micro_ops
from npusim.ascendc.calls.table import POSITIONS, Chip
from npusim.ascendc.errors import AscendCError, CrashError, StuckError
from npusim.ascendc.lines import Lines
from npusim.ascendc.playing import Playing
from npusim.ascendc.process import Message, Process, Said
from npusim.ascendc.recording import Recording
from npusim.check.hazards import DeadlockError
from npusim.devices.schema import CORE_KINDS, DeviceSpec
from npusim.isa import MicroOp, writes_global
from npusim.kernel.program import Line, short_line

__all__ = ["Launch", "kinds_of"]

VECTOR_CORE, CUBE_CORE, AI_CORE = range(3)
"""The numbers of the kinds of cores, as in recorder.h."""


def kinds_of(spec: DeviceSpec, recording: Recording) -> list[str]:
    """The name of each core of a launch, in the numbering of the runtime."""
    first, second = CORE_KINDS[spec.arch]
    if recording.kind == AI_CORE:
        return [first] * recording.blocks
    own = second if recording.kind == VECTOR_CORE else first
    return [own, *[second] * recording.halves] * recording.blocks


class Launch:
    """The activity of *process* from the message that begins a launch to the one that ends it."""

    def __init__(
        self,
        process: Process,
        begun: Said,
        spec: DeviceSpec,
        lines: Lines,
        allocated: Mapping[int, int],
        auto_sync: bool,
    ) -> None:
        self._process, self._spec, self.lines = process, spec, lines
        self._allocated, self.auto_sync = allocated, auto_sync
        self.before: dict[int, NDArray[np.uint8]] = {}
        """The contents of *allocated*, start -> bytes, before the first playback; else empty."""
        self.recording = Recording.of(begun.payload)
        self.kinds = kinds_of(spec, self.recording)
        self._micro_ops: dict[tuple[int, str], tuple[MicroOp, ...]] = {}
        self._played = 0
        self.reads_values = False
        """Whether it has read values, so that its programs depend on them."""

    def run(self) -> Recording:
        """Record to the end; raises the errors of the kernel."""
        if not self.recording.blocks:
            raise AscendCError(
                f"{self.recording.kernel}: a launch must be of at least 1 block, not of 0; see why "
                f"the host code counts none, such as a GetTiling that returns -1"
            )
        while True:
            said = self._process.hear()
            if said is None:
                code = self._process.end()
                raise CrashError(
                    f"{self.recording.kernel}: a kernel must run to its end, but its process ended "
                    f"with code {code} before; take out what ends it"
                )
            match said.kind:
                case Message.RECORDS:
                    self.recording.add(said.payload)
                case Message.READ_LOCAL:
                    self._read_local(*struct.unpack("<4q", said.payload))
                case Message.PLAY:
                    is_played = self._play_stores(*struct.unpack("<q", said.payload))
                    self._process.answer(bytes([is_played]))
                case Message.FINISH:
                    return self.recording
                case _:
                    self._refuse(said)

    def micro_ops(self, number: int, core: int) -> tuple[MicroOp, ...]:
        """The micro-ops of call *number* on *core*; raises AscendCError with its line."""
        key = number, self.kinds[core]
        if key not in self._micro_ops:
            called = self.recording.called[number]
            try:
                found = micro_ops(called, Chip(self._spec, key[1]))
            except AscendCError as error:
                where = self.at(called.addresses)
                raise AscendCError(f"{self.recording.kernel}: {error} ({where})") from None
            self._micro_ops[key] = found
        return self._micro_ops[key]

    def lines_of(self, number: int) -> tuple[Line, ...]:
        """The line of call *number*, and the lines of its callers, the innermost first."""
        return self.lines.calls(self.recording.called[number].addresses)

    def at(self, addresses: tuple[int, ...]) -> str:
        """The lines of *addresses* as text."""
        self.lines.learn(addresses)
        return described(self.lines.calls(addresses))

    @cached_property
    def _playing(self) -> Playing:
        return Playing(self._spec, self.kinds, self._process.memory, self.micro_ops)

    def _play_stores(self, address: int) -> bool:
        """If something was stored to the tensor at *address*, play all; returns whether it was."""
        records = self.recording.records[self._played :]
        start = max((x for x in self._allocated if x <= address), default=0)
        end = start + self._allocated.get(start, 0)
        near = records[(records["address"] >= start) & (records["address"] < end)]
        pairs = np.unique(near[["called", "core"]])
        if not any(map(writes_global, chain(*(self.micro_ops(*x) for x in pairs.tolist())))):
            return False
        self._play()
        return True

    def _play(self) -> None:
        if not self.reads_values:
            for start, nbytes in self._allocated.items():
                self.before[start] = self._process.memory[start : start + nbytes].copy()
        self.reads_values = True
        records = self.recording.records
        self._playing.play(records[self._played :])
        self._played = len(records)

    def _read_local(self, core: int, position: int, address_bytes: int, nbytes: int) -> None:
        self._play()
        found = self._playing.read(core, POSITIONS[position], address_bytes, nbytes)
        self._process.answer(found.ljust(nbytes, b"\0"))

    def _refuse(self, said: Said) -> None:
        """Raise the error that a message reports."""
        kernel, payload = self.recording.kernel, said.payload
        if said.kind is Message.REFUSAL:
            (depth,) = struct.unpack_from("<q", payload)
            addresses = struct.unpack_from(f"<{depth}Q", payload, 8)
            text = payload[8 + 8 * depth :].decode()
            raise AscendCError(f"{kernel}: {text} ({self.at(addresses)})")
        if said.kind is Message.CRASH:
            number, place, address, *calls = struct.unpack(f"<{len(payload) // 8}Q", payload)
            # The address of a crash is the address of the instruction itself.
            where = self.at((address + 1, *calls))
            if number == signal.SIGALRM:
                raise StuckError(
                    f"{kernel}: a kernel must end within {self._process.timeout_s:g} s, but is "
                    f"still at {where}; allow more by --timeout"
                )
            raise CrashError(
                f"{kernel}: the C++ of a kernel must run, but it stops with "
                f"{signal.Signals(number).name} at address {place:#x} ({where})"
            )
        if said.kind is Message.DEADLOCK:
            raise DeadlockError(f"{kernel}: {_waiting(payload)}")
        raise AssertionError(f"{said.kind.name} within a launch")


def described(calls: tuple[Line, ...]) -> str:
    """Lines as text, the innermost first."""
    found = [f"line {number} of {name}" for name, number in map(short_line, calls)]
    return ", called from ".join(found) or "a line that is not known"


def _waiting(payload: bytes) -> str:
    pairs: Iterator[tuple[int, int]] = struct.iter_unpack("<2q", payload)
    listed = ", ".join(f"core {core} for flag {flag}" for core, flag in pairs)
    return (
        f"cores must be able to go on, but these wait for flags between cores that nobody sets: "
        f"{listed}; set them, or start as many blocks as are waited for"
    )
