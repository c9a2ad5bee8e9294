"""Folders of commands: what is replaced, what is kept, and what is left of a failure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
from commands import entries, npusim_says, refused
from records import SMALL, written

from npusim.cli import folder
from npusim.data import folders
from npusim.data.folders import FolderError


def again(out: Path, *more: str) -> tuple[str, ...]:
    return (*SMALL, "-o", str(out), *more)


def content(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}


# ---- what --force replaces ----


def test_an_empty_table_is_no_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "run.json").write_text("{}")
    (out / "letter.txt").write_text("dear")
    refused(
        1,
        f"run: the folder {out} must be one that this version of npusim has written to be "
        f"replaced, but its run.json does not say so; name another, or remove it yourself",
        *again(out, "--force"),
    )
    assert entries(out) == ["letter.txt", "run.json"]


@pytest.mark.parametrize("name", ["letter.txt", "deep/letter.txt", "msprof/simulator/letter.txt"])
def test_what_npusim_did_not_write_stays(name: str, tmp_path: Path) -> None:
    out = written(tmp_path / "out", "--export", "msprof")
    letter = out / name
    letter.parent.mkdir(exist_ok=True)
    letter.write_text("dear")
    shown = "deep" if name.startswith("deep") else name
    refused(
        1,
        f"run: the folder {out} must hold only what npusim wrote to be replaced, but holds "
        f"{shown}; move that away, or name another",
        *again(out, "--force"),
    )
    assert letter.read_text() == "dear"
    assert entries(tmp_path) == ["out"]


def test_what_insight_made_of_a_run_goes_with_it(tmp_path: Path) -> None:
    out = written(tmp_path / "out", "--export", "msprof")
    for ending in ("", "-wal", "-shm"):
        name = f"visualize_data.bin_mindstudio_insight_data.db{ending}"
        (out / "msprof/simulator" / name).write_text("of visualize_data.bin")
    (out / "msprof/simulator/mindstudio_insight_data.db.txt").write_text("dear")
    refused(
        1,
        f"run: the folder {out} must hold only what npusim wrote to be replaced, but holds "
        f"msprof/simulator/mindstudio_insight_data.db.txt; move that away, or name another",
        *again(out, "--force"),
    )
    (out / "msprof/simulator/mindstudio_insight_data.db.txt").unlink()
    assert npusim_says(*again(out, "--force")).code == 0
    assert "msprof" not in entries(out)


def test_a_link_in_a_run_is_not_npusims(tmp_path: Path) -> None:
    out = written(tmp_path / "out")
    (tmp_path / "mine.png").write_text("mine")
    (out / "pipes.png").unlink()
    (out / "pipes.png").symlink_to(tmp_path / "mine.png")
    refused(
        1,
        f"run: the folder {out} must hold only what npusim wrote to be replaced, but holds "
        f"pipes.png; move that away, or name another",
        *again(out, "--force"),
    )


def test_a_run_that_lacks_a_file_is_still_replaced(tmp_path: Path) -> None:
    out = written(tmp_path / "out", "--export", "perfetto")
    (out / "pipes.png").unlink()

    assert npusim_says(*again(out, "--force", "--no-timing")).code == 0
    assert entries(out) == ["device.json", "output.npy", "run.json"]
    assert entries(tmp_path) == ["out"]


def test_a_file_that_comes_while_a_run_is_written_stays(tmp_path: Path) -> None:
    out = written(tmp_path / "out")
    before = content(out)

    def fill(new: Path) -> list[str]:
        (new / "new.txt").write_text("new")
        (out / "letter.txt").write_text("dear")
        return ["new.txt"]

    with pytest.raises(FolderError, match=r"but holds letter\.txt; move that away"):
        folders.write(fill, out, folder.RUN, force=True)
    assert content(out) == before | {"letter.txt": b"dear"}
    assert entries(tmp_path) == ["out"]


def test_an_earlier_validation_is_known_by_what_it_holds(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "validation.json").write_text('{"rows": []}')
    refused(
        1,
        f"validate: the folder {out} must be one that this version of npusim has written to be "
        f"replaced, but its validation.json does not say so; name another, or remove it yourself",
        *("validate", "--family", "quant_a3", "-o", str(out), "--force"),
    )


# ---- what is no folder ----


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_links_and_pipes_are_left_alone(force: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "loose").symlink_to("nothing")
    os.mkfifo(tmp_path / "pipe")
    for name, what in (("link", "a symbolic link"), ("loose", "a symbolic link"),
                       ("pipe", "a named pipe")):  # fmt: skip
        out = tmp_path / name
        refused(
            1,
            f"run: the folder {out} must be new or a folder, not {what}; name another",
            *again(out, *force),
        )
    assert entries(tmp_path) == ["link", "loose", "pipe", "real"]
    assert entries(tmp_path / "real") == []


def test_a_folder_below_a_link_is_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")

    assert npusim_says(*again(tmp_path / "link" / "out", "--no-timing")).code == 0
    assert entries(tmp_path / "real") == ["out"]


# ---- several at once ----


def test_of_several_that_write_one_folder_one_succeeds(tmp_path: Path) -> None:
    out, together = tmp_path / "out", Barrier(3)

    def act(number: int) -> str:
        def fill(new: Path) -> list[str]:
            (new / "number").write_text(str(number))
            together.wait(30)
            return []

        folders.check(out, False, folder.RUN)
        try:
            folders.write(fill, out, folder.RUN)
        except FolderError as error:
            return str(error)
        return f"wrote {number}"

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(act, range(3)))
    wrote = [answer for answer in found if answer.startswith("wrote")]

    assert wrote == [f"wrote {(out / 'number').read_text()}"]
    assert sorted(set(found) - set(wrote)) == [
        f"run: the folder {out} must be new or empty, but holds number; "
        f"name another, or add --force to replace an earlier run"
    ]
    assert entries(tmp_path) == ["out"]


def test_several_that_replace_one_folder_all_succeed(tmp_path: Path) -> None:
    out, together = written(tmp_path / "out", "--no-timing"), Barrier(3)

    def act(number: int) -> list[str]:
        def fill(new: Path) -> list[str]:
            for name in ("run.json", "device.json", "output.npy"):
                (new / name).write_bytes((out / name).read_bytes())
            together.wait(30)
            return [str(number)]

        return folders.write(fill, out, folder.RUN, force=True)

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(act, range(3))) == [["0"], ["1"], ["2"]]
    assert entries(out) == ["device.json", "output.npy", "run.json"]
    assert entries(tmp_path) == ["out"]


def test_an_earlier_run_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = written(tmp_path / "out", "--no-timing")
    before, rename = content(out), Path.rename

    def broken(self: Path, target: Path) -> Path:
        if self.name == "new" and not out.exists():
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", broken)
    with pytest.raises(FolderError, match=r"but: Input/output error; name another$"):
        folders.write(lambda _: [], out, folder.RUN, force=True)
    assert content(out) == before
    assert entries(tmp_path) == ["out"]


# ---- what goes wrong ----


def test_a_full_disk_is_reported_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        # What numpy says of it.
        raise OSError("72 requested and 12 written")

    monkeypatch.setattr(np, "save", full)
    out = tmp_path / "out"
    refused(
        1,
        f"run: the folder {out} must be one that can be written, but: only part of it could be "
        f"written, so the disk may be full; name another",
        *again(out),
    )
    assert entries(tmp_path) == []


KERNEL = """
from npusim.kernel.builder import Builder
from npusim.kernel.launch import Kernel
from npusim.kernel.program import Binding, Block
from npusim.isa import Global
from npusim import TensorSpec
from npusim.data.dtypes import FLOAT32

NAME = "../../letter"

def copy(spec, x):
    builder = Builder("copy", spec.cores["aiv"], spec.sync)
    here = builder.claim("ub", 32).of(FLOAT32, 8)
    builder.data_copy(here, Global("x", 0, 32))
    builder.sync("mte2", "mte3")
    builder.data_copy(Global("y", 0, 32), here)
    block = Block(0, "aiv", builder.build(), {"x": Binding("x"), "y": Binding(NAME)})
    return Kernel("copy", (block,), {"x": x}, {NAME: TensorSpec((8,), "float32")})
"""


def test_an_output_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(KERNEL)
    (tmp_path / "letter.npy").write_text("dear")
    (tmp_path / "deep").mkdir()
    refused(
        1,
        "run: an output that is written must have a name for a file, not '../../letter'; "
        "rename it, or leave -o out",
        *("run", f"{tmp_path / 'kernel.py'}:copy", "-d", "Atlas A2", "-i", "x=ones:8"),
        *("-o", str(tmp_path / "deep" / "out")),
    )
    assert entries(tmp_path / "deep") == []
    assert (tmp_path / "letter.npy").read_text() == "dear"


SLOW = """
import time
from npusim.cli import folder, main

draw = folder._draw

def slow(run, new):
    print("ready", flush=True)
    time.sleep(30)

folder._draw = slow
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_the_earlier_run(number: signal.Signals, tmp_path: Path) -> None:
    out = written(tmp_path / "out")
    before = content(out)
    child = subprocess.Popen(
        [sys.executable, "-c", SLOW, *again(out, "--force")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(number)

    assert child.communicate(timeout=30) == ("", "")
    assert child.returncode == 128 + number
    assert content(out) == before
    assert entries(tmp_path) == ["out"]


def test_what_was_written_is_listed(tmp_path: Path) -> None:
    out = written(tmp_path / "out", "--export", "msprof", "--export", "perfetto")
    assert (out / "perfetto.json").exists()
    listed = json.loads((out / "run.json").read_text())["files"]
    found = [path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()]

    assert listed == sorted(found)
    assert "msprof/simulator/core0/trace.json" in listed
