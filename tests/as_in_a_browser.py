"""CPython with less: what Pyodide lacks in a browser is taken away before npusim is imported.

No thread starts, no process starts, and integers of numpy have 32 bits where nothing else is asked
for (https://pyodide.org/en/stable/usage/wasm-constraints.html).
"""

from __future__ import annotations

import importlib.abc
import json
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Sequence
from hashlib import sha256
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

MAKERS = {
    "arange": 99,
    "array": 1,
    "asarray": 1,
    "empty": 1,
    "fromiter": 1,
    "full": 2,
    "ones": 1,
    "zeros": 1,
}
"""What makes an array: name -> which argument is its dtype."""
MISSING = {"_multiprocessing", "_posixshmem", "_posixsubprocess", "fcntl", "resource", "termios"}
"""Modules that are not part of Python there."""


def take_away() -> None:
    sysconfig.get_config_vars()  # looked up by the name of the platform, once
    sys.platform = "emscripten"
    assert not MISSING & {*sys.modules}, MISSING & {*sys.modules}
    sys.meta_path.insert(0, _Missing())
    for name in "fork", "forkpty", "posix_spawn", "posix_spawnp", "sched_getaffinity":
        vars(os).pop(name, None)
    for module, name in (threading, "_start_new_thread"), (threading, "_start_joinable_thread"):
        if hasattr(module, name):
            setattr(module, name, _no_thread)
    sys.modules["_thread"].start_new_thread = _no_thread  # type: ignore[attr-defined]
    _narrow_integers()


class _Missing(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in MISSING:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


def _no_thread(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("can't start new thread")


def _narrow_integers() -> None:
    """Have arrays that npusim makes of integers be of 32 bits, where it asks for nothing else."""
    import numpy as np

    def narrowed(make: Callable[..., Any], place: int) -> Callable[..., Any]:
        """*make*, whose argument number *place* is a dtype."""

        def call(*args: Any, **kwargs: Any) -> Any:
            made = make(*args, **kwargs)
            asked = kwargs.get("dtype", args[place] if len(args) > place else None)
            is_here = sys._getframe(1).f_globals.get("__name__", "").startswith("npusim")
            parts = args[0] if args and isinstance(args[0], list | tuple) else args[:1]
            is_given = any(isinstance(each, np.ndarray | np.generic) for each in parts)
            if not is_here or made.dtype != np.int64 or asked not in (None, int) or is_given:
                return made
            if made.size and not -(2**31) <= made.min() <= made.max() < 2**31:
                raise OverflowError("Python int too large to convert to C long")
            return made.astype(np.int32)

        return call

    for name, place in MAKERS.items():
        setattr(np, name, narrowed(getattr(np, name), place))


def answers() -> dict[str, Any]:
    """Times and digests of twenty calls, the time of one that needs offsets of 64 bits, and what
    the site's page gets."""
    import numpy as np
    from calls import CALLS
    from in_browser import cell, command

    import npusim

    calls = [*CALLS.items()][::STRIDE]
    found: dict[str, Any] = {}
    for name, (op, call) in calls:
        run = npusim.run(op, **call, device="Atlas A2", engine="simpy")
        outputs = run.output if isinstance(run.output, tuple) else (run.output,)
        bits = [
            np.asarray(each.array if isinstance(each, npusim.Tensor) else each) for each in outputs
        ]
        digest = sha256(b"".join(each.tobytes() for each in bits)).hexdigest()
        found[name] = [run.time_us, digest]
    vocabulary = npusim.TensorSpec((400_000, 5120), "float32")
    rows = np.array([399_999, 1, 7], np.int32)
    far = npusim.run(
        "embedding", weight=vocabulary, indices=rows, device="310P", values=False, engine="simpy"
    )
    found["beyond 4 GiB"] = far.time_us
    words = ["npu_swiglu", "-d", "A2", "-i", "x=full:16x64:float16:value=1"]
    found["command"] = command(words)
    found["refused"] = command(["npu_swiglu", "-d", "A2"])
    found["cells"] = [cell(source) for source in CELLS]
    return found


CELLS = (
    "%%writefile seven.py\nSEVEN = 7",
    "%matplotlib inline\nfrom seven import SEVEN\nprint(SEVEN)\nSEVEN + 1",
    "1 / 0",
)
STRIDE = 5
"""Every fifth of the calls that tests make, some twenty."""

if __name__ == "__main__":
    take_away()
    sys.path.insert(0, sys.argv[1])
    print(json.dumps(answers()))
