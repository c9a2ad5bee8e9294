"""Record the launches of a model on the card, with the module that made each.

A launch is reduced to one line at once, so no tensors or programs are kept alive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from pathlib import Path
from weakref import WeakKeyDictionary

from npusim.reports import model
from npusim.run.kernel_facts import described, kernel_of
from npusim.run.result import Result
from npusim.torch import card
from npusim.torch.clock import Event, clock
from npusim.torch.modules import Modules
from npusim.trace import Trace
from npusim.trace.model import Kernel, Launches, ModelRun, NotTimed

__all__ = ["Recording"]


class Recording:
    """`with npusim.torch.record() as recorded:` records the work of the card inside.

    ``recorded.run`` is the record so far, ``recorded.write(folder)`` writes the report.
    """

    def __init__(self, title: str) -> None:
        self._title, self._device, self._series = title, card.name(), card.spec().series
        self._launches = Launches()
        self._not_timed: Counter[tuple[str, str]] = Counter()
        self._kernels: dict[Hashable, tuple[Trace | None, Kernel]] = {}
        """The key of a kernel -> its trace, whose identity is part of the key, and the kernel."""
        self._of_runs: WeakKeyDictionary[Result, dict[tuple[float, float], int]]
        """Run -> the numbers of its kernels, by their time and launch time."""
        self._of_runs = WeakKeyDictionary()
        self._modules = Modules()
        self._began_us, self._paid_before, self._paid_launches = 0.0, 0, 0
        self._is_open = False

    def __enter__(self) -> Recording:
        if self._is_open:
            raise RuntimeError(
                "npusim.torch.record: a recording must be entered once at a time, but it is open; "
                "make another with npusim.torch.record()"
            )
        self._launches, self._not_timed, self._is_open = Launches(), Counter(), True
        self._of_runs.clear()
        self._began_us, self._paid_before = clock.now_us, clock.launches
        self._modules.__enter__()
        clock.tell(self)
        return self

    def __exit__(self, *_: object) -> None:
        clock.stop(self)
        self._modules.__exit__()
        self._paid_launches, self._is_open = clock.launches - self._paid_before, False

    @property
    def run(self) -> ModelRun:
        """The record so far."""
        paid = clock.launches - self._paid_before if self._is_open else self._paid_launches
        missing = (NotTimed(*key, count) for key, count in self._not_timed.items())
        return ModelRun(
            *(self._title, self._device, self._series, paid),
            self._launches.copy(),
            tuple(sorted(missing, key=lambda each: (-each.count, each.operator, each.module))),
            self._modules.classes_of(launch.module for launch in self._launches),
        )

    def summary(self) -> str:
        """The headline of the report, as lines of text."""
        return "\n".join(model.headline(self.run))

    def write(self, folder: str | Path, *, force: bool = False) -> list[str]:
        """Write page, tables and record to *folder*, new or empty; returns the names of the files.

        With *force* an earlier report is replaced. Raises FolderError.
        """
        return model.write(self.run, Path(folder), model.kind("pass force=True"), force=force)

    def append(self, event: Event, /) -> None:
        """Add an event from the clock."""
        if event.communicates:
            number = self._launches.number(_communication(event))
            self._add(number, event)
            return
        if event.run is None:
            if event.is_kernel:
                self._not_timed[event.operator, event.module] += 1
            return
        if event.run.plan is None:
            return
        self._add(self._kernel(event, event.run), event)

    def _add(self, kernel: int, event: Event) -> None:
        self._launches.add(
            *(kernel, event.start_us - self._began_us, event.stream),
            *(event.operator, event.module, event.graph or ""),
        )

    def _kernel(self, event: Event, run: Result) -> int:
        """The number of the kernel that *event* launched."""
        known = self._of_runs.get(run)
        if known is None:
            known = self._of_runs[run] = {}
        times = event.time_us, event.launch_us
        number = known.get(times)
        if number is None:
            number = known[times] = self._launches.number(self._kernel_of(event, run))
        return number

    def _kernel_of(self, event: Event, run: Result) -> Kernel:
        inputs, outputs = described(run.arguments), described(run.outputs)
        key = (id(run.trace), run.op, inputs, outputs, event.time_us, event.launch_us)
        if key not in self._kernels:
            # Keeps the trace alive: the key has its id(), which another object could reuse.
            self._kernels[key] = run.trace, kernel_of(run, event.time_us, event.launch_us)
        return self._kernels[key][1]


def _communication(event: Event) -> Kernel:
    """The kernel of an exchange between cards, which is bound by the links."""
    what = (event.communicates,)
    return Kernel(
        *(event.name, None, what, what, 0, event.time_us, 0.0, 0, 0, 0, 0, 0, 0, "links", 1.0)
    )
