"""Measured kernels held against simulated ones, with what stands between them.

What lies in the L2 is not in a profile. A kernel is simulated with a cold L2 and with all its
operands in it, and in between as it is expected: of its inputs those are there that the kernel
before has just written, known by their shape and type, and weights are not. The instruction caches
are cold, since other kernels run in between. A kernel whose time lies between the bounds is as it
should be: its ratio is 1. Otherwise the ratio is the measured time over the nearer bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike, fspath
from statistics import median

from npusim import devices
from npusim.chip import Progress
from npusim.devices.schema import DeviceSpec
from npusim.profile.causes import cause_of
from npusim.profile.files import Profile
from npusim.profile.gaps import Gap, gaps_of
from npusim.profile.kernels import Kernel
from npusim.profile.predictions import Prediction, Sort, predicted, what_is_warm
from npusim.profile.readings import readings
from npusim.run.processes import answers
from npusim.validation.timed import Call, NotModelledError

__all__ = ["Comparison", "Group", "Measured", "compare"]

SLOW = 1.25
"""A ratio from which on a kernel is called slow, assumed: `npusim validate --all` says how far the
kernels of a family err."""
LEAST_LOST_US = 1.0
"""Nor is a kernel slow that lost less, assumed: of short ones most is launch, whose cost differs by
as much between releases."""


MOST_SLOW = 5
"""So many slow kernels are shown where a comparison shows itself."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A kernel, and what the simulator says of it or why it says nothing."""

    kernel: Kernel
    prediction: Prediction | None
    reason: str | None = None

    @property
    def ratio(self) -> float | None:
        """Measured over simulated time, 1 between the bounds."""
        if self.prediction is None:
            return None
        nearest_us = self.prediction.nearest_us(self.kernel.time_us)
        return self.kernel.time_us / nearest_us if nearest_us else None

    @property
    def lost_us(self) -> float:
        """How much longer it took than the upper bound; 0 where it did not."""
        if self.prediction is None:
            return 0.0
        return max(0.0, self.kernel.time_us - self.prediction.cold_us)


@dataclass(frozen=True)
class Group:
    """Launches of the same work."""

    launches: tuple[Measured, ...]

    def __repr__(self) -> str:
        ratio = "not known" if self.ratio is None else f"ratio {self.ratio:.2f}"
        return f"<{len(self.launches)} x {self.kernel.type}, {self.time_us:.2f} us, {ratio}>"

    @property
    def kernel(self) -> Kernel:
        """The first of them, for what they have in common."""
        return self.launches[0].kernel

    @cached_property
    def middle(self) -> Measured:
        """The one of the median time."""
        ordered = sorted(self.launches, key=lambda each: each.kernel.time_us)
        return ordered[(len(ordered) - 1) // 2]

    @property
    def prediction(self) -> Prediction | None:
        """What is simulated of the middle one."""
        return self.middle.prediction

    @property
    def reason(self) -> str | None:
        """Why nothing is simulated."""
        return self.middle.reason

    @property
    def ratio(self) -> float | None:
        """The ratio of the middle one, which no single stall moves."""
        return self.middle.ratio

    @cached_property
    def time_us(self) -> float:
        """The measured time of all."""
        return sum(each.kernel.time_us for each in self.launches)

    @cached_property
    def lost_us(self) -> float:
        """How much longer all took than their upper bounds."""
        return sum(each.lost_us for each in self.launches)

    @property
    def is_slow(self) -> bool:
        """Whether it is slower than it should be by SLOW and LEAST_LOST_US."""
        ratio = self.ratio
        return ratio is not None and ratio >= SLOW and self.middle.lost_us >= LEAST_LOST_US

    @cached_property
    def cause(self) -> str:
        """The likely cause where it is slow, or else nothing."""
        times_us = [each.kernel.time_us for each in self.launches]
        found, kernel = self.prediction, self.middle.kernel
        if found is None or not self.is_slow:
            is_open = found is not None and median(times_us) > found.expected_us * SLOW
            return "cold cache, or what its shapes leave open" if is_open else ""
        return cause_of(kernel, found)


@dataclass(frozen=True)
class Comparison:
    """A profile held against a chip."""

    profile: Profile
    device: DeviceSpec
    kernels: tuple[Measured, ...]

    def __repr__(self) -> str:
        from npusim.profile.tables import findings, shapes_of

        slow = (f"  {own.ratio:.2f} x {own.kernel.type} {shapes_of(own.kernel.inputs)}: {own.cause}"
                for own in self.slowest[:MOST_SLOW])  # fmt: skip
        return "\n".join([*findings(self), *slow])

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Launches of the same work together: slow ones first, by the time lost; then by time."""
        found: dict[object, list[Measured]] = {}
        for each in self.kernels:
            found.setdefault(each.kernel.kind, []).append(each)
        groups = [Group(tuple(launches)) for launches in found.values()]
        return tuple(
            sorted(
                groups,
                key=lambda own: (not own.is_slow, -own.lost_us * own.is_slow, -own.time_us),
            )
        )

    @property
    def slowest(self) -> tuple[Group, ...]:
        """Those that are slower than they should be, the most time lost first."""
        return tuple(group for group in self.groups if group.is_slow)

    @property
    def known(self) -> tuple[Group, ...]:
        """Those that are simulated."""
        return tuple(group for group in self.groups if group.prediction is not None)

    @property
    def unknown(self) -> tuple[Group, ...]:
        """Computing ones that are not simulated, the longest first."""
        found = [own for own in self.groups if own.prediction is None]
        found = [own for own in found if not own.kernel.is_communication]
        return tuple(sorted(found, key=lambda own: -own.time_us))

    @cached_property
    def span_us(self) -> float:
        """From the first start to the last end."""
        return max(each.kernel.end_us for each in self.kernels)

    @cached_property
    def gaps(self) -> tuple[Gap, ...]:
        """Where no kernel ran, by the kernels around them, the most time first."""
        return gaps_of(self.profile.kernels)

    @property
    def gaps_us(self) -> float:
        """The time in which no kernel ran."""
        return sum(gap.time_us for gap in self.gaps)

    @property
    def communication_us(self) -> float:
        """The time of collectives, also next to other kernels."""
        return sum(own.time_us for own in self.groups if own.kernel.is_communication)

    @property
    def measured_us(self) -> float:
        """The measured time of all kernels."""
        return sum(own.time_us for own in self.groups)

    @property
    def known_us(self) -> float:
        """The measured time of kernels that are simulated."""
        return sum(own.time_us for own in self.known)

    @property
    def predicted_us(self) -> float:
        """The simulated time of the same kernels, as expected."""
        return sum(each.prediction.expected_us for each in self.kernels if each.prediction)


def compare(
    profile: Profile,
    device: str | PathLike[str] | DeviceSpec,
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Simulate each kernel of *profile* on *device*; kernels that are alike once.

    *jobs* processes share the work, one a processor by default. *progress* is called with "kernels"
    and the share of them that is done. Raises ValueError for an unknown device.
    """
    spec = device if isinstance(device, DeviceSpec) else devices.load(fspath(device))
    card = device if isinstance(device, DeviceSpec) else fspath(device)
    calls: dict[Asked, tuple[Call, ...]] = {}
    reasons: dict[Asked, str] = {}
    asked = list(_asked(profile.kernels))
    for each in dict.fromkeys(asked):
        try:
            calls[each] = readings(each[0], card)
        except NotModelledError as error:
            reasons[each] = str(error)
    # Long kernels take long to simulate; the last process to end should not have begun with one.
    order = sorted(calls, key=lambda each: -each[0].time_us)
    questions = {each: (calls[each], each[1]) for each in order}
    found: dict[Asked, Prediction] = {}
    if progress is not None:
        progress("kernels", 0.0)
    for done, (each, answer) in enumerate(answers(predicted, questions, jobs), 1):
        if isinstance(answer, str):
            reasons[each] = answer
        else:
            found[each] = answer
        if progress is not None:
            progress("kernels", done / len(questions))
    kernels = (
        Measured(kernel, found.get(each), reasons.get(each))
        for kernel, each in zip(profile.kernels, asked, strict=True)
    )
    return Comparison(profile, spec, tuple(kernels))


Asked = tuple[Kernel, frozenset[Sort]]
"""A kernel without what only one launch of it has, and which of its inputs are in the L2."""


def _asked(kernels: Sequence[Kernel]) -> Iterator[Asked]:
    before: Kernel | None = None
    alike: dict[object, Kernel] = {}
    for kernel in kernels:
        yield alike.setdefault(kernel.kind, kernel), what_is_warm(kernel, before)
        before = kernel
