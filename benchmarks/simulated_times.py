"""Writes `npusim/accuracy/simulated.csv`: the times of measured kernels, as npusim simulates them.

    nice .venv/bin/python benchmarks/simulated_times.py [--anew] [--sample] [--longest-us US]

Without options the rows that have no line yet are simulated and the others stay; `--anew` forgets
all that was known, for after a change that moves times. What is done is written every few rows,
short kernels first, so the work may be cut short and taken up again. All of it takes some five
minutes of two processors, and hours without the compiled engine; `--longest-us` says where to
stop. In the end the picture of the README is drawn, `docs/pictures/validation.png`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from matplotlib.figure import Figure

import npusim
from npusim.validation import measured, read, sample, simulated
from npusim.validation.pictures import predicted_against_measured, square_inches

FILE = Path(npusim.__file__).parent / "accuracy" / "simulated.csv"
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "validation.png"
AT_ONCE = 100
"""Rows between two writes of the file."""


def main() -> None:
    """Simulate what is missing, and write the file."""
    parser = argparse.ArgumentParser(description="Write the simulated times of measured kernels.")
    parser.add_argument("--anew", action="store_true", help="forget what has a line")
    parser.add_argument("--sample", action="store_true", help="only the sample of npusim validate")
    parser.add_argument("--family", action="append", help="only this family; may come often")
    parser.add_argument("--longest-us", type=float, default=float("inf"), metavar="US")
    parser.add_argument("-j", "--jobs", type=int, metavar="N")
    options = parser.parse_args()
    rows = read()
    wanted = [
        row
        for row in (sample(rows) if options.sample else rows)
        if row.latency_us <= options.longest_us
        and (not options.family or row.family in options.family)
    ]
    known = simulated.times(FILE.read_text()) if FILE.exists() else {}
    if options.anew:
        kept = {row.id for row in rows if options.family and row.family not in options.family}
        known = {name: us for name, us in known.items() if name in kept}
    work = sorted((row for row in wanted if row.id not in known), key=lambda row: row.latency_us)
    for done, (_, result) in enumerate(measured(work, jobs=options.jobs), 1):
        if result.time_us is not None:
            known[result.row.id] = result.time_us
        if done % AT_ONCE == 0 or done == len(work):
            FILE.write_text(simulated.content(rows, known))
            print(f"{done} of {len(work)} rows", flush=True)
    results = simulated.results(rows)
    figure = Figure(square_inches(results), layout="constrained")
    predicted_against_measured(results, ax=figure.subplots())
    figure.savefig(PICTURE, dpi=100)


if __name__ == "__main__":
    main()
