"""The process in which a program runs, and what it says while it does.

Program and simulator share global memory. The program records what its kernels call; the simulator
plays that when a value is asked for, or at the end of a launch.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from npusim.ascendc.errors import StuckError

__all__ = ["MEMORY_START", "Message", "Process", "Said"]

MEMORY_BYTES = 1 << 36
"""What programs can allocate: 64 GiB, as a card of Atlas A2 has. Pages come when they are used."""
MEMORY_START = 1 << 44
"""Where a program has its global memory: so that addresses can be written down before it starts."""
HEADER = struct.Struct("<2q")
GRACE_S = 2.0
"""What a program that is out of time has to say where it is."""


class Message(IntEnum):
    """What a program says: the same table is in runtime/recorder.cpp."""

    LAUNCH = 1
    RECORDS = 2
    READ_LOCAL = 3
    PLAY = 4
    FINISH = 5
    REFUSAL = 6
    CRASH = 7
    DEADLOCK = 8
    ALLOCATE = 9
    RELEASE = 10
    PARAMETERS = 11


class Said(NamedTuple):
    """A message."""

    kind: Message
    payload: bytes


class Process:
    """*command* runs from the beginning to the end of a `with`; *timeout_s* limits it.

    It prints to the file number *stdout*, or where this process does.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        timeout_s: float | None = None,
        stdout: int | None = None,
    ) -> None:
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self.timeout_s = timeout_s
        file = _shared_file()
        os.ftruncate(file, MEMORY_BYTES)
        self._map = mmap.mmap(file, MEMORY_BYTES)
        self.memory: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        """Global memory, which both sides see."""
        self._from, to = os.pipe()
        told, self._to = os.pipe()
        words = f"{to},{told},{file},{MEMORY_BYTES},{MEMORY_START}"
        self._process = subprocess.Popen(
            [str(word) for word in command],
            env=os.environ | {"NPUSIM_ASCENDC": words},
            pass_fds=(to, told, file),
            stdout=stdout,
        )
        for descriptor in (to, told, file):
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._from)
        os.close(self._to)

    def hear(self) -> Said | None:
        """What the program says next; None once it has ended.

        Raises StuckError where it is out of time and does not say where it is.
        """
        header = self._read(HEADER.size)
        if header is None:
            return None
        kind, size = HEADER.unpack(header)
        payload = self._read(size)
        return None if payload is None else Said(Message(kind), payload)

    def answer(self, data: bytes) -> None:
        """Let the program go on with *data*."""
        left = memoryview(data)
        while left:
            left = left[os.write(self._to, left) :]

    def end(self) -> int:
        """Its exit code, once it has ended."""
        return self._process.wait()

    def _read(self, size: int) -> bytes | None:
        parts = []
        while size > 0:
            self._await()
            part = os.read(self._from, min(size, 1 << 20))
            if not part:
                return None
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _await(self) -> None:
        """Wait until there is something to read; a program that is out of time is asked where."""
        if self._deadline is None:
            return
        if select.select([self._from], [], [], max(0.0, self._deadline - time.monotonic()))[0]:
            return
        self._deadline = time.monotonic() + GRACE_S
        self._process.send_signal(signal.SIGALRM)
        if not select.select([self._from], [], [], GRACE_S)[0]:
            raise StuckError(
                f"ascendc: the program must end within {self.timeout_s:g} s, but runs on outside "
                f"of any kernel; allow more by --timeout"
            )


def _shared_file() -> int:
    """A file without a name, in memory where the system can."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("npusim")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
