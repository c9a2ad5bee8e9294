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
from npusim.data.folders import FolderError
from npusim.data.text import printable
from npusim.devices import DeviceError
from npusim.engines import EngineError
from npusim.torch.planning import PlanError

if TYPE_CHECKING:
    from npusim.torch.clock import Event
    from npusim.torch.recording import Recording

USAGE = (
    "python -m npusim.torch [--device NAME] [--shapes [--memory CARDS] [--experts FILE]] "
    "[--carried] [--engine NAME] [--report DIR] [--trace DIR] [--force] [-q] "
    "(script.py | -m module | -c code)"
)
WITH_VALUE = ("--device", "--engine", "--experts", "--memory", "--report", "--trace")


def main(argv: list[str]) -> None:
    """Run the script in *argv*; the exit code is the script's, or 2 for a wrong command line."""
    own, theirs = split(argv)
    parser = _parser()
    options = parser.parse_args(own)
    if not theirs or (theirs[0] in ("-m", "-c") and len(theirs) == 1):
        parser.error("there must be a script, -m module or -c code, but there is none; name one")
    if theirs[0] not in ("-m", "-c") and not Path(theirs[0]).exists():
        parser.error(f"the script must be a file, not {theirs[0]}; check the path")
    try:
        device = drop_in.install(
            options.device,
            values=not options.shapes,
            carried=options.carried,
            engine=options.engine,
            shadow=True,
            memory=options.memory,
            experts=options.experts,
        )
    except (DeviceError, EngineError, ImportError, PlanError, RuntimeError) as error:
        _say(str(error))
        sys.exit(1)

    # torch must not be imported earlier.
    from npusim.torch.clock import clock

    records = _Records(options, device, theirs)
    try:
        records.begin()
    except (FileError, FolderError) as error:
        _say(str(error))
        sys.exit(1)
    if not options.quiet:
        _say(f"simulating {device}")
    try:
        run(theirs)
    finally:
        records.leave()
        if not options.quiet:
            sys.stdout.flush()
            _say("\n".join((clock.summary(), *clock.accuracy())))


class _Records:
    """The recordings that the command line asks for: a trace, a report, both or none."""

    def __init__(self, options: argparse.Namespace, device: str, words: list[str]) -> None:
        self._device, self._force, self._is_quiet = device, options.force, options.quiet
        # Absolute, because the script may change the working directory.
        self._trace = Path(options.trace).absolute() if options.trace else None
        self._report = Path(options.report).absolute() if options.report else None
        self._events: list[Event] = []
        self._recording: Recording | None = None
        self._title = "-c" if words[0] == "-c" else Path(words[words[0] == "-m"]).name

    def begin(self) -> None:
        """Start recording. Raises FileError or FolderError before the script takes time."""
        from npusim.data import folders
        from npusim.reports import model
        from npusim.torch import trace
        from npusim.torch.clock import clock

        if self._report is not None:
            folders.check(self._report, self._force, model.kind())
            if self._trace is not None and self._trace.is_relative_to(self._report):
                raise FolderError(
                    f"npusim.torch: --trace must name a folder outside that of --report, not "
                    f"{self._trace}; name another"
                )
        if self._trace is not None:
            trace.check(self._trace, self._force)
            self._events = clock.record()
        if self._report is not None:
            from npusim.torch.recording import Recording

            self._recording = Recording(self._title)
            self._recording.__enter__()

    def leave(self) -> None:
        """Write the recordings; if that fails, the exit code is 1 unless the script has failed."""
        from npusim.reports import model
        from npusim.torch import trace
        from npusim.torch.clock import clock

        has_failed = sys.exc_info()[0] is not None
        clock.stop(self._events)
        try:
            if self._trace is not None:
                trace.write(self._events, self._trace, self._device, force=self._force)
            if self._report is not None and self._recording is not None:
                self._recording.__exit__()
                run = self._recording.run
                names = model.write(run, self._report, model.kind(), force=self._force)
                self._say(f"wrote {names[0]} and {len(names) - 1} more to {self._report}")
        except (FileError, FolderError) as error:
            _say(str(error))
            if not has_failed:
                sys.exit(1)

    def _say(self, message: str) -> None:
        if not self._is_quiet:
            sys.stdout.flush()
            _say(message)


def split(argv: list[str]) -> tuple[list[str], list[str]]:
    """Split *argv* into the launcher's options, and the script with its arguments."""
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
        # Functions and classes in the code refer to their module as __main__.
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
    parser.add_argument(
        "--report",
        metavar="DIR",
        help="write report.html, the tables as CSV and JSON, and the record into DIR",
    )
    parser.add_argument("--trace", metavar="DIR", help="write trace_view.json into DIR")
    parser.add_argument(
        "--force", action="store_true", help="let --report and --trace replace earlier ones"
    )
    parser.add_argument(
        "--shapes",
        action="store_true",
        help="tensors on npu are shapes alone: they take no memory, and kernels only their time",
    )
    parser.add_argument(
        "--memory",
        metavar="CARDS",
        help="with --shapes: what tensors may take in all, for example 8x64GiB",
    )
    parser.add_argument(
        "--experts",
        metavar="FILE",
        help="with --shapes: a list of JSON, how often routers choose each expert; else evenly",
    )
    parser.add_argument(
        "--carried",
        action="store_true",
        help="let kernels find in the caches what earlier ones have left there, not nothing",
    )
    parser.add_argument(
        "--engine",
        metavar="NAME",
        help="let the host take its time for each launch, as eager or an engine's file says",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing about the card")
    return parser


def _say(message: str) -> None:
    for line in message.splitlines():
        print(f"npusim: {printable(line)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
