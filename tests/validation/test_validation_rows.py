"""Measured rows: what a file may hold, and what is said of one that holds something else."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from npusim import devices
from npusim.validation import Row, RowError, read
from npusim.validation.rows import L2_STATES, PARSERS

HEAD = "id,family,op,device,latency_us"
LINE = "a1,ours,matmul,Atlas A2,12.5"
COLUMNS = ", ".join(PARSERS)


def write(folder: Path, *lines: str) -> Path:
    path = folder / "mine.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def refused(path: Path, message: str) -> None:
    with pytest.raises(RowError) as caught:
        read(path)
    assert str(caught.value) == f"validate: {path.name}: {message}"


def test_the_shipped_rows_are_all_there() -> None:
    rows = read()
    families = Counter(row.family for row in rows)

    assert (len(rows), len(families)) == (3553, 54)
    assert families["dynquant_qbmm_910b"] == 621
    assert families["micro_a2"] == 54
    assert all(row.source for row in rows)
    assert {devices.load(row.device).name for row in rows} == {
        *("ascend310p3", "ascend910b1", "ascend910b2", "ascend910b3", "ascend910b4"),
        *("ascend910_9362", "ascend910_9381", "ascend910_9391"),
    }


def test_a_shipped_row_is_what_its_source_says() -> None:
    (row,) = (row for row in read() if row.id == "m0002")

    assert (row.op, row.device, row.b, row.m, row.k, row.n) == (
        *("npu_quant_matmul", "ascend910b2", 1, 1024, 3584, 4608),
    )
    assert (row.x_dtype, row.out_dtype, row.scale_dtype, row.w_layout) == (
        *("int8", "float16", "float32", "ND"),
    )
    assert (row.antiquant_offset, row.pertoken, row.bias) == (None, False, True)
    assert (row.l2, row.latency_us, row.latency_min_us) == ("flushed", 83.98, None)


def test_no_shipped_row_tells_the_limit_in_place_of_a_time() -> None:
    """Cann-bench publishes the lesser of the time and max(10 us, ten times its roofline)."""
    capped = {
        *(("weight_quant_batch_matmul", 4), ("quant_matmul", 16), ("maximum", 12), ("maximum", 19)),
        *(("dynamic_quant", case) for case in (9, 13, 14)),
    }
    # Of two grouped products the number of the case is not known.
    theirs = [
        row
        for row in read()
        if row.op != "add" and "cann-bench" in row.source and " case " in row.source
    ]
    told = {(row.source.split("/")[-2], int(row.source.rpartition(" ")[2])) for row in theirs}

    assert len(told) == len(theirs) == 162
    assert {task for task, _ in capped} <= {task for task, _ in told}
    assert not told & capped
    assert 10.0 not in {row.latency_us for row in theirs}


def test_production_rows_tell_the_least_time_too() -> None:
    with_least = {
        row.family
        for row in read()
        if row.latency_min_us is not None and row.family != "matmul_bf16_910b"
    }
    assert with_least == {
        *("matmul_a3", "qbmm_a3_nz", "dynquant_a3", "quant_a3", "cast_a3", "add_a3", "swiglu_a3"),
        *("rmsnorm_a3", "addrmsnorm_a3", "addrmsnorm_dynquant_a3", "clone_a3", "copies_a3"),
        *("elementwise_a3", "rowwise_a3", "moe_gating_a3"),
    }


def test_kernels_that_waited_for_their_host_are_judged_later(tmp_path: Path) -> None:
    sizes = {
        "slow": (4, 256, 512, 10.0),
        "larger": (4, 512, 512, 7.9),
        "still larger": (8, 512, 512, 7.0),
        # Nothing else is as wide: one faster product alone may owe it to its tiling.
        "wide": (1, 256, 4096, 10.0),
        "wider": (1, 256, 8192, 7.0),
        # Slower than any host.
        "long": (1, 256, 256, 12.5),
    }
    lines = (
        f"{name},matmul_bf16_910b,matmul,Atlas A2,{time},{m},{k},{n}"
        for name, (m, k, n, time) in sizes.items()
    )
    found = read(write(tmp_path, HEAD + ",m,k,n", *lines))

    assert {row.id: row.latency_min_us for row in found if row.latency_min_us} == {"slow": 7.0}


def test_a_time_is_held_against_the_nearest_of_least_and_median() -> None:
    row = Row("a1", "ours", "matmul", "Atlas A3", 10.0, latency_min_us=8.0)

    assert [row.nearest_us(us) for us in (7.0, 8.0, 9.5, 10.0, 12.0)] == [8.0, 8.0, 9.5, 10.0, 10.0]
    assert Row("a1", "ours", "matmul", "Atlas A3", 10.0).nearest_us(9.0) == 10.0


def test_columns_that_are_left_out_are_empty(tmp_path: Path) -> None:
    (row,) = read(write(tmp_path, HEAD, LINE))
    assert row == Row("a1", "ours", "matmul", "Atlas A2", 12.5)


def test_columns_come_in_any_order_and_cells_hold_commas(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "\ufeffnote,latency_us,pertoken,bias,m,op,id,family,device,l2",
        '"[K,N], ND",3,unknown,True,7,matmul,a1,ours,ascend910b2,"weights cold, activations warm"',
        "",
        '"two\nlines",4e1,,False,,cast,a2,theirs,ascend910b2,',
    )
    one, other = read(path)

    assert (one.note, one.latency_us, one.pertoken, one.bias, one.m) == (
        *("[K,N], ND", 3.0, None, True, 7),
    )
    assert one.l2 == "weights cold, activations warm"
    assert (other.note, other.latency_us, other.bias, other.m) == ("two\nlines", 40.0, False, None)


@pytest.mark.parametrize(
    ("column", "cell", "must"),
    [
        ("id", "", "a name"),
        ("op", "", "a name"),
        ("device", "ascend911", "a chip that `npusim devices` lists"),
        ("device", "", "a chip that `npusim devices` lists"),
        ("latency_us", "0", "a number above 0"),
        ("latency_us", "nan", "a number above 0"),
        ("latency_us", "inf", "a number above 0"),
        ("latency_us", "", "a number above 0"),
        ("latency_us", "12 us", "a number above 0"),
        ("latency_min_us", "-1", "a number above 0, or empty"),
        ("m", "0", "a whole number above 0, or empty"),
        ("k", "1.5", "a whole number above 0, or empty"),
        ("bias", "yes", "True, False, unknown or empty"),
        ("w_layout", "zN", "one of ND; NZ; or empty"),
        ("l2", "hot", f"one of {'; '.join(L2_STATES)}; or empty"),
    ],
)
def test_a_cell_that_is_wrong_is_named(tmp_path: Path, column: str, cell: str, must: str) -> None:
    cells = dict(zip(HEAD.split(","), LINE.split(","), strict=True))
    wrong = cells | {"id": "a2", column: cell}
    path = write(
        tmp_path,
        ",".join(wrong),
        ",".join(cells.get(name, "") for name in wrong),
        ",".join(wrong.values()),
    )
    refused(path, f"line 3: {column} must be {must}, not {cell!r}; fix the cell")


MISSING = "line 1: columns must hold id, family, op, device, latency_us, but {} is missing; add it"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            (HEAD + ",latency_min_us", LINE + ",13"),
            "line 2: latency_min_us must be at most latency_us, 12.5, not 13; fix one of them",
        ),
        (
            (HEAD, LINE, LINE + ",b"),
            "line 3: must have 5 cells like the first line, not 6; quote cells that hold a comma",
        ),
        ((HEAD, LINE, LINE), "line 3: id must be given once, not 'a1' again; name it otherwise"),
        (
            (HEAD + ",latency", LINE + ",1"),
            f"line 1: columns must be among {COLUMNS}, not 'latency'; did you mean latency_us?",
        ),
        (
            (HEAD + ",colour", LINE + ",red"),
            f"line 1: columns must be among {COLUMNS}, not 'colour'; take it out",
        ),
        (
            (HEAD + ",op", LINE + ",matmul"),
            "line 1: column op must come once; take one of them out",
        ),
        (("id,op,device,latency_us", "a1,matmul,Atlas A2,1"), MISSING.format("family")),
        ((HEAD,), "must hold a row at least, not none; add one below the columns"),
        (("",), MISSING.format("id")),
        ((HEAD, '"a1'), "line 2: must be CSV, but: unexpected end of data; fix that place"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, lines: tuple[str, ...], message: str) -> None:
    refused(write(tmp_path, *lines), message)


def test_a_file_is_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "latin.csv"
    path.write_bytes(b"id\xe4")
    refused(path, "must be UTF-8, not byte 0xe4; save the file as UTF-8")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe.csv"
    os.mkfifo(path)
    refused(
        path,
        f"must be a file that can be read, but: it is a named pipe, not a regular file; "
        f"check the path {str(path)!r}",
    )


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "none.csv"
    refused(
        path,
        f"must be a file that can be read, but: No such file or directory; "
        f"check the path {str(path)!r}",
    )
