"""The simulated clock: kernels move it, a graph pays one launch, streams share it."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from npusim.accuracy import Accuracy, Kind
from npusim.data.files import FileError
from npusim.torch import streams
from npusim.torch.clock import Clock, clock
from npusim.torch.trace import check, trace_events, write


def kernel(
    op: str, launch_us: float, time_us: float, types: str = "", plan: object = "plan"
) -> Any:
    own = SimpleNamespace(launch_us=launch_us, time_us=time_us)
    return SimpleNamespace(
        op=op,
        launches=(own,),
        earlier=(),
        plan=plan,
        cycles=7,
        kind=Kind(op, "Atlas A2", types, ""),
    )


def test_kernels_follow_each_other() -> None:
    time = Clock()
    kept = time.record()
    time.kernel(kernel("a", 1.0, 3.0))
    time.host("aten.mul.Tensor")
    time.kernel(kernel("b", 1.0, 2.0))
    log = [(event.name, event.start_us, event.time_us, event.is_simulated) for event in kept]
    assert log == [
        ("a", 0.0, 3.0, True),
        ("aten.mul.Tensor", 3.0, 0.0, False),
        ("b", 3.0, 2.0, True),
    ]
    assert (time.now_us, time.launches, time.kernels) == (5.0, 2, 2)
    assert time.summary() == (
        "5.00 us simulated in 2 launches; coverage 66 %: 2 of 3 kernels timed; 1 runs on the host "
        "in zero time, so that the total is a lower bound: 1 x aten.mul.Tensor"
    )
    assert time.accuracy() == [
        f"{spent} us {op}, Atlas A2: {Accuracy(op, 'Atlas A2', 0)}"
        for op, spent in (("a", "3.00"), ("b", "2.00"))
    ]


def test_kinds_beyond_those_that_take_most_are_summed_up() -> None:
    time = Clock()
    for op, time_us in (("a", 50.0), ("b", 40.0), ("c", 30.0), ("d", 20.0), ("e", 6.0), ("f", 4.0)):
        time.kernel(kernel(op, 1.0, time_us))
    time.kernel(kernel("sigmoid", 1.0, 50.0, "float32"))
    lines = time.accuracy()
    assert [line.split(",")[0] for line in lines[:-1]] == [
        "50.00 us a", "50.00 us sigmoid", "40.00 us b", "30.00 us c",
    ]  # fmt: skip
    assert lines[-1] == (
        "30.00 us 3 more kinds of kernel; validated: 25 % of the time is in kinds with measured "
        "kernels"
    )


def test_a_sum_is_reported_with_what_is_missing_from_it() -> None:
    time = Clock()
    assert time.summary() == "0.00 us simulated in 0 launches; 0 of 0 kernels timed"
    time.kernel(kernel("a", 1.0, 3.0))
    time.host("aten.view.default", is_kernel=False)
    assert time.summary() == "3.00 us simulated in 1 launch; 1 of 1 kernel timed"
    for number in range(10):
        time.host(f"aten.op{number}.default")
    time.host("aten.op9.default")
    told = ", ".join(f"1 x aten.op{number}.default" for number in range(7))
    assert time.summary() == (
        "3.00 us simulated in 1 launch; coverage 8 %: 1 of 12 kernels timed; 11 run on the host in "
        "zero time, so that the total is a lower bound: "
        f"2 x aten.op9.default, {told}, 2 of 2 other names"
    )


def test_a_graph_pays_the_dearest_launch_once() -> None:
    time = Clock()
    kept = time.record()
    with time.graph("g"), time.graph("inner"):
        time.kernel(kernel("a", 1.0, 3.0))
        time.kernel(kernel("b", 1.5, 2.0))
        time.kernel(kernel("c", 1.0, 2.0))
    time.kernel(kernel("d", 1.0, 2.0))
    log = [(event.name, event.launch_us, event.time_us, event.graph) for event in kept]
    assert log == [
        ("a", 1.0, 3.0, "g"),
        ("b", 0.5, 1.0, "g"),
        ("c", 0.0, 1.0, "g"),
        ("d", 1.0, 2.0, None),
    ]
    assert (time.now_us, time.launches, time.kernels) == (7.0, 2, 4)


def test_what_runs_no_kernel_launches_nothing() -> None:
    time = Clock()
    with time.graph("g"):
        time.kernel(kernel("a", 0.0, 0.0, plan=None))
    assert (time.now_us, time.launches, time.kernels) == (0.0, 0, 0)


def test_events_are_stored_only_while_recorded() -> None:
    time = Clock()
    time.host("before")
    first, second = time.record(), time.record()
    time.host("both")
    time.stop(first)
    time.host("second")
    time.stop(second)
    time.host("after")
    assert [event.name for event in first] == ["both"]
    assert [event.name for event in second] == ["both", "second"]


def test_events_measure_simulated_time() -> None:
    start, end = (streams.Event(enable_timing=True) for _ in range(2))
    start.record()
    clock.kernel(kernel("a", 1.0, 2500.0))
    streams.Stream().record_event(end)
    assert start.elapsed_time(end) == pytest.approx(2.5)
    assert start.query()


def test_events_that_cannot_be_compared_say_so() -> None:
    timed = streams.Event(enable_timing=True)
    message = (
        "torch.npu.Event: both events must be made with enable_timing=True to be compared, "
        "but one is not; make it so"
    )
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
        timed.elapsed_time(streams.Event())
    message = (
        "torch.npu.Event: both events must be recorded before calculating elapsed time, "
        "but one is not; call record() on it"
    )
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
        timed.elapsed_time(streams.Event(enable_timing=True))
    message = (
        "torch.npu.Event: an event must stay in its process, not interprocess=True; "
        "leave interprocess out"
    )
    with pytest.raises(NotImplementedError, match=f"^{re.escape(message)}$"):
        streams.Event(interprocess=True)


def test_a_stream_is_current_inside_its_context() -> None:
    default, other = streams.current_stream(), streams.Stream()
    with streams.StreamContext(other):
        assert streams.current_stream() is other
        streams.set_stream(default)
        assert streams.current_stream() is default
    assert streams.current_stream() is default is streams.default_stream()
    with streams.StreamContext(None):
        assert streams.current_stream() is default


def test_the_trace_has_a_row_for_what_is_not_simulated() -> None:
    time = Clock()
    kept = time.record()
    time.kernel(kernel("a", 1.0, 3.0))
    time.host("aten.mul.Tensor")
    found = trace_events(kept, "Ascend910B2")
    assert [event["args"]["name"] for event in found if event["ph"] == "M"] == [
        "npu:0 Ascend910B2",
        "kernels",
        "host operations, not simulated",
    ]
    rows = [(e["name"], e["tid"], e["ts"], e["dur"], e["args"]) for e in found if e["ph"] == "X"]
    assert rows == [
        ("a", 0, 0.0, 3.0, {"launch_us": 1.0, "cycles": 7}),
        ("aten.mul.Tensor", 1, 3.0, 0.0, {"simulated": False}),
    ]


def test_a_trace_that_cannot_be_written_is_reported_before(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    trace = tmp_path / "file" / "trace_view.json"
    message = (
        f"npusim.torch: {trace} must be in a folder that can be written, not in "
        f"{tmp_path}/file; name another"
    )
    with pytest.raises(FileError, match=f"^{re.escape(message)}$"):
        check(tmp_path / "file")


def test_an_earlier_trace_is_replaced_only_when_asked(tmp_path: Path) -> None:
    trace = tmp_path / "trace_view.json"
    trace.write_text("earlier")
    message = (
        f"npusim.torch: {trace} must be a new file, but there is one; name another, or add --force "
        f"to replace it"
    )
    for act in (check, lambda folder: write([], folder, "card")):
        with pytest.raises(FileError, match=f"^{re.escape(message)}$"):
            act(tmp_path)
    assert trace.read_text() == "earlier"
    check(tmp_path, force=True)
    assert write([], tmp_path, "card", force=True) == trace
    assert trace.read_text().startswith("{")
    assert [path.name for path in tmp_path.iterdir()] == ["trace_view.json"]


def test_nothing_is_written_by_a_look(tmp_path: Path) -> None:
    check(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


# ---- a host that takes its time ----


def starts(time: Clock, *kernels: Any) -> list[float]:
    kept = time.record()
    for each in kernels:
        time.kernel(each)
    time.stop(kept)
    return [event.start_us for event in kept]


def test_the_card_waits_where_its_host_falls_behind() -> None:
    time = Clock(launch_us=10.0)
    short, long = kernel("short", 1.0, 3.0), kernel("long", 1.0, 25.0)

    # The host is ahead again behind the long one, until short ones have used that up.
    assert starts(time, short, short, long, short, short) == [10.0, 20.0, 30.0, 55.0, 58.0]
    assert (time.now_us, time.host_us) == (61.0, 50.0)
    assert starts(Clock(), short, short) == [0.0, 3.0]


def test_a_host_that_waits_for_the_card_launches_after_it() -> None:
    time = Clock(launch_us=10.0)
    starts(time, kernel("long", 1.0, 100.0))
    time.wait()
    assert starts(time, kernel("short", 1.0, 3.0)) == [120.0]


def test_a_graph_is_launched_once_and_what_is_not_timed_too() -> None:
    time = Clock(launch_us=10.0)
    with time.graph("g"):
        assert starts(time, kernel("a", 1.0, 3.0), kernel("b", 1.0, 3.0)) == [10.0, 13.0]
    time.host("aten.sort.default")
    assert time.host_us == 20.0
    time.host("aten.view.default", is_kernel=False)
    assert time.host_us == 20.0
