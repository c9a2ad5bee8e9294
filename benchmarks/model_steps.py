"""Predicts published steps of served models, and prints predicted over measured.

    nice .venv/bin/python benchmarks/model_steps.py [--id ROW] [--json]

`published_steps/rows.csv` has a line for each: the model, whose config.json lies beside it, the
card, the load, and the engine as it was when the step was measured; an engine of an earlier date is
a file there that extends a shipped one. Of kind *decode* is a time per output token, and of kind
*prefill* one to the first token. Of kind *served* are rows of several requests that say how long
prompts and answers were, and throughputs (batch over tokens a second): prompts are read between the
steps of decode.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from npusim import models
from npusim.models import Step

FOLDER = Path(__file__).parent / "published_steps"
HOST_AHEAD = ("xlite", "vllm-ascend-full")
"""Engines whose host launches a whole step ahead: graphs of it, or from C++."""
BEYOND = 1.6
"""Rows further off than this, either way, are named."""


@dataclass(frozen=True, slots=True)
class Published:
    """A published step, and what npusim makes of it."""

    facts: dict[str, str]
    step: Step

    @property
    def predicted_ms(self) -> float:
        """The same quantity as was measured."""
        match self.facts["kind"]:
            case "decode":
                return self.step.tpot_us / 1e3
            case "prefill":
                return self.step.ttft_us / 1e3
            case _:
                return self.step.served_us(int(self.facts["new"])) / 1e3

    @property
    def measured_ms(self) -> float:
        """As published."""
        return float(self.facts["measured_ms"])

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted_ms / self.measured_ms

    @property
    def is_host_ahead(self) -> bool:
        """Whether the host launches a whole step ahead."""
        return self.facts["engine"] in HOST_AHEAD


def rows() -> list[dict[str, str]]:
    """What is published, in the order of the file."""
    with (FOLDER / "rows.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def predicted(facts: dict[str, str]) -> Published:
    """One of them, timed."""
    engine = facts["engine"]
    step = models.load(FOLDER / f"{facts['model']}.json").step(
        device=facts["device"],
        tp=int(facts["tp"]),
        batch=int(facts["batch"]),
        context=int(facts["context"]),
        prompt=int(facts["prompt"]),
        quant=facts["quant"],
        engine=FOLDER / engine if engine.endswith(".toml") else engine,
    )
    return Published(facts, step)


# ---- what is printed ----

ROW = "{:10} {:13} {:11} {:>4} {:>5} {:>7}  {:20} {:8} {:>9} {:>9} {:>6}   {}"
PARTS = ("kernels", "gaps", "communication", "rest")


def table(found: list[Published]) -> Iterator[str]:
    """A line for each row, and what can be said of all."""
    yield ROW.format(
        *("row", "model", "card", "tp", "batch", "context", "engine", "kind"),
        *("measured", "predicted", "ratio", ", ".join(PARTS)),
    ).rstrip()
    for one in found:
        own = one.facts
        phase = one.step.prefill if own["kind"] == "prefill" else one.step.decode
        parts = ", ".join(f"{phase.parts.named()[name].time_us / 1e3:.1f}" for name in PARTS)
        yield ROW.format(
            *(own[key] for key in ("id", "model", "device", "tp", "batch", "context")),
            *(own["engine"].removesuffix(".toml").removeprefix("vllm_ascend_"), own["kind"]),
            *(f"{one.measured_ms:.2f}", f"{one.predicted_ms:.2f}", f"{one.ratio:.2f}", parts),
        )
    for name, is_ahead in (("full graphs and C++ hosts", True), ("piecewise and eager", False)):
        ratios = [one.ratio for one in found if one.is_host_ahead == is_ahead]
        if ratios:
            off = median(abs(ratio - 1) for ratio in ratios)
            yield f"{name}: {len(ratios)} rows, half within {100 * off:.0f} %, median ratio " + (
                f"{median(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}"
            )
    for one in found:
        if not 1 / BEYOND <= one.ratio <= BEYOND:
            yield f"beyond {BEYOND}: {one.facts['id']} ({one.facts['source']})"


def as_json(found: list[Published]) -> str:
    """The same for programs."""
    return json.dumps(
        [
            {
                "id": one.facts["id"],
                "measured_ms": one.measured_ms,
                "predicted_ms": one.predicted_ms,
                "ratio": one.ratio,
            }
            for one in found
        ],
        indent=1,
    )


def main() -> None:
    """Predict and print."""
    parser = argparse.ArgumentParser(description="Predict published steps of served models.")
    parser.add_argument("--id", action="append", help="only this row; may come often")
    parser.add_argument("--json", action="store_true", help="print JSON instead")
    options = parser.parse_args()
    known = rows()
    for name in options.id or ():
        if name not in [facts["id"] for facts in known]:
            every = ", ".join(facts["id"] for facts in known)
            parser.error(f"--id must be a row of rows.csv, not {name}; known: {every}")
    found = [predicted(facts) for facts in known if not options.id or facts["id"] in options.id]
    print(as_json(found) if options.json else "\n".join(table(found)))


if __name__ == "__main__":
    main()
