"""Run described calls with the npusim that is imported, and write down what came of each.

    PYTHONPATH=CHECKOUT python benchmarks/equality/play.py CHECKOUT CALLS OUTCOMES

A line of OUTCOMES belongs to the line of CALLS with its number. :mod:`checkouts` runs this file.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import sys
import time
import warnings
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import numpy as np
from described import Call, made, read

import npusim

LIMIT_S = 120
"""Processor time of one call: what takes longer ends the process, and is not compared."""
TOO_LONG = 75
"""The exit code then."""
MEMORY_BYTES = 10 << 30
"""What the process may take of memory."""
OF_RUN = (
    "arguments", "icache", "output", "template", "reason", "time_us", "launch_us", "cycles",
    "launches", "gm_bytes", "gm_written_bytes", "l2_bytes", "l2_hit_bytes",
)  # fmt: skip
"""What is compared of `Run.to_json()`, counters aside: the plan is a checkout's own affair."""


def outcome_of(call: Call) -> dict[str, Any]:
    """What *call* gives, or how it is refused."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            arguments = {name: made(value) for name, value in call.arguments.items()}
            result = npusim.run(call.operator, **arguments, **call.options)
            found = _of_run(result)
        except Exception as error:
            code = getattr(error, "code", None)
            found = {"error": type(error).__name__, "code": None if code is None else int(code)}
            found["message"] = str(error)
    kinds = {each.category.__name__ for each in warned}
    return found | {"warnings": sorted(kinds & {"DocumentWarning"})}


def _of_run(result: npusim.Run) -> dict[str, Any]:
    whole = result.to_json()
    found = {name: whole[name] for name in OF_RUN}
    found["kernel_type"] = result.kernel_type
    found["counters"] = _digest(json.dumps(whole["counters"]).encode())
    found["outputs"] = {name: _of_output(each) for name, each in result.outputs.items()}
    return found


def _of_output(output: Any) -> dict[str, Any]:
    """Kind, shape, type and layout, and a digest of the bytes as they lie in memory."""
    if isinstance(output, npusim.TensorSpec):
        return {"kind": "spec", "spec": str(output)}
    if isinstance(output, npusim.Tensor):
        return {"kind": "tensor", "spec": str(output.spec), "bytes": _bytes(output.storage)}
    shape = "x".join(map(str, output.shape))
    return {"kind": "array", "spec": f"{output.dtype} {shape}", "bytes": _bytes(output)}


def _bytes(array: Any) -> str:
    return _digest(np.ascontiguousarray(array).tobytes())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:24]


def play(calls: TextIO, outcomes: TextIO) -> None:
    """Run all *calls*, in order."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        os._exit(TOO_LONG)

    signal.signal(signal.SIGPROF, stop)
    for line in calls:
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
        start = time.process_time()
        found = outcome_of(read(line))
        found["cpu_s"] = round(time.process_time() - start, 4)
        outcomes.write(json.dumps(found) + "\n")
        outcomes.flush()
    signal.setitimer(signal.ITIMER_PROF, 0)


def main() -> None:
    """Run what the command line names."""
    checkout, calls, outcomes = map(Path, sys.argv[1:])
    home = Path(npusim.__file__).resolve()
    if not home.is_relative_to(checkout.resolve()):
        raise SystemExit(f"equality: npusim must come from {checkout}, not from {home}")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    with calls.open() as given, outcomes.open("w") as to:
        play(given, to)


if __name__ == "__main__":
    main()
