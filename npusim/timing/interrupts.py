"""Signals while an engine works: their handlers run at once, and what they raise ends the engine.

Python runs the handler of a signal in the main thread, between two steps of Python code. So while
the main thread is in C, a signal waits, and what a handler raises inside a callback of C, or inside
a process of SimPy, is lost or comes out as something else. An engine therefore works in a thread of
its own, and the main thread does nothing but wait for it.
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
    """What *work* returns; raises what it raises.

    If the handler of a signal raises meanwhile, *stop* is called, after which *work* must end soon;
    then what the handler raised goes on. Outside the main thread, where no handler runs, and where
    no thread can start, *work* is just called.
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
    """A call in a thread that may be given up at any moment."""

    def __init__(self, work: Callable[[], Found]) -> None:
        self._work = work
        self._found: list[Found] = []
        self._error: BaseException | None = None
        self._turn = Lock()
        self._is_cancelled = self._has_begun = False
        self.done = Lock()
        """Held until the call has ended."""
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
        """Let the call not begin; if it has begun, wait for its end, whatever signals come."""
        with self._turn:
            self._is_cancelled = True
        while self._has_begun and not self._found and self._error is None:
            with suppress(BaseException):
                self.done.acquire()

    def result(self) -> Found:
        if self._error is not None:
            raise self._error
        return self._found[0]
