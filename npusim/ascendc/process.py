"""The process in which a program runs, and the messages that it sends.

Program and simulator share global memory. The program records the calls of its kernels; the
simulator plays them back when a kernel reads a value, or at the end of a launch.
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
"""The memory that programs can allocate: 64 GiB, as on a card of Atlas A2, mapped lazily."""
MEMORY_START = 1 << 44
"""The address of a program's global memory, so that addresses are known before it starts."""
HEADER = struct.Struct("<2q")
GRACE_S = 2.0
"""The time that a program has to report its position after the time limit."""


class Message(IntEnum):
    """The kinds of messages of a program: the same table is in runtime/recorder.cpp."""

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
    """*command* runs during a `with` block; *timeout_s* limits it.

    It prints to the file descriptor *stdout*, by default to that of this process.
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
        """Global memory, which both processes share."""
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
        """The next message of the program; None once it has ended.

        Raises StuckError if it exceeds the time limit and does not report its position.
        """
        header = self._read(HEADER.size)
        if header is None:
            return None
        kind, size = HEADER.unpack(header)
        payload = self._read(size)
        return None if payload is None else Said(Message(kind), payload)

    def answer(self, data: bytes) -> None:
        """Let the program continue with *data*."""
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
        """Wait for data to read; after the time limit, ask the program for its position."""
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
    """A file without a name, in memory if the system supports it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("npusim")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
