"""Signals during a simulation: handlers run at once, and their exceptions end the engine.

Python runs signal handlers in the main thread, between two bytecode instructions. While the main
thread is in C, a signal waits, and an exception of a handler inside a callback from C, or inside a
process of SimPy, is lost or converted. An engine therefore runs in a separate thread, and the main
thread only waits for it.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from threading import Lock, current_thread, main_thread
from typing import Generic, TypeVar

from npusim.data.platform import HAS_THREADS

__all__ = ["unless_interrupted"]

Found = TypeVar("Found")


def unless_interrupted(work: Callable[[], Found], stop: Callable[[], None]) -> Found:
    """Return the result of *work*; raises what it raises.

    If a signal handler raises meanwhile, *stop* is called, after which *work* must end soon; then
    the exception of the handler propagates. *work* is called directly outside the main thread,
    where no handler runs, and where no thread can be started.
    """
    if not HAS_THREADS or current_thread() is not main_thread():
        return work()
    job = _Job(work)
    try:
        _thread.start_new_thread(copy_context().run, (job.run,))
        job.done.acquire()
    except BaseException:
        stop()
        job.cancel()
        raise
    return job.result()


class _Job(Generic[Found]):
    """A call in a thread that may be abandoned at any time."""

    def __init__(self, work: Callable[[], Found]) -> None:
        self._work = work
        self._found: list[Found] = []
        self._error: BaseException | None = None
        self._turn = Lock()
        self._is_cancelled = self._has_begun = False
        self.done = Lock()
        """Held until the call ends."""
        self.done.acquire()

    def run(self) -> None:
        with self._turn:
            if self._is_cancelled:
                return
            self._has_begun = True
        try:
            self._found.append(self._work())
        except BaseException as error:
            self._error = error
        finally:
            self.done.release()

    def cancel(self) -> None:
        """Prevent the call from starting, or wait for its end, whatever signals arrive."""
        with self._turn:
            self._is_cancelled = True
        while self._has_begun and not self._found and self._error is None:
            with suppress(BaseException):
                self.done.acquire()

    def result(self) -> Found:
        if self._error is not None:
            raise self._error
        return self._found[0]
