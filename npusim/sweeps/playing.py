"""Calls timed: here, in processes of this machine, or by any executor of concurrent.futures."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from dataclasses import dataclass, replace
from itertools import islice
from queue import SimpleQueue
from time import monotonic

from npusim.check.hazards import HazardError
from npusim.data.errors import DocumentWarning, OpError, SlowEngineWarning
from npusim.reports.bounds import finding
from npusim.run.call import play
from npusim.run.disk_cache import own_digest
from npusim.run.processes import processes
from npusim.run.result import Result
from npusim.sweeps.cells import Call
from npusim.sweeps.errors import SweepError

__all__ = ["Outcome", "played", "timed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a call took, or why it was refused."""

    time_us: float | None = None
    """The Task Duration of all kernels of the call."""
    launch_us: float | None = None
    cycles: int | None = None
    """Cycles of the slowest core of the operator's own kernel."""
    template: str | None = None
    reason: str | None = None
    """Why that template."""
    block_dim: int | None = None
    gm_bytes: int | None = None
    l2_bytes: int | None = None
    """What its own kernel moves from and to global memory, and the L2."""
    why: str | None = None
    """What bounds it."""
    error: str | None = None


Answer = tuple[bytes, Outcome]
"""The digest of the npusim that answers, and what it found."""
IN_FLIGHT = 1024
"""Calls that an executor is handed at once: more than most clusters have threads."""
BATCH = 16
ALONE_S = 2.0
"""About what a process takes to start: what is done by then is done without any."""
TRIES = 3
"""Times that processes of this machine are started, where one ends that should not."""


def timed(call: Call) -> Answer:
    """Time *call*; a refusal is an answer, too."""
    with warnings.catch_warnings():
        # The row says what came out, and nobody reads what a worker prints.
        for category in (DocumentWarning, SlowEngineWarning):
            warnings.simplefilter("ignore", category)
        try:
            options = replace(call.options, values=False)
            found = _outcome(play(call.op, (), call.arguments, call.spec, options))
        except (OpError, HazardError, ValueError, TypeError) as error:
            found = Outcome(error=" ".join(str(error).split()))
        except MemoryError:
            found = Outcome(error="sweep: a call must fit into memory; give it fewer elements")
    return own_digest(with_built=False), found


def _outcome(run: Result) -> Outcome:
    return Outcome(
        time_us=run.time_us,
        launch_us=run.launch_us,
        cycles=run.cycles,
        template=run.template,
        reason=run.reason,
        block_dim=run.plan.block_dim if run.plan else 0,
        gm_bytes=run.trace.gm_bytes if run.trace else 0,
        l2_bytes=run.trace.l2_bytes if run.trace else 0,
        why=finding(run) if run.trace else "no kernel runs",
    )


Work = Mapping[str, Call]
"""Calls by their keys."""
Pending = dict[Future[Answer], str]
"""What an executor has at hand, with the keys."""
Outcomes = Generator[tuple[str, Outcome], None, None]


def played(work: Work, executor: Executor | None, jobs: int) -> Outcomes:
    """The outcome of each call of *work*, as they come: by *executor*, or by *jobs* processes here,
    which start where the work takes longer than they do.

    Raises SweepError where workers are lost, or have another npusim.
    """
    if executor is not None:
        return _given(work.items(), executor)
    return _in_processes(work, jobs) if jobs > 1 else _alone(work)


def _alone(work: Work) -> Outcomes:
    for key, call in work.items():
        yield key, timed(call)[1]


def _in_processes(work: Work, jobs: int) -> Outcomes:
    left = dict(work)
    end_s = monotonic() + ALONE_S
    for key, call in work.items():
        if monotonic() > end_s:
            break
        del left[key]
        yield key, timed(call)[1]
    if not left:
        return
    for _ in range(TRIES):
        try:
            with processes(min(jobs, len(left))) as pool:
                for key, outcome in _by(pool, tuple(left.items()), {}):
                    del left[key]
                    yield key, outcome
            return
        except BrokenExecutor:
            continue  # a process was killed: for want of memory, say
    raise SweepError(
        f"sweep: processes must live until their calls are done, but {TRIES} times one was killed "
        f"with {len(left)} calls left, perhaps for want of memory; take fewer jobs, and keep calls "
        f'of a script below if __name__ == "__main__"'
    )


def _given(work: Iterable[tuple[str, Call]], executor: Executor) -> Outcomes:
    pending: Pending = {}
    try:
        yield from _by(executor, work, pending)
    except (BrokenExecutor, CancelledError, OSError) as error:
        what = str(error) or "it gave them up"
        raise SweepError(
            f"sweep: the executor must last until all calls are done, but: {what}; start it anew"
        ) from None
    finally:
        for future in pending:
            future.cancel()


def _by(executor: Executor, work: Iterable[tuple[str, Call]], pending: Pending) -> Outcomes:
    left = iter(work)
    # Not `wait`, which holds the locks of all futures: interrupted in it, none would ever end.
    finished: SimpleQueue[Future[Answer]] = SimpleQueue()
    while True:
        batch = tuple(islice(left, min(BATCH, IN_FLIGHT - len(pending))))
        for key, call in batch:
            future = executor.submit(timed, call)
            pending[future] = key
            future.add_done_callback(finished.put)
        if not pending:
            return
        # To hand all of them over may take long; what is done meanwhile is reported at once.
        while pending and not (batch and finished.empty()):
            future = finished.get()
            yield pending.pop(future), _answer(future)
            if finished.empty():
                break


def _answer(future: Future[Answer]) -> Outcome:
    error = future.exception()
    if error is not None and _is_lost(error):
        return Outcome(
            error="sweep: a worker must live until its call is done, but each that had this one "
            "was killed, perhaps for want of memory; give workers more, or take fewer a machine"
        )
    digest, outcome = future.result()
    if digest != own_digest(with_built=False):
        raise SweepError(
            "sweep: workers must run this very npusim, but one runs another; install the same there"
        )
    return outcome


def _is_lost(error: BaseException) -> bool:
    """Whether Dask gave a call up, whose workers died one after the other."""
    dask = sys.modules.get("distributed")
    return dask is not None and isinstance(error, dask.KilledWorker)
