"""Small kernels against the times that are published of them, on Atlas A2 and A3.

Prints variant, measured and simulated Task Duration, and the error; with pipes, also how long the
busiest core keeps each pipe busy:

    python examples/micro.py [--pipes] [WORDS OF A VARIANT ...]
"""

import sys

from npusim import devices
from npusim.micro import time
from npusim.micro.published import TABLES
from npusim.trace import Trace


def main(words: list[str], with_pipes: bool) -> None:
    """Print every row whose variant holds all *words*."""
    for table in TABLES:
        chosen = [row for row in table.rows if all(word in row.variant for word in words)]
        if not chosen:
            continue
        print(f"{table.title}, {table.device}, L2 {table.l2}")
        print(f"  {'variant':38} {'measured us':>12} {'simulated us':>13} {'error':>7}")
        spec = devices.load(table.device)
        for row in chosen:
            kernel = row.write(spec)
            trace = time(kernel, spec, table.l2)
            took = row.time_us(kernel, spec, trace)
            error = took / row.measured_us - 1
            pipes = f"  {pipes_us(trace)}" if with_pipes else ""
            print(f"  {row.variant:38} {row.measured_us:12.2f} {took:13.2f} {error:+7.1%}{pipes}")
        print()


def pipes_us(trace: Trace) -> str:
    """How long the slowest core keeps its pipes busy."""
    counters = trace.slowest.counters()
    return "  ".join(
        f"{pipe} {counter.busy_cycles / trace.clock_hz * 1e6:.2f}"
        for pipe, counter in counters.items()
    )


if __name__ == "__main__":
    given = sys.argv[1:]
    main([word for word in given if word != "--pipes"], "--pipes" in given)
