"""Copies of the tree, in which mutants are made and tests run: the tree itself stays as it is."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path

from mutant import Mutant

__all__ = ["HERE", "Copy", "Outcome"]

HERE = Path(__file__).parents[2]
ENGINE = "npusim/timing/compiled"
FAILED = 1
"""What pytest ends with when a test failed, with others when there was none to run."""
NO_TESTS = 4, 5
TOO_LONG = "too long"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of some tests."""

    code: int
    """What pytest ended with."""
    by: str
    """The first test that failed, or how the run ended otherwise; empty if all passed."""
    text: str
    seconds: float


class Copy:
    """A copy of the tree in *folder*, with an engine that is built there."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        listed = ["git", "-C", str(HERE), "ls-files", "-z", "-c", "-o", "--exclude-standard"]
        names = subprocess.run(listed, check=True, capture_output=True, text=True).stdout
        for name in dict.fromkeys(names.split("\0")):
            source, target = HERE / name, folder / name
            # Git lists folders of links, and files that were removed since, too.
            if source.is_symlink() or source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
        self._engine = self._built("the engine")

    @contextmanager
    def changed(self, mutant: Mutant) -> Iterator[None]:
        """Have the change of *mutant* in the copy, and the engine built from it."""
        path = self.root / mutant.path
        source, facts = path.read_text("utf-8"), path.stat()
        # What Python compiled is found by size and second alone.
        compiled = Path(cache_from_source(str(path)))
        engine = self._engine.read_bytes()
        try:
            path.write_text(mutant.applied(source), "utf-8")
            compiled.unlink(missing_ok=True)
            if mutant.is_compiled:
                self._built(mutant.name)
            yield
        finally:
            path.write_text(source, "utf-8")
            os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
            compiled.unlink(missing_ok=True)
            if mutant.is_compiled:
                self._engine.unlink(missing_ok=True)
                self._engine.write_bytes(engine)

    def _built(self, what: str) -> Path:
        """The engine, built anew; raises SystemExit, naming *what*, if that cannot be."""
        folder = self.root / ENGINE
        # What does not compile is passed over, as the engine is optional: then there is none.
        for before in folder.glob("_engine*"):
            before.unlink()
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--force"]
        ran = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False)
        for engine in folder.glob("_engine*"):
            return engine
        raise SystemExit(
            f"mutants: {what} must compile, but does not; install a C compiler, or change the "
            f"row:\n{ran.stdout}{ran.stderr}"
        )

    def test(self, tests: Sequence[str], limit_s: float, *more: str) -> Outcome:
        """Run *tests*, up to the first that fails, for *limit_s* at most."""
        env = {name: text for name, text in os.environ.items() if not name.startswith("NPUSIM_")}
        env |= {"PYTHONPATH": str(self.root), "OPENBLAS_NUM_THREADS": "1"}
        options = ("-q", "-x", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--tb=short")
        begun = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *(more or ("-n", "0")), *tests],
            cwd=self.root,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            text, _ = process.communicate(timeout=limit_s)
            by = _ended_by(process.returncode, text)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            text, by = process.communicate()[0], TOO_LONG
        if process.returncode in NO_TESTS:
            raise SystemExit(f"mutants: {' '.join(tests)} must be tests, but are not:\n{text}")
        return Outcome(process.returncode, by, text, time.monotonic() - begun)


def _ended_by(code: int, text: str) -> str:
    """The first test that failed, or how pytest ended; empty if all passed."""
    if not code:
        return ""
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word in ("FAILED", "ERROR") and rest:
            return rest.partition(" - ")[0]
    return f"the end of pytest with {code}"
