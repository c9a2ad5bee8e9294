"""What a case ended in: a result, one of npusim's own refusals, or something that must not be."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import npusim

__all__ = ["Case", "Outcome", "outcome_of"]

PACKAGE = str(Path(npusim.__file__).parent) + os.sep
LIMIT_S = 60
"""Processor time of one case: more is counted as a hang."""


class Case(NamedTuple):
    """Something to try, and the words that let a reader try it again."""

    text: str
    run: Callable[[], object]


class Outcome(NamedTuple):
    """How a case ended."""

    kind: str
    """`result`, `refusal` or `finding`."""
    text: str
    """Of a refusal its message, of a finding what happened."""


class _TooLong(BaseException):
    """Raised in the middle of a case that takes longer than LIMIT_S."""


def outcome_of(case: Case) -> Outcome:
    """Run *case*; anything but a result or a refusal of npusim's own is a finding."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        case.run()
    except _TooLong:
        return Outcome("finding", f"no end within {LIMIT_S} s of processor time")
    except Exception as error:
        return _of(error)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    return Outcome("result", "")


def _of(error: Exception) -> Outcome:
    """A refusal if npusim raised *error* on purpose, in words that can be shown."""
    message = str(error)
    if not _is_raised_by_npusim(error):
        return Outcome("finding", "".join(traceback.format_exception(error)[-3:]).strip())
    if ": " not in message or not all(mark.isprintable() or mark == "\n" for mark in message):
        return Outcome("finding", f"a message that says too little or cannot be shown: {message!r}")
    return Outcome("refusal", message)


def _is_raised_by_npusim(error: Exception) -> bool:
    """Whether *error* was raised by a `raise` in npusim, and not by something that it called."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return last.filename.startswith(PACKAGE) and (last.line or "").startswith("raise")
