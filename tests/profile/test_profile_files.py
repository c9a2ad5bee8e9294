"""Profiles of each kind and version are read, and what is wrong with one is said."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from profile_files import (
    NAMES,
    OLDER,
    OLDER_SUMMARY,
    SUMMARY,
    kernel,
    swiglu,
    write,
    write_database,
)

from npusim.profile import ProfileError, read
from npusim.profile.kernels import Operand

LONG_AGO = "1723000000000{}.125\t"
"""Microseconds since 1970, more digits than a float has, and the tab that msprof appends."""


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("ASCEND_PROFILER_OUTPUT/kernel_details.csv", NAMES),
        ("kernel_details.csv", OLDER),
        ("mindstudio_profiler_output/op_summary_20260101.csv", SUMMARY),
        ("op_summary_0_1_20230101.csv", OLDER_SUMMARY),
    ],
)
def test_tables_are_read_by_the_names_of_their_columns(
    name: str, names: Mapping[str, str], tmp_path: Path
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    later, first = (swiglu(LONG_AGO.format(end), 8.5, busy=3.25) for end in ("110", "100"))
    write(path, [later, first], names)

    found = read(tmp_path)

    assert found.path == path
    one, two = found.kernels
    assert (one.start_us, two.start_us) == (0.0, 10.0)
    assert (one.name, one.type, one.cores) == (first["name"], "SwiGlu", "AI_VECTOR_CORE")
    assert (one.time_us, one.wait_us, one.blocks) == (8.5, 0.0, 12)
    assert one.inputs == (Operand((64, 2048), "float16", "ND"),)
    assert one.outputs == (Operand((64, 1024), "float16", "ND"),)
    assert one.busy_us == (3.25 if "busy" in names else None)


@pytest.mark.parametrize("blocks", ["blockNum", "blockDim"])
def test_a_database_is_read(blocks: str, tmp_path: Path) -> None:
    write_database(tmp_path / "msprof_1.db", [swiglu(10, 8), swiglu(18, 9)], blocks)
    found = read(tmp_path).kernels

    assert [(each.type, each.start_us, each.time_us) for each in found] == [
        ("SwiGlu", 0.0, 8.0),
        ("SwiGlu", 8.0, 9.0),
        ("hcom_allReduce_", 10.0, 5.0),
    ]
    assert [each.blocks for each in found] == [12, 12, None]
    assert [each.is_communication for each in found] == [False, False, True]
    assert found[0].inputs == (Operand((64, 2048), "float16", "ND"),)
    assert [path.name for path in tmp_path.iterdir()] == ["msprof_1.db"]


def test_operands_may_be_scalars_or_missing(tmp_path: Path) -> None:
    shapes = {"shapes": '"4,8;;"', "types": "DT_BF16;INT64;DT_UNDEFINED"}
    row = swiglu(0, 1, **shapes, formats="FORMAT_ND;ND;NULL")
    (found,) = read(write(tmp_path / "kernel_details.csv", [row])).kernels
    assert found.inputs == (
        Operand((4, 8), "bfloat16", "ND"),
        Operand((), "int64", "ND"),
        Operand(None, "", "NULL"),
    )


# ---- refusals ----


def _text(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "kernel_details.csv").write_text(text)


def _bytes(folder: Path) -> None:
    (folder / "kernel_details.csv").write_bytes(b"Name\xff")


def _without(column: str) -> Callable[[Path], object]:
    names = {key: name for key, name in NAMES.items() if name != column}
    return lambda folder: write(folder / "kernel_details.csv", [swiglu(0, 1)], names)


def _row(**changes: object) -> Callable[[Path], object]:
    row = swiglu(0, 1) | {name.replace("_", " "): cell for name, cell in changes.items()}
    return lambda folder: write(folder / "kernel_details.csv", [row])


def _two(folder: Path) -> None:
    for rank in ("a", "b"):
        (folder / rank).mkdir()
        write(folder / rank / "kernel_details.csv", [swiglu(0, 1)])


def _base(*statements: str) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        with closing(sqlite3.connect(folder / "msprof_1.db")) as base:
            for statement in statements:
                base.execute(statement)
            base.commit()

    return make


def _no_base(folder: Path) -> None:
    (folder / "msprof_1.db").write_bytes(b"no database" * 200)


TABLE = "profile: kernel_details.csv"
BASE = "profile: msprof_1.db"
AGAIN = "export the profile again"
INSTEAD = "name op_summary_*.csv or kernel_details.csv instead"
REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty folder": (
        lambda _: None,
        "profile: DIR must hold kernel_details.csv, op_summary*.csv, msprof*.db or "
        "ascend_pytorch_profiler*.db, but has none of them; name the folder that torch_npu's "
        "profiler or msprof left",
    ),
    "two ranks": (
        _two,
        "profile: DIR must hold one profile, not 2: a/kernel_details.csv, b/kernel_details.csv; "
        "name one of these files",
    ),
    "no UTF-8": (_bytes, f"{TABLE}: must be UTF-8, not byte 0xff; save it as UTF-8"),
    "no shapes": (
        _without("Input Shapes"),
        f"{TABLE}: line 1: columns must hold Input Shapes, but it is missing; profile at level 1 "
        "or higher (msprof: --task-time=l1), which writes it",
    ),
    "no times": (
        _without("Duration(us)"),
        f"{TABLE}: line 1: columns must hold Duration(us) or Task Duration(us), but it is missing; "
        "profile at level 1 or higher (msprof: --task-time=l1), which writes it",
    ),
    "no kernel": (
        _text(",".join(NAMES.values()) + "\n"),
        f"{TABLE}: must hold a kernel at least, not none; profile a stretch that runs some",
    ),
    "short row": (
        _text(",".join(NAMES.values()) + "\nSwiGlu\n"),
        f"{TABLE}: line 2: must have 13 cells like the first line, not 1; {AGAIN}",
    ),
    "open quote": (
        _text(",".join(NAMES.values()) + '\n"SwiGlu\n'),
        f"{TABLE}: line 2: must be CSV, but: unexpected end of data; {AGAIN}",
    ),
    "no start": (
        _row(start="soon"),
        f"{TABLE}: line 2: Start Time(us) must be a time in microseconds, not 'soon'; {AGAIN}",
    ),
    "time below 0": (
        _row(time=-1),
        f"{TABLE}: line 2: Duration(us) must be a time in microseconds, not '-1'; {AGAIN}",
    ),
    "time without end": (
        _row(time="inf"),
        f"{TABLE}: line 2: Duration(us) must be a time in microseconds, not 'inf'; {AGAIN}",
    ),
    "broken blocks": (
        _row(blocks="1.5"),
        f"{TABLE}: line 2: Block Num must be a whole number, not '1.5'; {AGAIN}",
    ),
    "too few types": (
        _row(shapes="4;8"),
        f"{TABLE}: line 2: shapes, types and formats of inputs must be as many, shapes whole "
        f"numbers, not '4;8', 'FLOAT16', 'ND'; {AGAIN}",
    ),
    "broken shape": (
        _row(out_shapes="4,x"),
        f"{TABLE}: line 2: shapes, types and formats of outputs must be as many, shapes whole "
        f"numbers, not '4,x', 'FLOAT16', 'ND'; {AGAIN}",
    ),
    "no database": (
        _no_base,
        f"{BASE}: must be a database of SQLite, but: file is not a database; {AGAIN}",
    ),
    "no tables": (
        _base("CREATE TABLE STRING_IDS (id, value)"),
        f"{BASE}: TASK must have startNs, endNs, globalTaskId, but the table is missing; {INSTEAD}",
    ),
    "no column": (
        _base("CREATE TABLE STRING_IDS (id, word)"),
        f"{BASE}: STRING_IDS must have id, value, but the column value is missing; {INSTEAD}",
    ),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_is_wrong_is_said(wrong: str, tmp_path: Path) -> None:
    make, message = REFUSED[wrong]
    make(tmp_path)
    with pytest.raises(ProfileError) as caught:
        read(tmp_path)
    assert str(caught.value) == message.replace("DIR", str(tmp_path))


def test_a_path_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ProfileError) as caught:
        read(tmp_path / "gone")
    assert str(caught.value) == (
        f"profile: {tmp_path}/gone must be a folder or a file, but there is none; check the path"
    )


def test_a_kernel_without_operands_is_read(tmp_path: Path) -> None:
    (found,) = read(write(tmp_path / "kernel_details.csv", [kernel("MemSet", 0, 1)])).kernels
    assert (found.inputs, found.outputs, found.blocks) == ((), (), None)
