"""Small kernels compared with their published times, on Atlas A2 and A3.

Prints each variant, its measured and simulated time, and the error; with --pipes also the mean time
for which each pipe of a core is busy, and in brackets what the vendor's profiler counted:

    python examples/micro.py [--pipes] [WORDS OF A VARIANT ...]
"""

import sys

from npusim import devices
from npusim.devices.schema import DeviceSpec
from npusim.micro import time
from npusim.micro.published import PIPES_US, TABLES, mean_pipes_us
from npusim.trace import Trace


def main(words: list[str], with_pipes: bool) -> None:
    """Print every row whose variant holds all *words*."""
    for table in TABLES:
        chosen = [row for row in table.rows if all(word in row.variant for word in words)]
        if not chosen:
            continue
        print(f"{table.title}, {table.device}, L2 {table.l2}")
        print(f"  {'variant':44} {'measured us':>12} {'simulated us':>13} {'error':>7}")
        spec = devices.load(table.device)
        for row in chosen:
            kernel = row.write(spec)
            trace = time(kernel, spec, table.l2)
            took = table.time_us(row, kernel, spec, trace)
            error = took / row.measured_us - 1
            pipes = f"  {pipes_us(row.id, trace, spec)}" if with_pipes else ""
            print(f"  {row.variant:44} {row.measured_us:12.2f} {took:13.2f} {error:+7.1%}{pipes}")
        print()


def pipes_us(row: str, trace: Trace, spec: DeviceSpec) -> str:
    """How long the cores keep their pipes busy, and what is published of it."""
    published = PIPES_US.get(row, {})
    return "  ".join(
        f"{pipe} {busy_us:.2f}" + (f" ({published[pipe]:.2f})" if pipe in published else "")
        for pipe, busy_us in mean_pipes_us(trace, spec).items()
    )


if __name__ == "__main__":
    given = sys.argv[1:]
    main([word for word in given if word != "--pipes"], "--pipes" in given)
