"""Times of collectives against those measured on real cards. Writes nothing.

    .venv/bin/python benchmarks/collectives.py
    .venv/bin/python benchmarks/collectives.py --worst 10

The rows are in collectives.csv, with sizes as `npusim.collectives.time_us` has them:

* hccl_910b, hccl_910b_more (xiaowanCN/aiconfigurator-npu@0af81bf5 nccl_perf.txt): an eager loop of
  torch_npu on 2 to 8 cards of Atlas A2, fp16. No row is shorter than the host's launch. Published
  sizes are elements: those that a card has of all_reduce and gives of reduce_scatter, and, by the
  one rate of a link that this gives for 2, 4 and 8 cards, cards times what it gets of all_gather
  and gives of all_to_all. reduce_scatter of more than 50 M elements is left out: it breaks down.
* hccl_a3_kernel (hudingyi688/aiconfigurator-npu@c6a138db nccl_perf.txt): kernels alone, 2 to 32
  dies of Atlas A3.
* hccl_profiles (Ascend/msinsight@4e16fca1, communication.json): what one link moved in training,
  and for how long, in so many messages; without what starts the collective.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from npusim import collectives, devices
from npusim.cli.screen import show, table

ROWS = Path(__file__).with_suffix(".csv")
LONG_BYTES = 1 << 20
EAGER = ("hccl_910b", "hccl_910b_more")
"""Tables whose times hold the host's launch."""
US = 1e6


class Row(NamedTuple):
    """A measured collective."""

    table: str
    device: str
    kind: str
    cards: int
    size_bytes: int
    measured_us: float
    link: str
    """The kind of link, where the row is one link alone."""
    messages: int

    @property
    def is_long(self) -> bool:
        return self.size_bytes >= LONG_BYTES

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return predicted_us(self) / self.measured_us


def rows(path: Path = ROWS) -> list[Row]:
    """The measured rows."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Row(
                *(row["table"], row["device"], row["kind"], int(row["cards"])),
                *(int(row["size_bytes"]), float(row["measured_us"])),
                *(row["link"], int(row["messages"] or 0)),
            )
            for row in csv.DictReader(file)
        ]


def predicted_us(row: Row) -> float:
    """What npusim says of *row*."""
    links = devices.load(row.device).links
    if row.link:
        return _of_link_us(row)
    kind = next(kind for kind in collectives.KINDS if kind == row.kind)
    kernel_us = collectives.time_us(kind, row.size_bytes, row.cards, row.device)
    return max(kernel_us, links.host_us) if row.table in EAGER else kernel_us


def _of_link_us(row: Row) -> float:
    links = devices.load(row.device).links
    start_us, rates = links.message.start_us, [links.message.bytes_per_s]
    if row.link == "RDMA":
        assert links.servers is not None
        start_us, rates = links.servers.start_us, [links.servers.gather_bytes_per_s]
    elif row.kind != "message":
        gather, reduce = (
            lanes.peer_bytes_per_s for lanes in (links.staged.gather, links.staged.reduce)
        )
        rates = {"all_reduce": [reduce, gather], "reduce_scatter": [reduce]}.get(row.kind, [gather])
    moving_us = sum(row.size_bytes / len(rates) / rate * US for rate in rates)
    return row.messages * start_us + moving_us


def error(of: list[Row]) -> float:
    """The median of how far predictions are off, as a factor less one."""
    return median(max(row.ratio, 1 / row.ratio) for row in of) - 1


def _cells(of: list[Row]) -> tuple[str, ...]:
    ratios = sorted(row.ratio for row in of)
    ends = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
    return str(len(of)), f"{median(ratios):.2f}", f"{100 * error(of):.1f} %", ends


def _groups(found: list[Row]) -> Iterator[tuple[str, str, str, list[Row]]]:
    """Table, kind and class of size of each group of rows; all kinds of a table come first."""
    for name in dict.fromkeys(row.table for row in found):
        of_table = [row for row in found if row.table == name]
        for kind in ("all", *dict.fromkeys(row.kind for row in of_table)):
            for size, is_long in (("from 1 MiB on", True), ("below 1 MiB", False)):
                of = [r for r in of_table if kind in ("all", r.kind) and r.is_long == is_long]
                if of:
                    yield name, kind, size, of


def main() -> None:
    """Print predicted over measured for each table, kind and class of size."""
    parser = argparse.ArgumentParser(description="Collectives against real cards.")
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="the rows furthest off")
    options = parser.parse_args()
    found = rows()
    shown = table("table", "kind", "size", "rows", "ratio", "median error", "from, to")
    for name, kind, size, of in _groups(found):
        shown.add_row(name, kind, size, *_cells(of))
    show(shown)
    worst = sorted(found, key=lambda row: -max(row.ratio, 1 / row.ratio))[: options.worst]
    for row in worst:
        print(f"{row.ratio:.2f}  {predicted_us(row):.1f} us  {row}")


if __name__ == "__main__":
    main()
