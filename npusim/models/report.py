"""A step as the record of a run, so that pages and tables of models can show it.

Gaps are spread evenly over all launches; the time of the host before the step is the first gap.
"""

from __future__ import annotations

from collections.abc import Iterator

from npusim.models.chain import Launched
from npusim.models.step import Phased, Step
from npusim.models.timing import Section
from npusim.reports.model.first_screen import Lead
from npusim.run.kernel_facts import kernel_of
from npusim.trace.model import Kernel, Launches, ModelRun

__all__ = ["lead", "run_of"]

ROOT = "model"
LINKS = "the links between cards"


def run_of(step: Step, name: str) -> ModelRun:
    """The *decode* or *prefill* of *step*, launch by launch."""
    phased: Phased = getattr(step, name)
    own, launches = step.asked, Launches()
    kernels = _Kernels(launches)
    gap_us = phased.parts.gaps.time_us / max(1, phased.parts.launches)
    now_us = phased.parts.rest.time_us
    for module, section in _in_order(phased):
        for each in section.launched:
            number = kernels.number(each)
            launches.add(number, now_us, 0, each.word, module, "")
            now_us += each.time_us + gap_us
    title = (
        f"{name} of {own.shapes.architecture}, {own.quant}, {own.cards} cards, {own.engine.name}"
    )
    paid = phased.parts.launches
    classes = {ROOT: own.shapes.architecture}
    device = own.device
    return ModelRun(title, device.name, device.series, paid, launches, (), classes)


def lead(step: Step, name: str) -> Lead:
    """The whole time of *decode* or *prefill*, its error bar, and the time outside kernels."""
    phased: Phased = getattr(step, name)
    title, verb = ("TPOT", "made") if name == "decode" else ("TTFT", "read")
    around = {"gaps": phased.parts.gaps.time_us, "rest": phased.parts.rest.time_us}
    whole = phased.time_us, phased.parts.off_us, phased.tokens_per_s
    return Lead(title, *whole, verb, around)


def _in_order(phased: Phased) -> Iterator[tuple[str, Section]]:
    """Each section as often as it runs: the first end, layer after layer, the last end."""
    ends = {each.name: each for each in phased.sections if not each.is_of_layer}
    heads = [each for each in phased.sections if each.name == "attention"]
    rest = [each for each in phased.sections if each.is_of_layer and each.name != "attention"]
    yield f"{ROOT}.before", ends["before"]
    pairs = zip(_repeated(heads), _repeated(rest), strict=True)
    for number, (attention, products) in enumerate(pairs):
        yield f"{ROOT}.layers.{number}.attention", attention
        yield f"{ROOT}.layers.{number}.{products.name}", products
    yield f"{ROOT}.after", ends["after"]


def _repeated(sections: list[Section]) -> Iterator[Section]:
    for section in sections:
        for _ in range(section.times):
            yield section


class _Kernels:
    """The kernels of launches, each stored once."""

    def __init__(self, launches: Launches) -> None:
        self._launches = launches
        self._numbers: dict[int, int] = {}

    def number(self, launched: Launched) -> int:
        """The index of the kernel of *launched*, which lives as long as its section."""
        if id(launched) not in self._numbers:
            self._numbers[id(launched)] = self._launches.number(_kernel(launched))
        return self._numbers[id(launched)]


def _kernel(launched: Launched) -> Kernel:
    if launched.run is None:
        return Kernel(
            *(launched.kind, None, (), (), 0, launched.time_us, 0.0, 0),
            *(0, 0, 0, 0, 0, LINKS, 1.0),
        )
    return kernel_of(launched.run, launched.time_us, launched.run.launches[-1].launch_us)
