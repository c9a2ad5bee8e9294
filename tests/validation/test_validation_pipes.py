"""How long pipes work, held against what profilers counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

import npusim
from npusim import TensorSpec, devices
from npusim.devices.settings import changed
from npusim.isa import Mmad
from npusim.validation import Row, pipes, read
from npusim.validation.calls import timed
from npusim.validation.pipes import PipeTimes
from npusim.validation.timed import Call

ROWS = {row.id: row for row in read()}
PRODUCT = ROWS["rp0023"]


def test_pipes_are_of_rows_that_are_there() -> None:
    known = pipes.counted()
    assert set(known) <= set(ROWS)
    assert known["rp0023"] == {
        "aic_mac": 64.412, "aic_mte1": 45.412, "aic_mte2": 66.539, "aic_fixpipe": 24.121,
    }  # fmt: skip
    for name, times in known.items():
        assert max(times.values()) <= 1.05 * ROWS[name].latency_us


def test_a_pipe_is_the_mean_over_the_cores_of_its_kind() -> None:
    """Written anew: a core works one micro-op after the other, and cores do not share them."""
    x, weight = TensorSpec((256, 512), "float16"), TensorSpec((512, 640), "float16")
    run = npusim.run("matmul", x, weight, device="910B2", values=False)
    assert run.trace is not None
    of_cores = []
    for lane in run.trace.lanes:
        spans = [span for span in run.trace.spans() if isinstance(span.op, Mmad)]
        for core in lane.cores:
            own = sorted((s.start, s.end) for s in spans if s.core == core)
            covered, busy = 0, 0
            for start, end in own:
                busy += max(0, end - max(start, covered))
                covered = max(covered, end)
            of_cores.append(busy)
    mean_us = sum(of_cores) / len(of_cores) / run.device.clock_hz * 1e6
    assert pipes.of_run(run)["aic_mac"] == pytest.approx(mean_us)
    assert pipes.of_run(run)["aiv_vec"] == 0.0


def test_a_slower_pipe_moves_its_figure() -> None:
    (call,) = timed(PRODUCT)
    assert isinstance(call, Call)
    spec = devices.load(PRODUCT.device)
    slow = changed(spec, {"cores.aic.paths.l0c_to_l2.bytes_per_cycle": "x0.5"})
    fast, slower = (pipes.of_run(replace(call, device=each).run()) for each in (spec, slow))
    assert slower["aic_fixpipe"] > 1.5 * fast["aic_fixpipe"]
    assert slower["aic_mac"] == pytest.approx(fast["aic_mac"], rel=0.02)


def test_errors_are_shares_of_the_duration() -> None:
    def times(name: str, measured: float, simulated: float | None) -> PipeTimes:
        row = Row(name, "mine", "matmul", "Atlas A2", 100.0)
        own = None if simulated is None else {"aic_mac": simulated, "aic_mte1": 0.0}
        return PipeTimes(row, {"aic_mac": measured}, own)

    found = [times("a", 50.0, 60.0), times("b", 50.0, 30.0), times("c", 1.0, None)]
    error, of_all = pipes.errors(found)
    assert of_all == replace(error, family="all")
    assert error.to_json() == {
        "family": "mine", "pipe": "aic_mac", "rows": 2, "median": pytest.approx(0.15),
        "bias": pytest.approx(-0.05),
    }  # fmt: skip


def test_only_rows_whose_pipes_were_counted_are_timed() -> None:
    heard: list[float] = []
    found = pipes.measure(
        [ROWS["m0001"], ROWS["rp0050"]], jobs=1, progress=lambda _, share: heard.append(share)
    )
    assert [each.row.id for each in found] == ["rp0050"]
    assert heard == [1.0]
    facts = found[0].to_json()
    assert facts["family"] == "training_elementwise_910b4"
    assert facts["measured_us"] == pipes.counted()["rp0050"]
