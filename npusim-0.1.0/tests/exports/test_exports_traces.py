"""Traces of whole runs: what is in them, what Insight and Perfetto make of them."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter, defaultdict, deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from insight import problems
from processor import ask, missing

import npusim
from npusim import TensorSpec, exports, isa
from npusim.data.dtypes import FLOAT32
from npusim.exports.arrows import Arrows
from npusim.exports.binary import CHUNK_BYTES
from npusim.exports.listing import Listing
from npusim.exports.names import Place, places
from npusim.exports.tracks import Stretch, Tracks
from npusim.exports.writing import Clock
from npusim.kernel.program import Body, Call, Program
from npusim.run import Run
from npusim.trace import LaneTrace, Trace, summary

Event = dict[str, Any]


def quantize(device: str) -> Run:
    given = TensorSpec((96, 512), "float16"), TensorSpec((512,), "float16"), None
    return npusim.run("npu_quantize", *given, "qint8", -1, False, device=device)


def weights() -> Run:
    """Cube and vector cores that meet at flags of both modes."""
    given = (
        TensorSpec((16, 1024), "float16"),
        TensorSpec((1024, 1024), "int8"),
        TensorSpec((1024,), "float16"),
    )
    return npusim.run("npu_weight_quant_batchmatmul", *given, device="Atlas A2")


def product() -> Run:
    given = TensorSpec((64, 256), "int8"), TensorSpec((256, 64), "int8"), TensorSpec((1,), "int64")
    return npusim.run("npu_quant_matmul", *given, device="Atlas 300I Pro")


RUNS = {
    "vector": lambda: quantize("Atlas A2"),
    "old": lambda: quantize("Atlas 300I Pro"),
    "mix": weights,
    "product": product,
}


@pytest.fixture(scope="module", params=RUNS)
def exported(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Run, Path]:
    run, folder = RUNS[request.param](), tmp_path_factory.mktemp(request.param)
    assert exports.export(run, folder, ["msprof", "perfetto"]).left_out == []
    exports.export(run, folder / "cycles", ["perfetto"], scale="cycles")
    return run, folder


def events(path: Path) -> list[Event]:
    found: list[Event] = json.loads(path.read_text())["traceEvents"]
    return found


def traced(run: Run) -> Trace:
    assert run.trace is not None
    return run.trace


# ---- Insight ----


def test_insight_takes_every_trace_of_the_folder(exported: tuple[Run, Path]) -> None:
    run, folder = exported
    paths = sorted((folder / "msprof" / "simulator").rglob("*.json"))

    assert len(paths) == len(traced(run).cores) + 1
    assert {path: problems(path) for path in paths} == {path: [] for path in paths}


def test_what_insight_does_not_take_is_found(tmp_path: Path) -> None:
    place = {"pid": "core0", "tid": "CUBE"}
    wrong = [
        {"name": "thread_sort_index", "ph": "M", **place, "args": {"sort_index": 4}},
        {"name": "MMAD", "ph": "X", "ts": 1.0, "dur": 2.0, **place, "args": {"detail": 1}},
        {"name": "MMAD", "ph": "X", "ts": 2.0, "dur": 2.0, "pid": "core0", "tid": ""},
        {"name": "MMAD", "ph": "X", "ts": 2.0, "dur": 2.0, **place},
        {"name": "cpu", "ph": "M", **place},
        {"name": "MMAD", "ph": "B", "ts": 9.0, **place},
        {"name": "SET_FLAG", "ph": "B", "ts": 9.0, "id": "a", **place},
        {"name": "flow", "ph": "s", "ts": 9.0, "id": "core0_1", **place},
        {"name": "GM_TO_L1", "ph": "C", "ts": 0, "pid": "MTE"},
        {"name": "flow", "ph": "f", "ts": 9.0, "id": 1, **place},
    ]
    path = tmp_path / "perfetto.json"
    path.write_text(json.dumps({"traceEvents": wrong}))

    assert problems(path) == [
        "perfetto.json is not taken by an import of a folder",
        "not opened as a simulation: no profilingType before the first bracket",
        "no traceEvents in the first megabyte",
        "1: an argument that is no text",
        "2: no process or lane",
        "4: cpu is no known metadata",
        "5: MMAD has a begin and an end, but is no flag",
        "7: arrow 'core0_1' has no number",
        "8: a counter at 0",
        "9: ph 'f' is ignored",
        "flag None must begin once and end once",
        "flag a must begin once and end once",
        "3: overlaps what comes before it on core0/CUBE",
        "core0/ has no place, but others have",
    ]


# ---- Perfetto ----


def test_perfetto_has_every_micro_op_with_its_cycles(exported: tuple[Run, Path]) -> None:
    run, folder = exported
    whole = Counter(
        (span.core, str(span.op), span.start, span.free, span.end, span.nbytes)
        for span in traced(run).spans()
    )
    keys = "micro-op", "start_cycle", "free_cycle", "end_cycle", "gm_bytes"
    for path in (folder / "perfetto.json", folder / "cycles" / "perfetto.json"):
        found = events(path)
        cores = {
            event["pid"]: int(event["args"]["name"].split()[1])
            for event in found
            if event["name"] == "process_name" and event["pid"] != 1
        }
        slices = [e for e in found if e["ph"] == "X" and e["name"] != "flag taken"]
        args = ((cores[e["pid"]], *(e["args"][key] for key in keys)) for e in slices)
        assert Counter(args) == whole


def test_on_the_clock_of_cycles_a_nanosecond_is_a_cycle(exported: tuple[Run, Path]) -> None:
    _, folder = exported
    for event in events(folder / "cycles" / "perfetto.json"):
        if event["ph"] == "X" and "start_cycle" in event["args"]:
            assert round(event["ts"] * 1000) == event["args"]["start_cycle"]


def test_times_are_those_of_the_cycles(exported: tuple[Run, Path]) -> None:
    run, folder = exported
    for event in events(folder / "perfetto.json"):
        if event["ph"] == "X" and "start_cycle" in event["args"]:
            exact = event["args"]["start_cycle"] * 1e6 / traced(run).clock_hz
            assert event["ts"] == pytest.approx(exact, abs=0.01)


def test_every_wait_has_an_arrow_from_the_flag_that_it_takes(exported: tuple[Run, Path]) -> None:
    run, folder = exported
    expected: Counter[tuple[str, str, int, int]] = Counter()
    for core in traced(run).cores:
        flags: dict[tuple[str, str, int], deque[int]] = defaultdict(deque)
        for span in traced(run).spans(core):
            match span.op:
                case isa.SetFlag(src, dst, event):
                    flags[src, dst, event].append(span.start)
                case isa.WaitFlag(src, dst, event):
                    expected[src, dst, flags[src, dst, event].popleft(), span.free] += 1
    found: Counter[tuple[str, str, int, int]] = Counter()
    feet: dict[int, list[Event]] = defaultdict(list)
    for event in events(folder / "cycles" / "perfetto.json"):
        if event["ph"] in "sf" and event["cat"] != "CoreToCore":
            feet[event["id"]].append(event)
    words = {"FIXP": "fixpipe"}
    for first, second in feet.values():
        assert (first["ph"], second["ph"]) == ("s", "f")
        ends = [words.get(word, word.lower()) for word in first["cat"].split("To")]
        times = round(first["ts"] * 1000), round(second["ts"] * 1000) + 1
        found[ends[0], ends[1], *times] += 1

    assert expected
    assert found == expected


QUERIES = {
    "slices": "select count(*) from slice",
    "flows": "select count(*) from flow",
    "values": "select count(*) from counter",
    "nested": "select count(*) from slice where depth > 0 or dur < 1",
    "lost": "select name, value from stats where value > 0 and severity <> 'info'",
    "ends": "select distinct substr(a.name, 1, 9), substr(b.name, 1, 9) from flow"
    " join slice a on slice_out = a.id join slice b on slice_in = b.id",
}


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_perfetto_keeps_every_event(exported: tuple[Run, Path], tmp_path: Path) -> None:
    _, folder = exported
    simulator = folder / "msprof" / "simulator"
    each = sorted(simulator.glob("*/trace.json"))[0]
    ours = [folder / "perfetto.json", folder / "cycles" / "perfetto.json"]
    for path in (*ours, simulator / "trace.json", each):
        written = Counter(event["ph"] for event in events(path))
        answers = dict(zip(QUERIES, ask(path, tmp_path, *QUERIES.values()), strict=True))
        ends = set(answers.pop("ends"))

        assert answers == {
            "slices": [(written["X"] + written["B"],)],
            "flows": [(written["s"],)],
            "values": [(written["C"],)],
            "nested": [(0,)],
            "lost": [],
        }
        assert written["s"] == written["f"] + written["t"]
        if path in ours:
            sets, waits = {"set_flag ", "cross_cor"}, {"wait_flag", "flag take", "cross_cor"}
            assert {start for start, _ in ends} <= sets
            assert {end for _, end in ends} <= waits
            assert ends


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_perfetto_drops_what_overlaps(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    both = ({"name": "a", "ph": "X", "pid": 1, "tid": 1, "ts": ts, "dur": 2} for ts in (1, 2))
    path.write_text(json.dumps({"traceEvents": list(both)}))

    lost = ask(path, tmp_path, QUERIES["lost"])[0]
    assert lost == [("slice_drop_overlapping_complete_event", 1)]


# ---- summaries ----


@pytest.fixture(params=["Atlas A2", "Atlas A3", "Atlas 300I Pro"])
def summarised(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Run, Path]:
    """A product in full, and as a summary of about 400 spans."""
    scale = TensorSpec((1,), "int64")
    given = TensorSpec((1024, 1024), "int8"), TensorSpec((1024, 512), "int8"), scale
    run = npusim.run("npu_quant_matmul", *given, device=request.param)
    assert exports.export(run, tmp_path / "full", ["msprof", "perfetto"]).level == "full"
    monkeypatch.setattr(exports.shown, "MOST_SPANS", 400)
    monkeypatch.setattr(summary, "LEAST_OPS", 30)
    found = exports.export(run, tmp_path / "summary", ["msprof", "perfetto"])
    assert found.level == "summary"
    again = exports.export(run, tmp_path / "again", ["msprof", "perfetto"], level="full")
    assert again.level == "full"
    return run, tmp_path


@pytest.mark.sample(1)
def test_a_summary_has_fewer_spans_and_says_so(summarised: tuple[Run, Path]) -> None:
    run, folder = summarised
    assert run.trace is not None
    traces = ["perfetto.json", "msprof/simulator/trace.json"]
    for name in traces:
        full, small = events(folder / "full" / name), events(folder / "summary" / name)
        spans = [event for event in small if event["ph"] in "XB"]
        assert len(spans) < 800 < len([event for event in full if event["ph"] in "XB"])
        # What moved when is that of the whole run.
        assert [e for e in small if e["ph"] == "C"] == [e for e in full if e["ph"] == "C"]
        told = json.loads((folder / "summary" / name).read_text())["otherData"]
        assert told["level"] == summary.WORDS
        starts = {event["id"] for event in small if event["ph"] == "s"}
        assert {event["id"] for event in small if event["ph"] in "ft"} <= starts
    spans = [e["args"] for e in events(folder / "summary" / traces[0]) if e["ph"] == "X"]
    counters = [c for pipes in run.trace.counters().values() for c in pipes.values()]
    assert sum(args.get("gm_bytes", 0) for args in spans) == sum(c.nbytes for c in counters)


@pytest.mark.sample(1)
def test_insight_shows_a_summary(summarised: tuple[Run, Path]) -> None:
    _, folder = summarised
    found = sorted((folder / "summary" / "msprof" / "simulator").rglob("trace.json"))
    assert len(found) > 2
    assert {path: problems(path) for path in found} == {path: [] for path in found}


@pytest.mark.sample(1)
def test_all_else_is_that_of_the_whole_run(summarised: tuple[Run, Path]) -> None:
    _, folder = summarised
    files = [path.relative_to(folder / "full") for path in (folder / "full").rglob("*.csv")]
    assert len(files) > 8
    for file in files:
        assert (folder / "summary" / file).read_bytes() == (folder / "full" / file).read_bytes()
    for path in (path for path in (folder / "full").rglob("*") if path.is_file()):
        again = folder / "again" / path.relative_to(folder / "full")
        assert again.read_bytes() == path.read_bytes()


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_perfetto_keeps_a_summary(summarised: tuple[Run, Path], tmp_path: Path) -> None:
    _, folder = summarised
    path = folder / "summary" / "perfetto.json"
    queries = QUERIES["slices"], QUERIES["nested"], QUERIES["lost"]
    slices, nested, lost = ask(path, tmp_path, *queries)
    written = Counter(event["ph"] for event in events(path))

    assert slices == [(written["X"],)]
    assert (nested, lost) == ([(0,)], [])


# ---- tracks ----


def test_what_is_under_way_at_once_lies_on_tracks_of_its_own() -> None:
    tracks = Tracks(Clock(1_000_000_000))

    assert tracks.take("mte2", 0, 100) == Stretch(0, 100, 0, True)
    assert tracks.take("mte2", 10, 110) == Stretch(10, 110, 1, True)
    assert tracks.take("mte2", 100, 101) == Stretch(100, 101, 0, False)
    assert tracks.take("mte3", 20, 30) == Stretch(20, 30, 0, True)
    assert tracks.take("mte2", 105, 106, after=110) == Stretch(105, 112, 0, False)


def test_cycles_shorter_than_a_nanosecond_follow_each_other() -> None:
    tracks = Tracks(Clock(4_000_000_000))
    drawn = [tracks.take("mte1", start, end) for start, end in ((0, 1), (1, 2), (2, 20), (20, 24))]

    assert [(x.start, x.end) for x in drawn] == [(0, 1), (1, 2), (2, 5), (5, 6)]


# ---- arrows between cores ----


def lane(core: int, kind: str, *times: tuple[isa.MicroOp, int, int], group: int = 0) -> LaneTrace:
    ops = tuple(op for op, _, _ in times)
    start = np.array([start for _, start, _ in times], np.int64)
    end = np.array([end for _, _, end in times], np.int64)
    return LaneTrace((core,), kind, Program("kernel", ops), start, end, end, 0, 0, (group,))


def joined(trace: Trace) -> list[tuple[int, int]]:
    """(core that sets, core that waits) of every arrow, in order of their numbers."""
    arrows = Arrows(trace, Listing(trace, "k.txt"), places(trace))
    ends: dict[int, dict[bool, int]] = defaultdict(dict)
    for each in trace.lanes:
        for op in each.ops:
            for arrow in arrows.of(each.cores[0], op):
                ends[arrow.number][arrow.is_start] = each.cores[0]
    return [(ends[number][True], ends[number][False]) for number in sorted(ends)]


def test_a_flag_for_a_group_goes_to_its_other_kind() -> None:
    sets, waits = (
        isa.CrossCoreSetFlag("group", "mte3", 1),
        isa.CrossCoreWaitFlag("group", "mte2", 1),
    )
    lanes = [
        lane(0, "aic", (waits, 0, 9), (sets, 10, 11)),
        *(lane(core, "aiv", (sets, 1, 2), (waits, 3, 12)) for core in (1, 2)),
        lane(3, "aic", (sets, 0, 1), group=1),
        lane(4, "aiv", (waits, 0, 2), group=1),
    ]

    assert joined(Trace(tuple(lanes), 10**9)) == [(1, 0), (2, 0), (0, 1), (0, 2), (3, 4)]


def test_a_flag_for_all_starts_where_it_was_set_last() -> None:
    sets, waits = isa.CrossCoreSetFlag("all", "mte3", 0), isa.CrossCoreWaitFlag("all", "mte2", 0)
    both = [(sets, waits, sets, waits)] * 3
    ends = [(1, 9, 12, 25), (8, 9, 11, 25), (2, 9, 24, 25)]
    lanes = [
        lane(core, "aiv", *((op, end - 1, end) for op, end in zip(*pair, strict=True)))
        for core, pair in enumerate(zip(both, ends, strict=True))
    ]
    found = joined(Trace(tuple(lanes), 10**9))

    assert sorted(found) == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]


# ---- names and listing ----


def test_cores_stand_where_the_vendor_puts_them() -> None:
    nothing = isa.Load(isa.Local("ub", 0, FLOAT32, 8), isa.Global("x", 0, 32)), 0, 1
    mix = Trace((lane(6, "aic", nothing, group=1), lane(8, "aiv", nothing, group=1)), 1)
    single = Trace((lane(0, "aic", nothing), lane(1, "aiv", nothing)), 1)
    alone = Trace((lane(3, "aiv", nothing),), 1)
    old = Trace((lane(3, "ai_core", nothing), lane(8, "vector_core", nothing)), 1)

    assert places(mix) == {
        6: Place(1, "cube0", "core1.cubecore0", 4, 1),
        8: Place(1, "vector1", "core1.veccore1", 6, 1),
    }
    assert places(single) == {
        0: Place(0, "cube0", "core0.cubecore0", 1, 0),
        1: Place(0, "vector0", "core0.veccore0", 2, 0),
    }
    assert places(alone) == {3: Place(3, "vector0", "core1.veccore1", 6, 1)}
    assert [place.name for place in places(old).values()] == ["core3", "core8"]


def test_what_is_called_again_is_listed_once_and_told_where_it_went() -> None:
    load = isa.Load(isa.Local("ub", 0, FLOAT32, 8), isa.Global("x", 64, 32))
    again = isa.Load(isa.Local("ub", 0, FLOAT32, 8), isa.Global("x", 64, 32))
    program = Program(
        "k", (Call(Body((load,)), {"x": 0}), Call(Body((again,)), {"x": 128, "y": 1}))
    )
    times = np.array([0, 5], np.int64)
    trace = Trace((LaneTrace((0,), "aiv", program, times, times + 1, times + 3, 0, 0),), 1)
    listing = Listing(trace, "k.txt")

    assert "".join(listing.source()) == "mte2     load ub[0:32] float32 <- x+64 32 B\n"
    assert [(event.text, event.start) for event in listing.events(trace.lanes[0])] == [
        ("load ub[0:32] float32 <- x+64 32 B", 0),
        ("load ub[0:32] float32 <- x+192 32 B", 5),
    ]
    assert listing.code(listing.lines[0]) == "k.txt:1"


# ---- streams ----


def peak_bytes(run: Run, folder: Path) -> int:
    tracemalloc.start()
    exports.export(run, folder, ["msprof", "perfetto"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def looping(run: Run, rounds: int) -> Run:
    """*run* with a trace of *rounds* calls of one body on its first core."""
    body = Body(tuple(traced(run).lanes[0].ops[:20]))
    program = Program("loop", tuple(Call(body) for _ in range(rounds)))
    start = np.arange(20 * rounds, dtype=np.int64) // 4
    many = LaneTrace((0,), "aiv", program, start, start + 1, start + 3, 0, 0)
    assert program.calls
    return replace(run, trace=Trace((many,), traced(run).clock_hz))


@pytest.mark.nightly
def test_memory_does_not_grow_with_what_is_written(tmp_path: Path) -> None:
    run = quantize("Atlas A2")
    few = peak_bytes(looping(run, 20), tmp_path / "few")
    many = peak_bytes(looping(run, 800), tmp_path / "many")
    written = [
        sum(path.stat().st_size for path in (tmp_path / name).rglob("*") if path.is_file())
        for name in ("few", "many")
    ]

    assert written[1] > 10 * written[0]
    # The binary file takes the timeline in pieces of a megabyte.
    assert many < few + 2 * CHUNK_BYTES
    assert written[1] > 4 * (few + 2 * CHUNK_BYTES)
