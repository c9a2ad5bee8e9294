"""Tables: their columns, and numbers that can be computed by hand."""

from __future__ import annotations

import csv
import json
import struct
from collections import Counter
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import npusim
from npusim import Tensor, TensorSpec, devices, exports, isa
from npusim.data.dtypes import FLOAT16, FLOAT32, INT8, INT32
from npusim.devices.schema import DeviceSpec
from npusim.exports import binary, profile
from npusim.exports.columns import COLUMNS
from npusim.exports.facts import cube_ops, traffic
from npusim.exports.listing import Listing
from npusim.exports.measures import measures
from npusim.exports.tables import CODE, INSTRUCTIONS
from npusim.exports.tally import tallies
from npusim.exports.throughput import throughput
from npusim.exports.writing import Clock
from npusim.kernel.program import Body, Call, Program
from npusim.reports import roofline
from npusim.run import Output, Run
from npusim.trace import LaneTrace, Trace

KNOWN = json.loads(Path(__file__).with_name("columns.json").read_text())
"""Arch -> table -> columns (Ascend/msopprof @d6c29df, metric_csv_header.h)."""
NO_TRACE = (
    "exports: a run must have been timed and have had work to do, but it has no trace; "
    "run it with timing=True on tensors that are not empty"
)


def quantize(device: str, timing: bool = True) -> Run:
    given = TensorSpec((96, 512), "float16"), TensorSpec((512,), "float16"), None
    return npusim.run("npu_quantize", *given, "qint8", -1, False, device=device, timing=timing)


def table(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


@pytest.fixture(scope="module", params=["Atlas A2", "Atlas 300I Pro"])
def exported(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Run, Path]:
    run, folder = quantize(request.param), tmp_path_factory.mktemp("run")
    exports.export(run, folder, ["msprof"])
    return run, folder / "msprof"


# ---- msprof op ----


def test_the_columns_are_the_vendors(exported: tuple[Run, Path]) -> None:
    run, folder = exported
    found = {path.stem: table(path) for path in folder.glob("*.csv")}
    basic = found.pop("OpBasicInfo")
    del found["kernel_details"]

    assert {name: rows[0] for name, rows in found.items()} == KNOWN[run.device.arch]
    assert basic[0] == [
        *("Op Name", "Op Type", "Task Duration(us)", "Block Dim"),
        *(["Mix Block Dim"] if run.device.arch == "2201" else []),
        *("Device Id", "Pid", "Current Freq", "Rated Freq"),
    ]
    for rows in found.values():
        assert {len(row) for row in rows} == {len(rows[0])}


def test_rows_are_cores_or_one_for_the_older_series(exported: tuple[Run, Path]) -> None:
    run, folder = exported
    assert run.trace is not None
    rows = table(folder / "PipeUtilization.csv")[1:]
    if run.device.arch == "2002":
        assert len(rows) == 1
    else:
        assert [row[:2] for row in rows] == [[str(core), "vector0"] for core in run.trace.cores]


def test_what_is_not_modelled_is_not_a_number(exported: tuple[Run, Path]) -> None:
    run, folder = exported
    header, row, *_ = table(folder / "PipeUtilization.csv")
    cells = dict(zip(header, row, strict=True))
    own = "aiv" if run.device.arch == "2201" else "aic"

    assert cells[f"{own}_icache_miss_rate"] == "NA"
    assert float(cells[f"{own}_vec_ratio"]) > 0
    if own == "aiv":
        assert {cell for name, cell in cells.items() if name.startswith("aic")} == {"NA"}


def test_the_pipes_are_busy_as_the_counters_say(exported: tuple[Run, Path]) -> None:
    run, folder = exported
    if run.device.arch == "2002":
        return
    header, *rows = table(folder / "PipeUtilization.csv")
    for row in rows:
        cells = dict(zip(header, row, strict=True))
        counters = run.counters[int(cells["block_id"])]
        total = int(cells["aiv_total_cycles"])
        for pipe, word in (("vector", "vec"), ("mte2", "mte2"), ("mte3", "mte3")):
            share = counters[pipe].busy_cycles / total  # type: ignore[index]
            assert float(cells[f"aiv_{word}_ratio"]) == pytest.approx(share, abs=1e-6)


Times = tuple[isa.MicroOp, int, int, int]


def by_hand(device: DeviceSpec, kind: str, *times: Times) -> dict[str, float]:
    ops = tuple(op for op, *_ in times)
    start, free, end = (np.array([time[i] for time in times], np.int64) for i in (1, 2, 3))
    lane = LaneTrace((0,), kind, Program("k", ops), start, free, end, 64, 256, (), 192)
    trace = Trace((lane,), 10**9)
    listing = Listing(trace, "k.txt")
    return measures(tallies(trace, listing)[0], listing, device)


X = isa.Local("ub", 0, FLOAT32, 64)


def test_a_vector_core_is_measured(tiny: DeviceSpec) -> None:
    found = by_hand(
        *(tiny, "aiv"),
        (isa.Load(X, isa.Global("x", 0, 256)), 0, 10, 30),
        (isa.WaitFlag("mte2", "vector", 0), 0, 31, 31),
        (isa.Binary("mul", X, X, X), 31, 40, 45),
        (isa.Axpy(X, X, 2.0), 40, 50, 55),
        (isa.Cast(X.as_dtype(INT32), X, "rint"), 55, 60, 65),
        (isa.Store(isa.Global("y", 0, 256), X), 65, 80, 100),
    )
    expected = {
        "time(us)": 0.1,
        "total_cycles": 100,
        "vec_time(us)": 0.034,
        "vec_ratio": 0.34,
        "vec_instructions": 3,
        "vec_fp32_ratio": 0.19,
        "vec_misc_ratio": 0.05,
        "vec_fops": 64 + 128,
        "vec_wait_ratio": 0.31,
        "mte2_ratio": 0.30,
        "mte2_active_bw(GB/s)": 256 / 30e-9 / 2**30,
        "gm_to_ub_bw(GB/s)": 256 / 100e-9 / 2**30,
        "GM_to_UB_datas(KB)": 0.25,
        "GM_to_UB_bw_usage_rate(%)": 100 * 256 / (32 * 100),
        "ub_read_bw_vector(GB/s)": 5 * 256 / 100e-9 / 2**30,
        "ub_write_bw_vector(GB/s)": 3 * 256 / 100e-9 / 2**30,
        "total_hit_rate(%)": 75.0,
    }

    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert "icache_miss_rate" not in found


def test_a_cube_core_is_measured(tiny: DeviceSpec) -> None:
    a, b = isa.Local("l0a", 0, INT8, 16 * 64), isa.Local("l0b", 0, INT8, 64 * 32)
    c = isa.Local("l0c", 0, INT32, 16 * 32)
    found = by_hand(
        *(tiny, "aic"),
        (isa.LoadData(a, isa.Local("l1", 0, INT8, 1024), 16, 0, 0, 16, 64), 0, 10, 12),
        (isa.Mmad(c, a, b, 16, 32, 64), 12, 20, 25),
        (isa.Mmad(c, a, b, 16, 32, 64, "accumulate"), 20, 28, 33),
        (
            isa.Fixpipe(isa.Global("y", 0, 64, 16, 64), c, 16, 32, 16, FLOAT16, "deqf16", 1),
            40,
            50,
            100,
        ),
    )
    expected = {
        "cube_ratio": 0.21,
        "cube_int8_ratio": 0.16,
        "cube_fp16_ratio": 0.0,
        "cube_fops": 2 * 2 * 16 * 32 * 64,
        "cube_int_instr_number": 2,
        "cube_total_instr_number": 2,
        "l0a_write_bw(GB/s)": 1024 / 100e-9 / 2**30,
        "l0a_read_bw(GB/s)": 2 * 1024 / 100e-9 / 2**30,
        "l0c_read_bw_cube(GB/s)": 2048 / 100e-9 / 2**30,
        "l0c_read_bw(GB/s)": (2048 + 1024) / 100e-9 / 2**30,
        "L0C_to_GM_datas(KB)": 1.0,
        "fixpipe_active_bw(GB/s)": 1024 / 60e-9 / 2**30,
    }

    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_fractals_count_whole() -> None:
    assert cube_ops(isa.Product(1, 1, 1, FLOAT16)) == 8192
    assert cube_ops(isa.Product(17, 16, 33, INT8)) == 4 * 16384


def test_a_copy_moves_what_arrives() -> None:
    rows = isa.Load(X, isa.Global("x", 0, 20, 3, 100), pitch_bytes=32)
    assert traffic(rows) == Counter({"read gm": 60, "write ub": 60, "gm to ub": 60})


# ---- kernel_details.csv ----


def test_the_kernel_is_listed_as_by_the_profiler_of_torch_npu(tmp_path: Path) -> None:
    weight = TensorSpec((64, 96), "int8", "FRACTAL_NZ")
    given = TensorSpec((16, 64), "int8"), weight, TensorSpec((96,), "float32")
    run = npusim.run("npu_quant_matmul", *given, output_dtype="bfloat16", device="Atlas A2")
    profile.write_details(run, tmp_path / "kernel_details.csv")
    header, row = table(tmp_path / "kernel_details.csv")
    cells = dict(zip(header, row, strict=True))

    assert tuple(header) == profile.DETAILS
    assert cells["Name"] == "aclnnQuantMatmulWeightNz_QuantBatchMatmulV3_QuantBatchMatmulV3"
    assert cells["Type"] == "QuantBatchMatmulV3"
    assert cells["Accelerator Core"] == "MIX_AIC"
    assert float(cells["Duration(us)"]) == pytest.approx(run.time_us, abs=1e-3)
    assert cells["Input Shapes"] == "16,64;3,4,16,32;96"
    assert cells["Input Data Types"] == "INT8;INT8;FLOAT"
    assert cells["Input Formats"] == "ND;FRACTAL_NZ;ND"
    assert (cells["Output Shapes"], cells["Output Data Types"]) == ("16,96", "DT_BF16")


def test_a_kernel_that_is_launched_first_has_the_first_row(tmp_path: Path) -> None:
    given = TensorSpec((16, 64), "int8"), TensorSpec((64, 96), "int8"), TensorSpec((96,), "float32")
    run = npusim.run("npu_quant_matmul", *given, device="Atlas A2")
    profile.write_details(run, tmp_path / "kernel_details.csv")
    header, *rows = table(tmp_path / "kernel_details.csv")
    first, second = (dict(zip(header, row, strict=True)) for row in rows)

    assert (first["Type"], second["Type"]) == ("TransQuantParamV2", "QuantBatchMatmulV3")
    durations = [float(row["Duration(us)"]) for row in (first, second)]
    assert durations == pytest.approx([launch.time_us for launch in run.launches], abs=1e-3)
    assert float(second["Start Time(us)"]) == pytest.approx(durations[0], abs=1e-3)


def test_values_are_listed_by_shape(tmp_path: Path) -> None:
    run = quantize("Atlas A2")
    values = np.zeros((2, 3), ml_dtypes.bfloat16)
    nz = Tensor(TensorSpec((16, 32), "int8", "FRACTAL_NZ"), np.zeros((1, 1, 16, 32), np.int8))
    outputs: dict[str, Output] = {"output": values, "more": nz}
    profile.write_details(replace(run, outputs=outputs), tmp_path / "kernel_details.csv")

    assert table(tmp_path / "kernel_details.csv")[1][-3:] == [
        "2,3;1,1,16,32",
        "DT_BF16;INT8",
        "ND;FRACTAL_NZ",
    ]


# ---- the simulator's tables ----


def test_lines_and_instructions_add_up_to_what_each_core_ran(exported: tuple[Run, Path]) -> None:
    run, folder = exported
    assert run.trace is not None
    paths = sorted((folder / "simulator").glob("*/*_instr_exe.csv"))
    assert len(paths) == len(run.trace.cores)
    ran = sorted(len(lane.program) for lane in run.trace.lanes for _ in lane.cores)
    found = []
    for path in paths:
        name = path.parent.name
        assert path.name == f"{name}_instr_exe.csv"
        header, *rows = table(path)
        lines, *code = table(path.with_name(f"{name}_code_exe.csv"))
        assert (tuple(header), tuple(lines)) == (INSTRUCTIONS, CODE)
        assert [row[3:6] for row in rows] == [row[1:] for row in code]
        found.append(sum(int(row[3]) for row in rows))

    assert sorted(found) == ran


def test_a_line_runs_while_one_of_its_calls_is_under_way() -> None:
    load = isa.Load(X, isa.Global("x", 0, 256))
    times = np.array([0, 10, 10, 50], np.int64)
    body = Body((load, isa.SetFlag("mte2", "vector", 0)))
    program = Program("k", (Call(body), Call(body)))
    end = np.array([30, 999, 40, 999], np.int64)
    trace = Trace((LaneTrace((0,), "aiv", program, times, times + 5, end, 0, 0),), 10**9)
    (tally,) = tallies(trace, Listing(trace, "k.txt"))

    assert tally.calls.tolist() == [2, 2]
    assert tally.occupied.tolist() == [10, 10]
    assert tally.lasted.tolist() == [60, 10]
    assert tally.covered.tolist() == [40, 10]


def test_copies_spread_over_the_microseconds_that_they_take() -> None:
    load = isa.Load(X, isa.Global("x", 0, 256))
    start, end = np.array([500, 2400]), np.array([2500, 2400])
    lane = LaneTrace((0, 1), "aiv", Program("k", (load, load)), start, end, end, 0, 0)
    trace = Trace((lane,), 10**9)
    every = throughput(trace, Clock(10**9))
    rows = [row for row in every if row[2] or row[1] == 3000]

    step = [(1, 128.0), (1000, 256.0), (2000, 128.0 + 512), (3000, 0.0)]
    for name in ("GM_TO_UB", "GM_TO_TOTAL"):
        assert [(at, nbytes) for found, at, nbytes in rows if found == name] == step


# ---- visualize_data.bin ----


def blocks(path: Path) -> list[tuple[int, int, bytes]]:
    """(type, version, content) of each block, read as Insight does."""
    data, at, found = path.read_bytes(), 0, []
    assert data[10:12] == b"\x5a\x5a"
    while at < len(data):
        size, kind, padding, version, mark = struct.unpack_from("<QBBBB", data, at)
        assert mark == 0x5A
        at += 12 + (4096 if kind == 1 else 0)
        found.append((kind, version, data[at : at + size - padding]))
        assert size % 4 == 0
        at += size
    return found


def test_the_binary_file_holds_listing_timeline_and_counts(exported: tuple[Run, Path]) -> None:
    run, folder = exported
    assert run.trace is not None
    found = blocks(folder / "simulator" / "visualize_data.bin")
    kinds = [(1, 90), (2, 90), (3, 90), (4, 0), *((kind, 90) for kind in (5, 6, 7, 9, 13))]
    assert [(kind, version) for kind, version, _ in found] == kinds
    source, timeline, files, instructions, *_ = (content for *_, content in found)

    assert timeline == (folder / "simulator" / "trace.json").read_bytes()
    lines = source.decode().splitlines()
    listed, ran = json.loads(files), json.loads(instructions)
    assert len(listed["Cores"]) == len(run.trace.cores)
    assert [line["Line"] for line in listed["Files"][0]["Lines"]] == list(range(1, len(lines) + 1))
    assert [row["Source"] for row in ran["Instructions"]] == [line[9:] for line in lines]
    counts = sum(sum(row["Instructions Executed"]) for row in ran["Instructions"])
    assert counts == run.trace.micro_ops
    for rows, kinds in (
        (listed["Files"][0]["Lines"], listed["Files Dtype"]["Lines"]),
        (ran["Instructions"], ran["Instructions Dtype"]["Instructions"]),
    ):
        assert {frozenset(row) for row in rows} == {frozenset(kinds)}


def test_the_details_of_insight_say_what_the_tables_say(exported: tuple[Run, Path]) -> None:
    run, folder = exported
    assert run.trace is not None
    found = blocks(folder / "simulator" / "visualize_data.bin")
    basic, loads, same, memories, rooflines = (json.loads(content) for *_, content in found[4:])
    head, cells = table(folder / "OpBasicInfo.csv")
    known = dict(zip(head, cells, strict=True))
    for key, column in (
        *(("name", "Op Name"), ("op_type", "Op Type"), ("block_dim", "Block Dim")),
        ("duration", "Task Duration(us)"),
    ):
        assert basic[key] == known[column]
    detail = basic["block_detail"]
    assert detail["size"] == [len(run.trace.cores) + 1, 3]
    assert len(detail["row"]) == len(run.trace.cores)
    assert max(float(row["value"][2]) for row in detail["row"]) == pytest.approx(
        max(int(lane.end.max()) for lane in run.trace.lanes) / run.trace.clock_hz * 1e6, abs=1e-3
    )
    assert loads == same
    counted = [row for row in loads["subblock_detail"] if row["unit"] == 1]
    assert sum(int(row["value"]) for row in counted) == sum(
        counter.micro_ops for lane in run.trace.lanes for _ in lane.cores
        for counter in lane.counters().values()
    )  # fmt: skip
    of_block = memories["table_per_block"][0]["table_detail"]
    assert [each["table_name"] for each in of_block] == ["Memory", "MemoryL0", "MemoryUB"]
    rows = {(row.title, row.name): row for row in roofline.rows(run)}
    drawn = [
        (each["title"], line)
        for each in rooflines["multiple_rooflines"]
        for line in each["rooflines"]
    ]
    assert [(title, line["bw_name"]) for title, line in drawn] == [*rows]
    for title, line in drawn:
        row = rows[title, line["bw_name"]]
        assert line["point"] == [row.intensity, row.ops_per_s / 1e12]


def test_too_large_a_part_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = quantize("Atlas 300I Pro")
    exports.export(run, tmp_path / "whole", ["msprof"])
    whole = blocks(tmp_path / "whole/msprof/simulator/visualize_data.bin")
    sizes = {kind: len(content) for kind, _, content in whole}
    assert max(sizes, key=sizes.__getitem__) == binary.TRACE
    monkeypatch.setattr(binary, "MAX_BYTES", sizes[binary.TRACE] - 1)
    done = exports.export(run, tmp_path / "less", ["msprof"])

    assert done.left_out == ["timeline"]
    assert blocks(tmp_path / "less/msprof/simulator/visualize_data.bin") == [
        block for block in whole if block[0] != binary.TRACE
    ]


# ---- export ----


def test_progress_goes_from_nothing_to_all(tmp_path: Path) -> None:
    heard: list[tuple[str, float]] = []
    run = quantize("Atlas A2")
    done = exports.export(
        *(run, tmp_path, ["msprof", "perfetto", "msprof"]),
        progress=lambda stage, share: heard.append((stage, share)),
    )

    assert done.names == ["msprof", "perfetto.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["msprof", "perfetto.json"]
    assert {stage for stage, _ in heard} == {"export"}
    shares = [share for _, share in heard]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(profile, "write_details", full)
    with pytest.raises(OSError, match="No space left on device"):
        exports.export(quantize("Atlas A2"), tmp_path, ["msprof"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("formats", "scale", "message"),
    [
        (
            ["konata"],
            "us",
            "exports: a format must be one of msprof, perfetto, not 'konata'; use one of these",
        ),
        (
            ["perfetto"],
            "ms",
            "exports: scale must be one of us, cycles, not 'ms'; use one of these",
        ),
    ],
)
def test_unknown_words_are_refused(
    tmp_path: Path, formats: list[exports.Format], scale: exports.Scale, message: str
) -> None:
    with pytest.raises(ValueError) as error:
        exports.export(quantize("Atlas A2"), tmp_path, formats, scale=scale)
    assert str(error.value) == message


def test_a_run_without_times_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError) as error:
        exports.export(quantize("Atlas A2", timing=False), tmp_path / "new", ["msprof"])
    assert str(error.value) == NO_TRACE
    assert not (tmp_path / "new").exists()


def test_what_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "perfetto.json").write_text("mine")
    with pytest.raises(ValueError) as error:
        exports.export(quantize("Atlas A2"), tmp_path, ["msprof", "perfetto"])
    assert str(error.value) == (
        f"exports: {tmp_path / 'perfetto.json'} must be new, but is there already; "
        f"name another folder"
    )
    assert (tmp_path / "perfetto.json").read_text() == "mine"
    assert not (tmp_path / "msprof").exists()


def test_a_link_to_nowhere_stays(tmp_path: Path) -> None:
    (tmp_path / "perfetto.json").symlink_to("elsewhere")
    with pytest.raises(ValueError, match=r"perfetto\.json must be new, but is there already"):
        exports.export(quantize("Atlas A2"), tmp_path, ["perfetto"])
    assert [path.name for path in tmp_path.iterdir()] == ["perfetto.json"]


def test_what_comes_while_a_trace_is_written_stays(tmp_path: Path) -> None:
    def progress(*_: object) -> None:
        (tmp_path / "perfetto.json").write_text("mine")

    with pytest.raises(ValueError, match=r"perfetto\.json must be new, but is there already"):
        exports.export(quantize("Atlas A2"), tmp_path, ["perfetto"], progress=progress)
    assert (tmp_path / "perfetto.json").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["perfetto.json"]


def test_columns_are_known_for_every_chip() -> None:
    arches = {devices.load(name).arch for name in devices.names()}
    assert arches == set(COLUMNS) == set(KNOWN)
