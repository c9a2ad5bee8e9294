"""The critical path in words: every cycle is one micro-op's, slack is what a delay costs nobody."""

from __future__ import annotations

from typing import Any

import pytest
from chips import THREE
from played import CHAIN, MUL, Played, lane, trace
from tiny import play, tiny_spec

import npusim
from npusim import TensorSpec, isa
from npusim.data.dtypes import FLOAT32
from npusim.reports import timeline_data
from npusim.reports.critical_path import steps
from npusim.reports.finish import finishes
from npusim.reports.path import Crossing, path_of
from npusim.reports.slack import Slack, slack
from npusim.trace import ORDERING, Trace

F16 = "float16"
CALLS: dict[str, tuple[Any, ...]] = {
    "vector": (
        "npu_quantize",
        TensorSpec((300, 1000), F16),
        TensorSpec((1,), F16),
        None,
        "qint8",
        1,
        False,
    ),
    "cube": ("matmul", TensorSpec((96, 512), F16), TensorSpec((512, 768), F16)),
    "mix": ("matmul", TensorSpec((96, 511), F16), TensorSpec((511, 769), F16)),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("device", THREE)
@pytest.mark.parametrize("call", CALLS)
def test_steps_are_all_of_the_time_and_pipes_on_them_have_no_slack(call: str, device: str) -> None:
    op, *args = CALLS[call]
    run = npusim.run(op, *args, device=device)
    assert run.trace is not None
    found = steps(run.trace)
    assert [step.since for step in found] == [0, *(step.until for step in found[:-1])]
    assert found[-1].until == run.trace.cycles
    for step in found:
        assert sum(cycles for _, cycles in step.causes) == step.cycles >= 0
        assert run.trace.lanes[step.lane].ops[step.index].pipe == step.pipe
    path = path_of(run)
    assert sum(part.us for part in path.parts) == pytest.approx(path.us)
    assert sum(part.share for part in path.parts) == pytest.approx(1)
    held = {
        (step.core, step.pipe)
        for step in found
        if any(cause not in ("flags", "cross-core flags", "dispatch") for cause, _ in step.causes)
    }
    least = {(each.core, each.pipe): each.cycles for each in path.slack}
    assert least
    assert min(least.values()) == 0
    for key in held & set(least):
        assert least[key] == 0
    assert all(0 <= each.cycles <= each.median_cycles for each in path.slack)


def both(load_bytes: int, repeats: int) -> Trace:
    """A load and a multiplication side by side; a store waits for both."""
    spec = tiny_spec()
    loaded = isa.Local("ub", 0, FLOAT32, load_bytes // 4)
    long = isa.Local("ub", 8192, FLOAT32, 64 * repeats)
    ops = (
        isa.Load(loaded, isa.Global("x", 0, load_bytes)),
        isa.SetFlag("mte2", "mte3", 0),
        isa.Binary("mul", long, long, long),
        isa.SetFlag("vector", "mte3", 0),
        isa.WaitFlag("mte2", "mte3", 0),
        isa.WaitFlag("vector", "mte3", 0),
        isa.Store(isa.Global("y", 0, 32), isa.Local("ub", 0, FLOAT32, 8)),
    )
    return play(spec, ops, sizes={"x": 8192, "y": 32}, l2="warm")


def least(found: Trace) -> dict[str, int]:
    return {each.pipe: each.cycles for each in slack(found)}


@pytest.mark.parametrize("more", [1, 3, 8, 16])
def test_what_is_later_by_its_slack_delays_nobody_and_by_more_the_rest(more: int) -> None:
    """A vector unit that works longer during a load: only what is beyond its slack is added."""
    before = both(4096, 4)
    ends = {span.pipe: span.end for span in before.spans(0) if not isinstance(span.op, ORDERING)}
    spare = ends["mte2"] - ends["vector"]
    assert spare > 16
    assert least(before) == {"mte2": 0, "vector": spare, "mte3": 0}
    for repeats in (4 + more, 4 + spare, 4 + spare + more):
        took = repeats - 4
        assert both(4096, repeats).cycles == before.cycles + max(0, took - spare)


def test_a_load_during_long_work_has_the_slack() -> None:
    assert least(both(64, 32))["mte2"] > 0
    assert least(both(64, 32))["vector"] == 0


def test_half_of_the_micro_ops_have_at_least_the_median() -> None:
    found = trace(lane((0,), (MUL, 0, 10, 10), (MUL, 10, 20, 20)), lane((1,), (MUL, 0, 10, 40)))
    assert slack(found) == [Slack("aiv", 1, "vector", 0, 0)]
    # A barrier lets nothing be later; what comes before its own pipe's last result may.
    barred = trace(
        lane((0,), (MUL, 0, 10, 12), (isa.Barrier("vector"), 10, 13, 13), (MUL, 13, 20, 20))
    )
    assert slack(barred) == [Slack("aiv", 0, "vector", 0, 0)]


def test_a_core_that_waits_for_two_passes_its_slack_on() -> None:
    give = isa.CrossCoreSetFlag("group", "vector", 3)
    take = isa.CrossCoreWaitFlag("group", "vector", 3)
    found = trace(
        lane((0,), (take, 0, 45, 45), (MUL, 45, 50, 60), kind="aic"),
        lane((1,), (MUL, 0, 20, 24), (give, 20, 21, 25)),
        lane((2,), (MUL, 0, 8, 12), (give, 8, 9, 13)),
    )
    path = path_of(Played(found))
    assert path.slack == (Slack("aic", 0, "vector", 0, 0), Slack("aiv", 1, "vector", 0, 0))
    assert path.crossings == (Crossing(1, "aiv", "vector", 0, "aic", "vector", "group 3", 25.0),)
    assert [(part.kind, part.name, part.micro_ops, part.us) for part in path.parts] == [
        ("aiv", "mul", 1, 24.0),
        ("aic", "cross_core_wait_flag", 1, 20.0),
        ("aic", "mul", 1, 15.0),
        ("aiv", "cross_core_set_flag", 1, 1.0),
    ]
    assert path.parts[1].words == "flags between cores"
    assert path.to_json()["slack"][0] == {
        "kind": "aic",
        "core": 0,
        "pipe": "vector",
        "cycles": 0,
        "median_cycles": 0,
    }


def test_cores_that_are_done_stand_idle_in_the_last_wave() -> None:
    found = trace(
        lane((0, 1, 2), (MUL, 0, 10, 10)),
        lane((3,), (MUL, 0, 10, 10), (MUL, 10, 20, 20)),
        lane((4,), (MUL, 0, 8, 9), kind="aic"),
    )
    aiv, aic = finishes(Played(found))
    assert (aiv.first_us, aiv.median_us, aiv.last_us, aiv.idle) == (10, 10, 20, 3)
    assert aiv.done_us == {0: 10, 1: 10, 2: 10, 3: 20}
    assert aiv.left_out == 48 - 4
    assert (aic.kind, aic.first_us, aic.last_us, aic.idle, aic.left_out) == ("aic", 9, 9, 0, 23)
    assert [each.left_out for each in finishes(found)] == [None, None]


def test_the_page_knows_the_path() -> None:
    """Of each lane pipe, first cycle and last; what follows on one pipe is one stretch."""
    found = timeline_data.payload(trace(lane((0, 1), *CHAIN), lane((2,), CHAIN[0])), {})
    pipes = found["pipes"]
    paths = {own["name"]: own["path"] for own in found["lanes"]}
    assert paths["core 2 (aiv)"] == []
    told = [(pipes[pipe], since, until) for pipe, since, until in paths["cores 0-1 (aiv)"]]
    assert told == [("mte2", 0, 30), ("vector", 30, 50), ("mte3", 50, 100)]
