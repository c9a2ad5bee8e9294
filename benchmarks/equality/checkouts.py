"""Checkouts of npusim: the one that the current tree is compared with, and runs of calls in one."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from described import Call, written

__all__ = ["HERE", "Cache", "Outcome", "Runner", "checkout_of", "require_engine", "version_of"]

HERE = Path(__file__).resolve().parents[2]
"""The current tree."""
PLAYER = Path(__file__).with_name("play.py")
ENGINE = "npusim/timing/compiled"
TOO_LONG = 75
"""The exit code of a process one of whose calls took too long, see `play`."""
Outcome = dict[str, Any]


@contextmanager
def checkout_of(commit: str) -> Iterator[Path]:
    """A worktree of *commit* in a temporary folder, its engine built; it is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="npusim-equality-") as folder:
        place = Path(folder) / "checkout"
        git = ["git", "-C", str(HERE), "worktree"]
        _run([*git, "add", "--detach", str(place), commit])
        try:
            # Older commits have all of the build in pyproject.toml.
            has_setup = (place / "setup.py").exists()
            setup = ["setup.py"] if has_setup else ["-c", "from setuptools import setup; setup()"]
            _run([sys.executable, *setup, "-q", "build_ext", "--inplace"], place)
            require_engine(place)
            yield place
        finally:
            _run([*git, "remove", "--force", str(place)])


def _run(command: Sequence[str], folder: Path = HERE) -> None:
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"equality: {' '.join(command)} failed:\n{ended.stdout}{ended.stderr}")


def require_engine(checkout: Path) -> None:
    """Refuse a *checkout* whose compiled engine is missing or older than its sources."""
    folder = checkout / ENGINE
    built = [path.stat().st_mtime for path in folder.glob("_engine*.so")]
    sources = [path.stat().st_mtime for pattern in ("*.c", "*.h") for path in folder.glob(pattern)]
    if not built or max(built) < max(sources):
        raise SystemExit(
            f"equality: {folder} must have an engine that is newer than its sources, and has "
            f"{'an older one' if built else 'none'}; run: cd {checkout} && {sys.executable} "
            f"setup.py build_ext --inplace"
        )


def version_of(checkout: Path) -> str | None:
    """What outcomes of *checkout* depend on, or None if it has changes that no commit has."""
    git = ["git", "-C", str(checkout)]
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
    changes = subprocess.run(
        [*git, "status", "--porcelain", "--", "npusim"], capture_output=True, text=True
    )
    if commit.returncode or changes.stdout.strip():
        return None
    return f"{commit.stdout.strip()} numpy {np.__version__}"


@dataclass
class Cache:
    """Outcomes of earlier runs in a file, each under a digest of its checkout and its call."""

    path: Path | None
    version: str | None
    found: dict[str, Outcome] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is None or self.version is None or not self.path.exists():
            return
        with self.path.open() as lines:
            for line in lines:
                # Another process may be in the middle of writing the last line.
                if line.endswith("\n"):
                    key, outcome = json.loads(line)
                    self.found[key] = outcome

    def key(self, call: Call) -> str:
        """The digest under which the outcome of *call* lies."""
        whole = json.dumps([self.version, written(call)])
        return hashlib.sha256(whole.encode()).hexdigest()[:32]

    def get(self, call: Call) -> Outcome | None:
        """The outcome of *call*, if it is known."""
        return self.found.get(self.key(call)) if self.found else None

    def add(self, call: Call, outcome: Outcome) -> None:
        """Keep *outcome* of a call that ended, in one write: several processes share the file."""
        is_whole = "outputs" in outcome or "message" in outcome
        if self.path is not None and self.version is not None and is_whole:
            with self.path.open("a") as to:
                to.write(json.dumps([self.key(call), outcome]) + "\n")


class Runner:
    """Runs calls in a separate process, with the npusim of one checkout."""

    def __init__(self, checkout: Path, calls: Sequence[Call], folder: Path) -> None:
        self.checkout = checkout
        self.calls = calls
        self.outcomes: list[Outcome] = []
        self._folder = folder
        self._folder.mkdir()
        self._process: subprocess.Popen[str] | None = None
        if calls:
            self._start()

    def _start(self) -> None:
        """Start with the first call that has no outcome yet."""
        left = self.calls[len(self.outcomes) :]
        given, to = self._folder / "calls", self._folder / "outcomes"
        given.write_text("".join(written(call) + "\n" for call in left))
        to.unlink(missing_ok=True)
        env = {name: text for name, text in os.environ.items() if not name.startswith("NPUSIM_")}
        env |= {"PYTHONPATH": str(self.checkout), "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, str(PLAYER), str(self.checkout), str(given), str(to)],
            cwd=self._folder,
            env=env,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def done(self) -> int:
        """How many calls have been run, so far as their outcomes are written down."""
        return len(self.outcomes) + len(self._written())

    def _written(self) -> list[Outcome]:
        path = self._folder / "outcomes"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait(self, seconds: float) -> bool:
        """Wait for *seconds* at most; whether all calls have been run."""
        if self._process is None:
            return True
        try:
            _, words = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        self.outcomes += self._written()
        (self._folder / "outcomes").unlink(missing_ok=True)
        code, self._process = self._process.returncode, None
        if len(self.outcomes) == len(self.calls):
            return True
        if code == 1:
            raise SystemExit(f"equality: the calls could not be run in {self.checkout}:\n{words}")
        if code == TOO_LONG:
            self.outcomes.append({"too_long": True, "cpu_s": 0.0})
        else:
            self.outcomes.append({"error": f"the process ended with {code}", "cpu_s": 0.0})
        if len(self.outcomes) == len(self.calls):
            return True
        self._start()
        return False

    def stop(self) -> None:
        """End the process, if it still runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
