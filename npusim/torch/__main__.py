"""`python -m npusim.torch script.py`: run a torch_npu script on a simulated card."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from npusim import torch as drop_in
from npusim.data.files import FileError
from npusim.data.text import printable
from npusim.devices import DeviceError

if TYPE_CHECKING:
    from npusim.torch.clock import Event

USAGE = (
    "python -m npusim.torch [--device NAME] [--shapes] [--trace DIR] [--force] [-q] "
    "(script.py | -m module | -c code)"
)
WITH_VALUE = ("--device", "--trace")


def main(argv: list[str]) -> None:
    """Run what *argv* names; the exit code is the script's own, or 2 for a wrong command line."""
    own, theirs = split(argv)
    parser = _parser()
    options = parser.parse_args(own)
    if not theirs or (theirs[0] in ("-m", "-c") and len(theirs) == 1):
        parser.error("there must be a script, -m module or -c code, but there is none; name one")
    if theirs[0] not in ("-m", "-c") and not Path(theirs[0]).exists():
        parser.error(f"the script must be a file, not {theirs[0]}; check the path")
    try:
        device = drop_in.install(options.device, values=not options.shapes, shadow=True)
    except (DeviceError, ImportError, RuntimeError) as error:
        _tell(str(error))
        sys.exit(1)

    # Only now may torch be imported.
    from npusim.torch import trace
    from npusim.torch.clock import clock

    folder = Path(options.trace) if options.trace else None
    if folder is not None:
        try:
            trace.check(folder, options.force)
        except FileError as error:
            _tell(str(error))
            sys.exit(1)
    events = clock.record() if folder is not None else []
    if not options.quiet:
        _tell(f"simulating {device}")
    try:
        run(theirs)
    finally:
        if folder is not None:
            clock.stop(events)
            _leave(events, folder, device, options.force)
        if not options.quiet:
            sys.stdout.flush()
            _tell("\n".join((clock.summary(), *clock.accuracy())))


def _leave(events: list[Event], folder: Path, device: str, force: bool) -> None:
    """Write the trace; where that fails, the exit code is 1 unless the script failed before."""
    from npusim.torch import trace

    has_failed = sys.exc_info()[0] is not None
    try:
        trace.write(events, folder, device, force=force)
    except FileError as error:
        _tell(str(error))
        if not has_failed:
            sys.exit(1)


def split(argv: list[str]) -> tuple[list[str], list[str]]:
    """The launcher's own words, and those that name the script and follow it."""
    at = 0
    while at < len(argv) and argv[at].startswith("-") and argv[at] not in ("-m", "-c"):
        at += 2 if argv[at] in WITH_VALUE else 1
    return argv[:at], argv[at:]


def run(words: list[str]) -> None:
    """Run *words* as python itself would: `-m module ...`, `-c code ...` or `script.py ...`."""
    kind, rest = words[0], words[1:]
    if kind == "-m":
        sys.argv[:] = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv[:] = ["-c", *rest[1:]]
        sys.path[0] = ""
        # Functions and classes of the code find it as __main__.
        main_module = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), main_module.__dict__)
    else:
        sys.argv[:] = words
        sys.path[0] = str(Path(kind).resolve().parent)
        runpy.run_path(kind, run_name="__main__")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m npusim.torch",
        usage=USAGE,
        description="Run a torch_npu script on a simulated card.",
    )
    parser.add_argument(
        "--device", default=drop_in.DEFAULT_DEVICE, help="a chip or a product line (%(default)s)"
    )
    parser.add_argument("--trace", metavar="DIR", help="write trace_view.json into DIR")
    parser.add_argument(
        "--force", action="store_true", help="let --trace replace an earlier trace_view.json"
    )
    parser.add_argument(
        "--shapes",
        action="store_true",
        help="tensors on npu are shapes alone: they take no memory, and kernels only their time",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing about the card")
    return parser


def _tell(message: str) -> None:
    for line in message.splitlines():
        print(f"npusim: {printable(line)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
