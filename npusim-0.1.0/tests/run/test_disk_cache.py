"""Times in a folder: the same as fresh, found by all they depend on, and nobody else's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chips import THREE
from test_memory_cache import CALLS, assert_same_run

from npusim import Run, TensorSpec, run
from npusim.chip import Block
from npusim.data.errors import TrapError
from npusim.run import disk_cache
from npusim.run.disk_cache import MARK, Stored, StoreError, digest_of
from npusim.run.memory_cache import forget, key_of
from npusim.run.options import CACHE_VARIABLE
from npusim.run.task import Task
from npusim.trace import Trace

pytestmark = pytest.mark.usefixtures("nothing_kept")

X, SCALES = TensorSpec((64, 512), "float16"), TensorSpec((512,), "float16")


@pytest.fixture(autouse=True)
def no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operators that are timed, each time."""
    found: list[str] = []
    usual = Task._timed

    def told(self: Task, *args: Any) -> Any:
        found.append(self._operator.name)
        return usual(self, *args)

    monkeypatch.setattr(Task, "_timed", told)
    return found


def anew(op: str = "npu_quantize", **options: Any) -> Run:
    """A call of a process that has not made it before."""
    forget()
    args = {"npu_quantize": (X, SCALES, None, "qint8", -1, False), "npu_dynamic_quant": (X,)}[op]
    return run(op, *args, **{"device": "ascend910b2", **options})


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


# ---- the same as fresh ----


@pytest.mark.sample(6)
@pytest.mark.parametrize("device", THREE)
@pytest.mark.parametrize(("op", "args", "kwargs"), CALLS, ids=[call[0] for call in CALLS])
def test_what_is_read_is_what_would_be_timed(
    op: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device: str,
    tmp_path: Path,
    timed: list[str],
) -> None:
    runs = []
    for cache in (None, tmp_path, tmp_path):
        forget()
        runs.append(run(op, *args, **kwargs, device=device, l2="warm", cache=cache))
    assert len(timed) == 2 * len(files(tmp_path)) > 0
    assert_same_run(runs[0], runs[1])
    assert_same_run(runs[0], runs[2])


def test_values_are_computed(tmp_path: Path, rng: np.random.Generator, timed: list[str]) -> None:
    for _ in range(2):
        forget()
        x = rng.standard_normal((4, 64)).astype(np.float16)
        found = run("npu_dynamic_quant", x, device="ascend910b2", cache=tmp_path)
        fresh = run("npu_dynamic_quant", x, device="ascend910b2")
        for own, other in zip(found.output, fresh.output, strict=True):
            np.testing.assert_array_equal(own, other)
    assert timed == ["npu_dynamic_quant"]


def test_a_variable_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timed: list[str]) -> None:
    anew()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "deep" / "times"))
    anew()
    anew()
    assert len(files(tmp_path / "deep" / "times")) == 1
    anew(cache=tmp_path / "other")
    assert len(files(tmp_path / "other")) == 1
    assert len(timed) == 3


# ---- what it is found by ----


@pytest.mark.parametrize(
    "other",
    [{"device": "ascend910b4"}, {"l2": "warm"}, {"l2": {"input": 0.5}}, {"every_core": True}],
    ids=str,
)
def test_other_calls_are_timed(other: dict[str, Any], tmp_path: Path, timed: list[str]) -> None:
    anew(cache=tmp_path)
    changed = anew(cache=tmp_path, **other)
    assert len(timed) == len(files(tmp_path)) == 2
    assert_same_run(changed, anew(**other))


def test_upgrades_retime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timed: list[str]) -> None:
    anew(cache=tmp_path)
    monkeypatch.setattr(disk_cache, "own_digest", lambda: b"of tomorrow")
    anew(cache=tmp_path)
    assert len(timed) == len(files(tmp_path)) == 2


def test_digests_distinguish_keys() -> None:
    keys = [
        *(1, True, "1", b"1", 1.0, (1,), ((1,),), (1, 1), None, "None", X, SCALES, int, np.int64),
        *(np.float32(1), np.ones(1), np.ones((1, 1)), {"a": 1}, {"a": 2}, ("ab", "c"), ("a", "bc")),
    ]
    digests = [digest_of(key if isinstance(key, type) else key_of(key)) for key in keys]
    assert len(set(digests)) == len(keys)
    # The same in every process, of the same npusim.
    words = (
        "from npusim.run.disk_cache import digest_of; from npusim.run.memory_cache import key_of"
    )
    code = f"{words}; print(digest_of(key_of(('ab', 1.5, True))))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == digest_of(key_of(("ab", 1.5, True)))


def test_what_no_name_says_is_not_stored(tmp_path: Path) -> None:
    def tile() -> None: ...

    with pytest.raises(TypeError) as error:
        digest_of(("tile", tile))
    assert str(error.value) == (
        "cache: a key must be made of numbers, texts and names, not function; time it anew"
    )
    trace = anew().trace
    assert trace is not None
    assert Stored(tmp_path).get(("tile", tile), tuple, lambda: trace) is trace
    assert files(tmp_path) == []


# ---- what lies there ----


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def flip(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 255
    path.write_bytes(whole)


def empty(path: Path) -> None:
    path.write_bytes(MARK)


@pytest.mark.parametrize("damage", [cut, flip, empty])
def test_a_damaged_file_is_replaced(damage: Any, tmp_path: Path, timed: list[str]) -> None:
    fresh = anew(cache=tmp_path)
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    damage(path)
    assert_same_run(anew(cache=tmp_path), fresh)
    assert len(timed) == 2
    assert (files(tmp_path), path.read_bytes()) == ([path], whole)


def test_a_file_of_another_call_is_passed_over(tmp_path: Path, timed: list[str]) -> None:
    anew(cache=tmp_path)
    (first,) = files(tmp_path)
    fresh = anew("npu_dynamic_quant", cache=tmp_path)
    (second,) = set(files(tmp_path)) - {first}
    second.write_bytes(first.read_bytes())
    assert_same_run(anew("npu_dynamic_quant", cache=tmp_path), fresh)
    assert len(timed) == 3


@pytest.mark.parametrize("kind", ["file", "folder", "link", "pipe"])
def test_what_is_not_ours_stays(kind: str, tmp_path: Path, timed: list[str]) -> None:
    anew(cache=tmp_path)
    (path,) = files(tmp_path)
    path.unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    match kind:
        case "file":
            path.write_text("mine")
        case "folder":
            path.mkdir()
        case "link":
            path.symlink_to(elsewhere)
        case "pipe":
            os.mkfifo(path)
    before = path.lstat()
    for _ in range(2):
        anew(cache=tmp_path)
    assert len(timed) == 3
    assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert (elsewhere.read_text(), files(tmp_path)) == ("mine", sorted([elsewhere, path]))


def some_trace() -> tuple[Trace, tuple[Block, ...]]:
    """A trace, and blocks that it can be of."""
    trace = anew().trace
    assert trace is not None
    cores = ((core, lane) for lane in trace.lanes for core in lane.cores)
    return trace, tuple(Block(core, lane.kind, lane.program, {}) for core, lane in cores)


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    trace, blocks = some_trace()

    def path(key: int) -> Path:
        return tmp_path / f"times-{digest_of(key)}.npz"

    def keep(key: int, most_bytes: int) -> None:
        Stored(tmp_path, most_bytes).get(key, lambda: blocks, lambda: trace)

    for key in range(4):
        keep(key, 1 << 30)
        os.utime(path(key), (key, key))
    foreign = tmp_path / f"times-{'0' * 64}.npz"
    foreign.write_text("mine")
    os.utime(foreign, (0, 0))
    keep(0, 1 << 30)  # used again
    nbytes = path(0).stat().st_size
    keep(4, 3 * nbytes + nbytes // 2)
    assert foreign.read_text() == "mine"
    assert [path(key).exists() for key in range(5)] == [True, False, False, True, True]


def test_what_does_not_fit_is_not_stored(tmp_path: Path) -> None:
    trace, blocks = some_trace()
    for most_bytes, count in ((100, 0), (1 << 20, 1)):
        folder = Stored(tmp_path, most_bytes)
        assert folder.get("key", lambda: blocks, lambda: trace) is trace
        assert len(files(tmp_path)) == count


def test_a_kernel_that_stops_itself_does_so_every_time(tmp_path: Path) -> None:
    def stop() -> Any:
        raise TrapError("stopped")

    for _ in range(2):
        with pytest.raises(TrapError, match="stopped"):
            Stored(tmp_path).get(("key",), tuple, stop)
    assert files(tmp_path) == []


def test_bad_folders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    with pytest.raises(StoreError) as error:
        anew(cache=taken)
    assert str(error.value) == (
        f"run: cache must be a folder, not {taken}: File exists; name another"
    )
    monkeypatch.setenv(CACHE_VARIABLE, str(taken / "deeper"))
    with pytest.raises(StoreError) as error:
        anew()
    assert str(error.value) == (
        f"run: {CACHE_VARIABLE} must be a folder, not {taken / 'deeper'}: Not a directory; "
        f"name another"
    )


@pytest.mark.parametrize(
    ("cache", "kind", "message"),
    [
        ("a\0b", StoreError, "run: cache must be a folder, not 'a\\x00b' with a null byte; name "
         "another"),
        (3, TypeError, "run: cache must be the path of a folder, not 3; pass a string or a Path"),
        (b"a", TypeError, "run: cache must be the path of a folder, not b'a'; pass a string or a "
         "Path"),
    ],
)  # fmt: skip
def test_what_is_no_path_is_refused(cache: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        anew(cache=cache)


# ---- several processes ----

SWEEP = """
import sys
from npusim import TensorSpec, run
for rows in (8, 16, 24, 32) * 2:
    x = TensorSpec((rows, 512), "float16")
    found = run("npu_dynamic_quant", x, device="ascend910b2", cache=sys.argv[1], l2="warm")
    print(rows, found.cycles, found.trace.gm_bytes, sum(map(ord, found.trace.to_text())))
"""


def test_several_processes_share_a_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SWEEP, str(tmp_path)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    told = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert told[0] == told[1]
    assert len(told[0].splitlines()) == 8
    assert len(files(tmp_path)) == 4
    assert all(path.read_bytes().startswith(MARK) for path in files(tmp_path))
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert again.stdout == told[0]
