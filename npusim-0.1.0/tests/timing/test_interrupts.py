"""What the handler of a signal raises ends either engine at once, and comes out as it is."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from engine_times import needs_compiled

import npusim
from npusim import TensorSpec
from npusim.chip import Engine
from npusim.timing import interrupts, simpy_engine
from npusim.timing.compiled import run as compiled_engine

MODULES = {"simpy": simpy_engine, "compiled": compiled_engine}
TRIES = 20
SIZES: dict[Engine, int] = {"simpy": 1024, "compiled": 4096}
"""Products that take either engine some tenths of a second."""

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="this system has no timers that send a signal"
)


class TimeIsUpError(Exception):
    """Cannot be made again from its `args`, as SimPy does with what a process raises."""

    def __init__(self, after: str, unit: str) -> None:
        super().__init__(f"{after} {unit}")


def time_is_up(*_: object) -> None:
    raise TimeIsUpError("a while", "of waiting")


@pytest.fixture
def alarm() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, time_is_up)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("engine", ["simpy", pytest.param("compiled", marks=needs_compiled)])
def test_a_signal_ends_the_engine_every_time(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    delay_s = 0.0

    def armed(work: Callable[[], Any], stop: Callable[[], None]) -> Any:
        signal.setitimer(signal.ITIMER_REAL, delay_s)
        return interrupts.unless_interrupted(work, stop)

    x = TensorSpec((SIZES[engine],) * 2, "int8")
    scale = TensorSpec((SIZES[engine],), "float32")

    def product() -> npusim.Run:
        return npusim.run(
            *("npu_quant_matmul", x, x, scale),
            output_dtype="float16",
            device="ascend910b2",
            engine=engine,
        )

    with monkeypatch.context() as patched:
        patched.setattr(MODULES[engine], "unless_interrupted", armed)
        for number in range(TRIES):
            delay_s = 1e-5 * 1.35**number
            with pytest.raises(TimeIsUpError, match=r"^a while of waiting$"):
                product()
    assert product().time_us


def test_outside_the_main_thread_the_work_is_just_done() -> None:
    seen: list[object] = []

    def elsewhere() -> None:
        seen.append(interrupts.unless_interrupted(threading.current_thread, lambda: None))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [thread]


def test_what_the_work_raises_comes_out() -> None:
    def work() -> None:
        raise TimeIsUpError("it", "itself")

    with pytest.raises(TimeIsUpError, match=r"^it itself$"):
        interrupts.unless_interrupted(work, lambda: None)
