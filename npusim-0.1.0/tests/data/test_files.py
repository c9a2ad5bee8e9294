"""Files: what is read and replaced, several writers at once, and signals in the middle."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from npusim.data import files
from npusim.data.files import FileError

ANY = "."
"""The whole message is compared after it."""


def save(path: Path, text: str = "new", *, force: bool = False) -> None:
    files.write(path, lambda new: new.write_text(text), "test", force=force)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def refused(path: Path, message: str, *, force: bool = False) -> None:
    """By the look before the work, and by the write."""
    for act in (lambda: files.check_place(path, force, "test"), lambda: save(path, force=force)):
        with pytest.raises(FileError, match=ANY) as caught:
            act()
        assert str(caught.value) == f"test: {path} {message}"


# ---- reading ----


def test_a_regular_file_is_read_also_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")

    assert files.content(tmp_path / "link", 3) == b"abc"


def test_a_file_is_read_up_to_a_size(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    with pytest.raises(OSError, match=r"it has more than 2 bytes"):
        files.content(tmp_path / "file", 2)


def test_a_pipe_a_socket_and_a_folder_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"it is a named pipe, not a regular file"):
        files.content(tmp_path / "pipe", 3)
    with socket.socket(socket.AF_UNIX) as own:
        own.bind(str(tmp_path / "socket"))
        with pytest.raises(OSError, match=r"it is a socket, not a regular file"):
            files.content(tmp_path / "socket", 3)
    with pytest.raises(IsADirectoryError):
        files.content(tmp_path, 3)


# ---- writing ----


def test_a_new_file_is_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "file"
    files.check_place(path, False, "test")
    save(path)
    (tmp_path / "other").write_text("other")

    assert path.read_text() == "new"
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode
    assert path.stat().st_nlink == 1
    assert names(path.parent) == ["file"]


def test_a_file_is_replaced_only_when_told(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    there = "must be a new file, but there is one; name another, or add --force to replace it"
    refused(path, there)
    assert path.read_text() == "old"
    files.check_place(path, True, "test")
    save(path, force=True)

    assert path.read_text() == "new"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("force", [False, True])
def test_only_a_regular_file_is_replaced(force: bool, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("old")
    (tmp_path / "link").symlink_to("other")
    (tmp_path / "loose").symlink_to("nothing")
    os.mkfifo(tmp_path / "pipe")
    before = names(tmp_path)
    end = "name another"
    for name, what in (("link", "a symbolic link"), ("loose", "a symbolic link"),
                       ("pipe", "a named pipe")):  # fmt: skip
        text = f"must be a new file or a regular one, not {what}; {end}"
        refused(tmp_path / name, text, force=force)
    refused(tmp_path, "must be a file, not a folder; name a file in it", force=force)
    assert names(tmp_path) == before
    assert (tmp_path / "other").read_text() == "old"


def test_a_file_cannot_lie_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    path = tmp_path / "file" / "new"
    with pytest.raises(FileError, match=ANY) as caught:
        files.check_place(path, False, "test")
    assert str(caught.value) == (
        f"test: {path} must be in a folder that can be written, not in {tmp_path / 'file'}; "
        f"name another"
    )


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        # What numpy raises.
        (
            OSError("65536 requested and 1000 written"),
            "only part of it could be written, so the disk may be full",
        ),
    ],
)
def test_a_full_disk_is_told_and_leaves_nothing(error: OSError, why: str, tmp_path: Path) -> None:
    def full(new: Path) -> None:
        new.write_text("half")
        raise error

    path = tmp_path / "file"
    with pytest.raises(FileError, match=ANY) as caught:
        files.write(path, full, "test")
    assert str(caught.value) == (
        f"test: {path} must be a file that can be written, but: {why}; name another"
    )
    assert names(tmp_path) == []


@pytest.mark.parametrize("has_links", [True, False])
def test_one_of_two_wins(has_links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    if not has_links:
        monkeypatch.setattr(Path, "hardlink_to", no_links)
    path = tmp_path / "file"
    save(path, "first")
    looks = iter([None])

    def late(*_: object) -> None:
        # The other one has not been there when this one looked.
        if next(looks, "again") == "again":
            raise FileError("told")

    monkeypatch.setattr(files, "_check_free", late)
    with pytest.raises(FileError, match=r"^told$"):
        save(path, "second")
    assert path.read_text() == "first"
    assert names(tmp_path) == ["file"]


# ---- signals ----

SCRIPT = """
import sys, time
from pathlib import Path
from npusim.data import files

def slow(what):
    print(what, flush=True)
    time.sleep(20)

def fill(new):
    new.write_text("half")
    if {where!r} == "fill":
        slow("ready")

def put(new):
    if {where!r} == "put":
        print("ready", flush=True)
        time.sleep(1)
    new.replace(target)

target = Path(sys.argv[1])
files.made_next_to(target, lambda folder: fill(folder / "new") or folder / "new", put)
slow("not ended")
"""


def ended(where: str, number: signal.Signals, target: Path) -> int:
    """The exit code of a process that gets a signal while it fills or puts."""
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(where=where), str(target)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(number)
    said, told = child.communicate(timeout=30)
    assert said == ""
    assert ("Traceback" in told) == (number == signal.SIGINT)
    return child.returncode


ENDING = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_leaves_nothing_behind(number: signal.Signals, tmp_path: Path) -> None:
    assert ended("fill", number, tmp_path / "file") == -number
    assert names(tmp_path) == []


def test_a_signal_waits_until_the_file_is_in_its_place(tmp_path: Path) -> None:
    assert ended("put", signal.SIGTERM, tmp_path / "file") == -signal.SIGTERM
    assert names(tmp_path) == ["file"]


def test_who_ignores_signals_goes_on(tmp_path: Path) -> None:
    # As nohup does.
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:

        def fill(new: Path) -> None:
            os.kill(os.getpid(), signal.SIGHUP)
            new.write_text("new")

        files.write(tmp_path / "file", fill, "test")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert names(tmp_path) == ["file"]


def test_signals_do_afterwards_what_they_did_before(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in ENDING]
    save(tmp_path / "file")
    assert [signal.getsignal(number) for number in ENDING] == before


def test_a_signal_within_two_of_them_unwinds_both(tmp_path: Path) -> None:
    unwound: list[str] = []

    def inner(_: Path) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(20)
        finally:
            unwound.append("inner")

    def outer() -> None:
        try:
            with files.interruptible():
                files.made_next_to(tmp_path / "file", inner, lambda _: None)
        finally:
            unwound.append("outer")

    with pytest.raises(SystemExit) as caught:
        outer()
    assert caught.value.code == 128 + signal.SIGTERM
    assert unwound == ["inner", "outer"]
    assert names(tmp_path) == []


def test_whoever_presses_ctrl_c_is_told_as_ever(tmp_path: Path) -> None:
    def fill(_: Path) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(20)

    with pytest.raises(KeyboardInterrupt), files.interruptible():
        files.made_next_to(tmp_path / "file", fill, lambda _: None)
    assert names(tmp_path) == []
