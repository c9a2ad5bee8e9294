"""The time of a step: its kernels, the gaps between them, communication, and the rest.

The card runs kernels and collectives while the host launches those that are not in graphs::

    card = kernels + communication + gap_us x launches
    host = launch_us x individual launches + layer_us x layers
    step = before_us + max(card, host)              or their sum, if the card waits for the host

All time that is neither kernels, communication nor before_us counts as gaps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from npusim.accuracy import within_all_kinds
from npusim.engines.schema import Engine, Phase
from npusim.engines.words import ALL
from npusim.models.chain import Launched

__all__ = ["SPREAD", "Cost", "Part", "Parts", "Section", "parts_of"]

SPREAD = {
    "vendor file": 0.0,
    "vendor doc": 0.1,
    "vendor tool": 0.25,
    "measured": 0.1,
    "paper": 0.25,
    "calibrated": 0.15,
    "inferred": 0.3,
    "assumed": 0.5,
}
"""Confidence of a number -> its median relative error (assumed)."""
COMMUNICATION_SPREAD = 0.2
"""The relative error of collectives from 1 MB on (assumed)."""


@dataclass(frozen=True, slots=True)
class Section:
    """A sequence of kernels that is launched several times in a step."""

    name: str
    """`attention`, `mlp`, `experts`, `before` or `after`."""
    times: int
    launched: tuple[Launched, ...]

    @property
    def is_of_layer(self) -> bool:
        """Whether it belongs to the layers, and not to the start or end of the step."""
        return self.name not in ("before", "after")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a step, and the median error of such times."""

    time_us: float
    off_us: float


@dataclass(frozen=True, slots=True)
class Parts:
    """All parts of a step, in the order of pictures."""

    kernels: Part
    gaps: Part
    communication: Part
    rest: Part
    launches: int

    def named(self) -> dict[str, Part]:
        """Name -> part."""
        return {
            "kernels": self.kernels,
            "gaps": self.gaps,
            "communication": self.communication,
            "rest": self.rest,
        }

    @property
    def time_us(self) -> float:
        """The time of the whole step."""
        return math.fsum(part.time_us for part in self.named().values())

    @property
    def off_us(self) -> float:
        """The errors of parts are independent of each other."""
        return math.hypot(*(part.off_us for part in self.named().values()))


@dataclass(frozen=True, slots=True)
class Cost:
    """The data that determine gaps: the work of the card, and numbers of the engine."""

    work_us: float
    """The time of kernels and communication."""
    launches: int
    singly: int
    layers: int
    launch_us: float
    layer_us: float
    gap_us: float
    is_awaited: bool

    @property
    def gaps_us(self) -> float:
        """The idle time of the card, from the first kernel to the last."""
        card_us = self.work_us + self.gap_us * self.launches
        host_us = self.launch_us * self.singly + self.layer_us * self.layers
        whole_us = card_us + host_us if self.is_awaited else max(card_us, host_us)
        return whole_us - self.work_us


def parts_of(
    sections: Iterable[Section],
    engine: Engine,
    phase: Phase,
    name: str,
    layers: int,
    is_in_graph: bool,
    rest: Mapping[str, float],
) -> Parts:
    """The parts of a step of *sections* in a *phase*; *name* is the name of the phase in sources.

    *rest* are the host's numbers of the engine, by key.
    """
    every = [(section, launched) for section in sections for launched in section.launched]
    kernels_us = math.fsum(s.times * each.time_us for s, each in every if each.run)
    communication_us = math.fsum(s.times * each.time_us for s, each in every if not each.run)
    launches = sum(section.times for section, _ in every)
    singly = sum(
        section.times
        for section, each in every
        if not is_in_graph or ALL in phase.singly or each.word in phase.singly
    )
    cost = Cost(
        kernels_us + communication_us,
        launches,
        singly,
        layers,
        phase.launch_us,
        phase.layer_us if is_in_graph else 0.0,
        phase.gap_us,
        phase.is_awaited and is_in_graph,
    )
    rest_off = [us * _spread(engine, key) for key, us in rest.items()]
    return Parts(
        Part(kernels_us, _kernels_off(every)),
        Part(cost.gaps_us, _gaps_off(cost, engine, name)),
        Part(communication_us, COMMUNICATION_SPREAD * communication_us),
        Part(math.fsum(rest.values()), math.hypot(*rest_off)),
        launches,
    )


def _spread(engine: Engine, key: str) -> float:
    return SPREAD[engine.sources[key].confidence]


def _kernels_off(every: Iterable[tuple[Section, Launched]]) -> float:
    """Kernels of one kind have the same relative error; different kinds are independent."""
    off_us: dict[str, float] = {}
    for section, each in every:
        if each.run is None:
            continue
        accuracy = each.run.accuracy
        share = accuracy.median if accuracy else None
        share = within_all_kinds(0.5) if share is None or each.stands_for else share
        kind = each.stands_for or str(accuracy.kind if accuracy else each.run.op)
        off_us[kind] = off_us.get(kind, 0.0) + section.times * each.time_us * share
    return math.hypot(*off_us.values())


def _gaps_off(cost: Cost, engine: Engine, phase: str) -> float:
    """The change of gaps if a number of the engine is off by its spread."""
    found = []
    for number in ("launch_us", "layer_us", "gap_us"):
        value, share = getattr(cost, number), _spread(engine, f"{phase}.{number}")
        ends = (replace(cost, **{number: value * (1 + sign * share)}) for sign in (-1, 1))
        found.append(max(abs(end.gaps_us - cost.gaps_us) for end in ends))
    return math.hypot(*found)
