"""Streams and events on the simulated clock.

A kernel uses every core that it can, so all streams share one timeline: kernels end in the order of
their launches, and each has ended when the call that launched it returns.
"""

from __future__ import annotations

from itertools import count

from npusim.torch.clock import clock
from npusim.torch.errors import device_number

__all__ = [
    "Event",
    "ExternalEvent",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "set_stream",
    "stream",
]


class Event:
    """A point in simulated time."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        if interprocess:
            raise NotImplementedError(
                "torch.npu.Event: an event must stay in its process, not interprocess=True; "
                "leave interprocess out"
            )
        self.enable_timing, self.blocking = enable_timing, blocking
        self.recorded_us: float | None = None
        """The time at which it was last recorded."""

    def record(self, stream: Stream | None = None) -> None:  # noqa: ARG002
        """Record the current simulated time of the card."""
        self.recorded_us = clock.now_us

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds of simulated time from this event to *end*."""
        if not (self.enable_timing and end.enable_timing):
            raise RuntimeError(
                "torch.npu.Event: both events must be made with enable_timing=True "
                "to be compared, but one is not; make it so"
            )
        if self.recorded_us is None or end.recorded_us is None:
            raise RuntimeError(
                "torch.npu.Event: both events must be recorded before calculating elapsed time, "
                "but one is not; call record() on it"
            )
        return (end.recorded_us - self.recorded_us) / 1e3

    def query(self) -> bool:
        """Whether everything before it has ended: always."""
        return True

    def synchronize(self) -> None:
        """Wait until everything before it has ended."""
        clock.wait()

    def wait(self, stream: Stream | None = None) -> None:
        """Make *stream* wait for this event, which has already ended."""

    def __repr__(self) -> str:
        return f"<torch.npu.Event recorded at {self.recorded_us} us>"


class ExternalEvent(Event):
    """An event that a graph waits for, and that is recorded outside of it."""

    def __init__(self) -> None:
        super().__init__()

    def reset(self, stream: Stream | None = None) -> None:  # noqa: ARG002
        """Clear the recorded time."""
        self.recorded_us = None


class Stream:
    """A queue of work for the card."""

    _numbers = count()

    def __init__(self, device: object = None, priority: int = 0, **_: object) -> None:
        self.device, self.priority = device, priority
        self.stream_id = next(self._numbers)

    def record_event(self, event: Event | None = None) -> Event:
        """Record *event*, or a new one, and return it."""
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether all its work has ended: always."""
        return True

    def synchronize(self) -> None:
        """Wait until all its work has ended."""
        clock.wait()

    def wait_event(self, event: Event) -> None:
        """Wait for *event*, which has already ended."""

    def wait_stream(self, stream: Stream) -> None:
        """Wait for the work of *stream*, which has already ended."""

    def __enter__(self) -> Stream:
        _current.append(self)
        clock.stream = self.stream_id
        return self

    def __exit__(self, *_: object) -> None:
        _current.pop()
        clock.stream = _current[-1].stream_id

    def __repr__(self) -> str:
        return f"<torch.npu.Stream {self.stream_id}>"


class StreamContext:
    """`with torch.npu.stream(s)`: *s* is the current stream inside; None has no effect."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream or current_stream()

    def __enter__(self) -> None:
        self.stream.__enter__()

    def __exit__(self, *_: object) -> None:
        self.stream.__exit__()


_default = Stream()
_current = [_default]
"""The stack of current streams, innermost last."""


def current_stream(device: object = None) -> Stream:
    device_number(device)
    return _current[-1]


def default_stream(device: object = None) -> Stream:
    device_number(device)
    return _default


def set_stream(stream: Stream) -> None:
    """Make *stream* the current one."""
    _current[-1] = stream
    clock.stream = stream.stream_id


stream = StreamContext
"""`with torch.npu.stream(s)`."""
