"""Damaged runs on disk: whatever is wrong with one, it is refused in one line that says what."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import zipfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from records import written
from tampering import leaves, members, put, replaced, resealed, retold

from npusim.trace import record
from npusim.trace.record import RecordError

FILES = ("run.json", "device.json", "trace.npz")
SAMPLES = 150
"""Places that are tried in each file."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("whole") / "out")


@pytest.fixture
def out(whole: Path, tmp_path: Path) -> Path:
    """A copy of it to damage."""
    return Path(shutil.copytree(whole, tmp_path / "out"))


def refused(folder: Path, what: str) -> None:
    with pytest.raises(RecordError) as caught:
        record.read(folder)
    assert str(caught.value) == (
        f"report: the folder {folder} must hold a whole run, but {what}; "
        f"write it again with npusim run -o"
    )


def verdict(folder: Path) -> str:
    """What a read says; empty if the run is taken. Anything but a RecordError is a defect."""
    try:
        record.read(folder)
    except RecordError as error:
        text = str(error)
        assert text.startswith("report: the ")
        assert text.isprintable()
        assert text.endswith("; write it again with npusim run -o")
        return text
    return ""


# ---- by accident ----


def test_a_folder_must_hold_a_run(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(RecordError) as caught:
            record.read(folder)
        assert str(caught.value) == (
            f"report: the folder {folder} must hold a run.json, but holds none; "
            f"name one that npusim run -o has written"
        )


@pytest.mark.parametrize("version", [None, 1, 3, 10])
def test_another_version_is_told(version: int | None, out: Path) -> None:
    facts = json.loads((out / "run.json").read_text())
    del facts["version"]
    if version is not None:
        facts["version"] = version
    (out / "run.json").write_text(json.dumps(facts))

    with pytest.raises(RecordError) as caught:
        record.read(out)
    assert str(caught.value) == (
        f"report: the run in {out} must be of version 9, not {version or 1}; "
        f"write it again with npusim run -o"
    )


@pytest.mark.parametrize("name", ["device.json", "trace.npz"])
def test_a_file_that_is_gone_is_reported(name: str, out: Path) -> None:
    (out / name).unlink()
    refused(out, f"{name} is missing")


@pytest.mark.parametrize("name", FILES)
def test_a_folder_in_the_place_of_a_file_is_reported(name: str, out: Path) -> None:
    (out / name).unlink()
    (out / name).mkdir()
    refused(out, f"{name} cannot be read: Is a directory")


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_is_not_waited_for(name: str, out: Path) -> None:
    (out / name).unlink()
    os.mkfifo(out / name)
    refused(out, f"{name} cannot be read: it is a named pipe, not a regular file")


@pytest.mark.parametrize("name", FILES)
def test_no_flipped_bit_goes_unnoticed(name: str, out: Path) -> None:
    content = (out / name).read_bytes()
    draw = random.Random(name)
    places = draw.sample(range(len(content)), min(SAMPLES, len(content)))
    for place in places:
        broken = bytearray(content)
        broken[place] ^= 1 << draw.randrange(8)
        (out / name).write_bytes(broken)
        assert verdict(out), f"byte {place} of {name}"


@pytest.mark.parametrize("name", FILES)
def test_no_cut_goes_unnoticed(name: str, out: Path) -> None:
    content = (out / name).read_bytes()
    for length in {0, 1, 10, len(content) // 2, len(content) - 2}:
        (out / name).write_bytes(content[:length])
        assert verdict(out), f"{length} bytes of {name}"


# ---- on purpose: with sums that fit ----


@pytest.mark.parametrize("name", ["device.json", "trace.npz"])
def test_a_flipped_bit_ends_in_nothing_but_a_line(name: str, out: Path) -> None:
    content = (out / name).read_bytes()
    draw = random.Random(name)
    told = 0
    for place in draw.sample(range(len(content)), SAMPLES):
        broken = bytearray(content)
        broken[place] ^= 1 << draw.randrange(8)
        (out / name).write_bytes(broken)
        resealed(out)
        told += bool(verdict(out))
    # The others are in what nobody reads, such as dates, or make another number that makes sense.
    assert told > SAMPLES / 3


WRONG: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**31, 2**47, 2**63, 10**30, 1.5, float("inf"), "", "x", "\x1b[31m"),
    *("<img src=x>", [], {}, [1], {"a": 1}, "float16", "l0c"),
)


def test_a_wrong_value_anywhere_in_a_trace_ends_in_nothing_but_a_line(out: Path) -> None:
    tree, arrays = members(out)
    draw = random.Random(1)
    ways = list(leaves(tree))
    told = 0
    for _ in range(SAMPLES):
        other = deepcopy(tree)
        put(other, draw.choice(ways), draw.choice(WRONG))
        replaced(out, other, arrays)
        told += bool(verdict(out))
    assert told > SAMPLES / 2


def test_a_wrong_value_anywhere_in_the_numbers_ends_in_nothing_but_a_line(out: Path) -> None:
    facts = json.loads((out / "run.json").read_text())
    draw = random.Random(2)
    ways = [way for way in leaves(facts) if way[0] != "sha256"]
    told = 0
    for _ in range(SAMPLES):
        other = deepcopy(facts)
        put(other, draw.choice(ways), draw.choice(WRONG))
        resealed(out, other)
        told += bool(verdict(out))
    assert told > SAMPLES / 2


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda facts: facts.pop("counters"), "counters: Field required"),
        (
            lambda facts: facts.update(gm_bytes=-1),
            "gm_bytes: Input should be greater than or equal to 0",
        ),
        (lambda facts: facts.update(time_us="3"), "time_us: Input should be a valid number"),
        (
            lambda facts: facts.update(launch_us=-0.5),
            "launch_us: Input should be greater than or equal to 0",
        ),
        (
            lambda facts: facts.update(files=["../other"]),
            "files.0: Value error, must be a path below the folder",
        ),
        (lambda facts: facts.update(version="4"), "version must be a small number"),
    ],
)
def test_run_json_has_a_schema(change: Change, why: str, out: Path) -> None:
    retold(out, change)
    refused(out, f"run.json is damaged: {why}")


@pytest.mark.parametrize("text", ["[]", "4", "nothing", "[" * 100_000, '{"a": NaN}', "1" * 5000])
def test_what_is_no_table_is_reported(text: str, out: Path) -> None:
    (out / "run.json").write_text(text)
    why = "it holds no table" if text in ("[]", "4") else "it is no JSON"
    refused(out, f"run.json is damaged: {why}")


def test_another_checksum_is_reported(out: Path) -> None:
    facts = json.loads((out / "run.json").read_text())
    facts["op"] = "npu_other"
    (out / "run.json").write_text(json.dumps(facts))
    refused(out, "run.json is damaged: it is not what was written")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            lambda facts: facts.update(cycles=facts["cycles"] + 1),
            "trace.npz is damaged: its cycles and counters must be those of run.json",
        ),
        (
            lambda facts: facts.update(time_us=facts["time_us"] + 1),
            "trace.npz is damaged: its time must be that of run.json",
        ),
        (
            lambda facts: facts.update(device="ascend910b2"),
            "device.json is damaged: device must be that of run.json",
        ),
    ],
)
def test_files_must_be_of_one_run(change: Change, what: str, out: Path) -> None:
    retold(out, change)
    refused(out, what)


# ---- arrays ----

Arrays = dict[str, np.ndarray]
LEAST = np.iinfo(np.int64).min


def _add(arrays: Arrays, name: str) -> None:
    arrays[name] = arrays["times0"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda arrays: arrays.pop("times0"),
            "it must hold 3 arrays, and 'times0.npy' is one too many or missing",
        ),
        (
            lambda arrays: _add(arrays, "times1"),
            "it must hold 3 arrays, and 'times1.npy' is one too many or missing",
        ),
        (
            lambda arrays: arrays.update(times0=arrays["times0"][:, :-1]),
            "times0 must be int64 (3, {ops}), not int64 (3, {one_less})",
        ),
        (
            lambda arrays: arrays.update(times0=arrays["times0"].T.copy()),
            "times0 must be int64 (3, {ops}), not int64 ({ops}, 3)",
        ),
        (
            lambda arrays: arrays.update(times0=arrays["times0"].astype(np.float64)),
            "times0 must be int64 (3, {ops}), not float64 (3, {ops})",
        ),
        (
            lambda arrays: arrays.update(times0=np.asfortranarray(arrays["times0"])),
            "times0 must be in row-major order",
        ),
        (
            lambda arrays: arrays.update(times0=-arrays["times0"]),
            "times must ascend, from 0 to {cycles} cycles",
        ),
        (
            lambda arrays: arrays.update(times0=arrays["times0"] << 40),
            "times must ascend, from 0 to {cycles} cycles",
        ),
        (
            lambda arrays: arrays.update(times0=np.full_like(arrays["times0"], LEAST)),
            "times must ascend, from 0 to {cycles} cycles",
        ),
        (
            lambda arrays: arrays.update(copies0=arrays["copies0"][:, :-1].copy()),
            "copies0 must be int64 (7, {copies}), not int64 (7, {one_copy_less})",
        ),
        *(
            (change, "what held copies up must lie within their times")
            for change in (
                lambda arrays: arrays.update(copies0=-arrays["copies0"]),
                lambda arrays: arrays.update(copies0=arrays["copies0"] + 1000),
                lambda arrays: arrays.update(copies0=np.full_like(arrays["copies0"], LEAST)),
            )
        ),
    ],
)
def test_arrays_fit_the_programs(change: Callable[[Arrays], object], why: str, out: Path) -> None:
    tree, arrays = members(out)
    ops, cycles = arrays["times0"].shape[1], json.loads((out / "run.json").read_text())["cycles"]
    copies = arrays["copies0"].shape[1]
    known = {"copies": copies, "one_copy_less": copies - 1}
    change(arrays)
    replaced(out, tree, arrays)
    known |= {"ops": ops, "one_less": ops - 1, "cycles": cycles}
    refused(out, f"trace.npz is damaged: {why.format(**known)}")


def _bomb(path: Path, claimed: int) -> None:
    """A member `times0` that unpacks to *claimed* bytes of zeros, out of a thousandth of them."""
    head = io.BytesIO()
    shape = (3, claimed // 24)
    np.lib.format.write_array_header_1_0(
        head, {"descr": "<i8", "fortran_order": False, "shape": shape}
    )
    with np.load(path) as found:
        others = {name: found[name] for name in ("programs", "copies0")}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in others.items():
            packed = io.BytesIO()
            np.save(packed, array)
            archive.writestr(f"{name}.npy", packed.getvalue())
        with archive.open("times0.npy", "w") as member:
            member.write(head.getvalue())
            for _ in range(claimed >> 20):
                member.write(bytes(1 << 20))


def test_a_zip_bomb_is_not_unpacked(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, arrays = members(out)
    _bomb(out / "trace.npz", 1 << 26)
    resealed(out)
    unpacked: list[str] = []
    read = zipfile.ZipFile.read

    def spy(self: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
        unpacked.append(member.filename)
        return read(self, member)

    monkeypatch.setattr(zipfile.ZipFile, "read", spy)

    refused(
        out,
        f"trace.npz is damaged: times0 must be int64 {arrays['times0'].shape}, not 67108992 bytes",
    )
    assert unpacked == ["programs.npy"]


def test_a_long_text_is_not_unpacked(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree, arrays = members(out)
    monkeypatch.setattr("npusim.trace.archive.MAX_HEADER_BYTES", 0)
    monkeypatch.setattr("npusim.trace.archive.MAX_TEXT_BYTES", 1000)
    replaced(out, tree, arrays)
    refused(out, "trace.npz is damaged: programs must have at most 1000 bytes")


def test_programs_have_no_more_text_than_what_runs_can_need(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = json.loads((out / "run.json").read_text())
    count = sum(
        each["micro_ops"] for pipes in facts["counters"].values() for each in pipes.values()
    )
    most = (1 << 18) + (1 << 11) * count
    tree, arrays = members(out)
    tree["programs"][0]["name"] = "a" * (most + (1 << 16))
    replaced(out, tree, arrays)
    unpacked: list[str] = []
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda _, info: unpacked.append(info.filename))
    refused(out, f"trace.npz is damaged: programs must have at most {most} bytes")
    assert unpacked == []


def test_a_member_must_come_once(out: Path) -> None:
    with zipfile.ZipFile(out / "trace.npz", "a") as archive:
        content = archive.read("times0.npy")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("times0.npy", content)
    resealed(out)
    refused(
        out,
        "trace.npz is damaged: it must hold 3 arrays, and 'copies0.npy' is one too many or missing",
    )


def test_a_member_must_be_packed_as_numpy_does_it(out: Path) -> None:
    with np.load(out / "trace.npz") as found:
        np.savez(out / "trace.npz", **dict(found))
    resealed(out)
    refused(out, "trace.npz is damaged: programs must be packed as numpy does it")


# ---- programs ----


def _first_op(tree: Any) -> Any:
    return tree["bodies"][0][0][0]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda tree: tree["lanes"][0].update(cores=[-1]),
            "lanes.0.cores.0: Input should be greater than or equal to 0",
        ),
        (
            lambda tree: tree["lanes"][0].update(speed=1),
            "lanes.0.speed: Extra inputs are not permitted",
        ),
        (lambda tree: tree["lanes"][0].update(cores=[0, 0], groups=[0, 0]),
         "a core must be in one lane"),
        (lambda tree: tree["lanes"][0].update(groups=[0, 0]),
         "each core of a lane must have its group, or none"),
        (lambda tree: tree["lanes"][0].update(program=1),
         "a lane must run a program that is there"),
        (
            lambda tree: tree["lanes"][0].update(kind="aiv"),
            "cores must be of a kind that ascend310p3 has, not 'aiv'",
        ),
        (
            lambda tree: tree["lanes"][0].update(cores=list(range(9)), groups=[]),
            "at most 8 cores must be ai_core, not 9",
        ),
        (lambda tree: tree.update(clock_hz=1), "clock_hz must be that of the chip"),
        (
            lambda tree: tree["programs"][0]["calls"][0].__setitem__(0, len(tree["bodies"])),
            "program 'npu_quantize' must call bodies that are there",
        ),
        (
            lambda tree: _first_op(tree).__setitem__(0, "Exec"),
            "a micro-op must be one that is known, not ['Exec', ['Local', 'ub', 768, "
            "['DType', 'uint8'], 48, 1, 8, ...",
        ),
        (
            lambda tree: _first_op(tree)[1].__setitem__(1, "\x1b[2J"),
            "buffer of Local must be what it declares, not '\\x1b[2J'",
        ),
        (
            lambda tree: _first_op(tree)[2].__setitem__(3, 10**30),
            "burst_bytes of Global must be what it declares, not 1000000000000000000000000000000",
        ),
        (lambda tree: _first_op(tree).pop(), "Load must have 4 parts, not 3"),
        (
            lambda tree: tree["bodies"][0][0].__setitem__(0, ["DType", "int8"]),
            "a body must hold micro-ops, not ['DType', 'int8']",
        ),
        (
            lambda tree: _first_op(tree)[1].__setitem__(3, ["DType", "int5"]),
            "a type must be known, not 'int5'",
        ),
        (lambda tree: tree["bodies"][0][1].pop(),
         "every micro-op of a body must have its line, or none"),
    ],
)  # fmt: skip
def test_programs_must_be_what_a_chip_runs(change: Change, why: str, out: Path) -> None:
    tree, arrays = members(out)
    change(tree)
    replaced(out, tree, arrays)
    refused(out, f"trace.npz is damaged: {why}")
