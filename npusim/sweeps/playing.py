"""Time calls: here, in processes of this machine, or on any executor of concurrent.futures."""

from __future__ import annotations

import pickle
import sys
import warnings
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from queue import SimpleQueue
from time import monotonic

from pydantic import BaseModel, ConfigDict, ValidationError

from npusim.check.hazards import HazardError
from npusim.data.errors import DocumentWarning, OpError, SlowEngineWarning
from npusim.reports.bounds import finding
from npusim.run.call import play
from npusim.run.disk_cache import own_digest, stored_in
from npusim.run.processes import processes
from npusim.run.result import Result
from npusim.sweeps.cells import Call
from npusim.sweeps.errors import SweepError

__all__ = ["Line", "Outcome", "Work", "answered", "played", "timed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The times of a call, or the reason why it was refused."""

    time_us: float | None = None
    """The Task Duration of all kernels of the call."""
    launch_us: float | None = None
    cycles: int | None = None
    """Cycles of the slowest core of the operator's main kernel."""
    template: str | None = None
    reason: str | None = None
    """The reason for the choice of template."""
    block_dim: int | None = None
    gm_bytes: int | None = None
    l2_bytes: int | None = None
    """The bytes that its main kernel moves from and to global memory, and the L2."""
    why: str | None = None
    """Its bottleneck."""
    error: str | None = None


class Line(BaseModel):
    """A finished call, as it is written to files."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    key: str
    outcome: Outcome


Work = tuple[str, Call]
"""A call with its key."""
Answer = tuple[bytes, list[Outcome]]
"""The digest of the npusim that answers, and the outcomes it found."""
IN_FLIGHT = 1024
"""The most pending tasks of an executor: more than most clusters have threads."""
BATCH = 16
MOST_CALLS = 32
"""The most calls in a task: submitting one call takes about as long as submitting ten."""
TASK_S = 0.25
"""After this time a task returns its finished calls, and the rest is submitted again."""
ALONE_S = 2.0
"""About the time to start a process: calls that finish within it need no process."""
TRIES = 3
"""The most times that local processes are started, if one of them dies."""


def answered(task: bytes) -> Answer:
    """The outcomes of the first calls, at least one, of *task*, a pickled list of Work."""
    end_s = monotonic() + TASK_S
    found: list[Outcome] = []
    for work in pickle.loads(task):
        if found and monotonic() >= end_s:
            break
        found.append(timed(*work))
    return own_digest(with_built=False), found


def timed(key: str, call: Call) -> Outcome:
    """The outcome of *call*, from the cache folder under *key*, or simulated now."""
    # A custom kernel may have read anything.
    stored = None if ":" in call.op else stored_in(call.options.cache)
    line = stored.line(key) if stored else None
    if line is not None:
        with suppress(ValidationError):
            found = Line.model_validate_json(line)
            if found.key == key:
                return found.outcome
    try:
        outcome = _timed(call)
    except MemoryError:
        # Another machine may have more memory.
        return Outcome(error="sweep: a call must fit into memory; give it fewer elements")
    if stored:
        stored.add_line(key, Line(key=key, outcome=outcome).model_dump_json().encode())
    return outcome


def _timed(call: Call) -> Outcome:
    """Time *call*; a refusal is also an outcome."""
    # A sweep stores only its rows.
    options = replace(call.options, values=False, cache=False)
    with warnings.catch_warnings():
        # The row holds the outcome, and nobody reads the output of a worker.
        for category in (DocumentWarning, SlowEngineWarning):
            warnings.simplefilter("ignore", category)
        try:
            return _outcome(play(call.op, (), call.arguments, call.spec, options))
        except (OpError, HazardError, ValueError, TypeError) as error:
            return Outcome(error=" ".join(str(error).split()))


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


Pending = dict[Future[Answer], list[Work]]
"""The resources of an executor."""
Outcomes = Generator[tuple[str, Outcome], None, None]


def played(work: Sequence[Work], executor: Executor | None, jobs: int) -> Outcomes:
    """The outcome of each call of *work* by its key, as they finish: on *executor*, or in *jobs*
    local processes, which are started only if the work takes longer than starting them.

    Raises SweepError if workers are lost, or have another npusim.
    """
    if executor is not None:
        return _given(work, executor)
    return _in_processes(work, jobs) if jobs > 1 else _alone(work)


def _alone(work: Iterable[Work]) -> Outcomes:
    for key, call in work:
        yield key, timed(key, call)


def _in_processes(work: Sequence[Work], jobs: int) -> Outcomes:
    left = dict(work)
    end_s = monotonic() + ALONE_S
    for key, outcome in _alone(takewhile(lambda _: monotonic() <= end_s, work)):
        del left[key]
        yield key, outcome
    if not left:
        return
    for _ in range(TRIES):
        try:
            with processes(min(jobs, len(left))) as pool:
                for key, outcome in _by(pool, left.items(), {}):
                    del left[key]
                    yield key, outcome
            return
        except BrokenExecutor:
            continue  # a process was killed, for example because memory ran out
    raise SweepError(
        f"sweep: processes must live until their calls are done, but {TRIES} times one was killed "
        f"with {len(left)} calls left, perhaps for want of memory; take fewer jobs, and keep calls "
        f'of a script below if __name__ == "__main__"'
    )


def _given(work: Iterable[Work], executor: Executor) -> Outcomes:
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


def _by(executor: Executor, work: Iterable[Work], pending: Pending) -> Outcomes:
    left = deque(work)
    alone: deque[Work] = deque()
    """Calls of which one killed its worker: each is tried again in a separate task."""
    # Not `wait`, which holds the locks of all futures: after an interrupt in it, none would end.
    finished: SimpleQueue[Future[Answer]] = SimpleQueue()
    while True:
        tasks = [_task(left, alone) for _ in range(min(BATCH, IN_FLIGHT - len(pending)))]
        for task in filter(None, tasks):
            # Dask inspects each part of an argument, but not bytes.
            future = executor.submit(answered, pickle.dumps(task))
            pending[future] = task
            future.add_done_callback(finished.put)
        if not pending:
            return
        # Submitting all of them may take long; calls that finish meanwhile are reported at once.
        while pending and not (any(tasks) and finished.empty()):
            future = finished.get()
            task = pending.pop(future)
            outcomes = _outcomes(future, len(task))
            if outcomes is None:
                alone += task
            else:
                yield from ((key, found) for (key, _), found in zip(task, outcomes, strict=False))
                left += task[len(outcomes) :]
            if finished.empty():
                break


def _task(left: deque[Work], alone: deque[Work]) -> list[Work]:
    """The calls of the next task: more than one if there are many more calls than workers."""
    if alone:
        return [alone.popleft()]
    calls = min(max(1, len(left) // IN_FLIGHT), MOST_CALLS, len(left))
    return [left.popleft() for _ in range(calls)]


def _outcomes(future: Future[Answer], calls: int) -> list[Outcome] | None:
    """The outcomes of the first calls of a task with this many; None if they must be tried again,
    each alone.
    """
    error = future.exception()
    if error is not None and _is_lost(error):
        if calls > 1:
            return None
        text = (
            "sweep: a worker must live until its call is done, but each that had this one "
            "was killed, perhaps for want of memory; give workers more, or take fewer a machine"
        )
        return [Outcome(error=text)]
    digest, outcomes = future.result()
    if digest != own_digest(with_built=False):
        raise SweepError(
            "sweep: workers must run this very npusim, but one runs another; install the same there"
        )
    return outcomes


def _is_lost(error: BaseException) -> bool:
    """Whether Dask gave up a call because its workers died one after the other."""
    dask = sys.modules.get("distributed")
    return dask is not None and isinstance(error, dask.KilledWorker)
