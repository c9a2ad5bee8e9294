"""Processes of this machine that share work."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

from npusim.data.platform import HAS_THREADS

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

__all__ = ["answers", "processes"]

Key = TypeVar("Key")
Question = TypeVar("Question")
Answer = TypeVar("Answer")


def answers(
    answer: Callable[[Question], Answer], questions: Mapping[Key, Question], jobs: int | None = None
) -> Iterator[tuple[Key, Answer]]:
    """The result of *answer* for each of *questions*, as completed; started in their order.

    *jobs* processes share the work, by default one per processor; with 1, or if no process can be
    started, all is done in this one.
    """
    jobs = min(jobs or os.cpu_count() or 1, max(len(questions), 1))
    if jobs == 1 or not HAS_THREADS:
        for key, question in questions.items():
            yield key, answer(question)
        return
    from concurrent.futures import as_completed

    with processes(jobs) as pool:
        keys = {pool.submit(answer, question): key for key, question in questions.items()}
        for future in as_completed(keys):
            yield keys[future], future.result()


@contextmanager
def processes(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """*jobs* worker processes; calls still waiting when the context fails are dropped.

    A script must put its own calls below `if __name__ == "__main__"`, since each process imports
    it.
    """
    # On Pythons without processes, as in a browser, this cannot be imported.
    from concurrent.futures import ProcessPoolExecutor

    others = active_children()
    # Spawned, not forked: the same on every system, and safe with threads.
    start = get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=start, initializer=_end_with_parent) as pool:
        try:
            yield pool
        except Exception:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        except BaseException:
            # Whoever ends this process should not wait for calls in progress.
            for process in active_children():
                if process not in others:
                    process.terminate()
            pool.shutdown(cancel_futures=True)
            raise


def _end_with_parent() -> None:
    """Make this process end when its parent is killed, without waiting for calls."""
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    Thread(target=wait, daemon=True).start()
