"""Runs on disk: what is written is read back."""

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from played import ASCEND910B2, lane, trace
from records import written

import npusim
from npusim.data.dtypes import FLOAT32
from npusim.isa import Duplicate, Global, Load, Local, MicroOp
from npusim.kernel.builder import Builder
from npusim.run import Run
from npusim.trace import archive, programs, record

ANY = "."
"""The whole message is compared after it."""


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    """One of vector cores, and one of cubes and vector cores with calls."""
    x = np.arange(72, dtype=np.float32).reshape(2, 3, 12)
    scales = np.full(12, 3, np.float32)
    spec = npusim.TensorSpec
    weights = spec((16, 512), "float16"), spec((512, 512), "int8"), spec((512,), "float16")
    return [
        npusim.run("npu_quantize", x, scales, None, "qint8", -1, False, device="ascend310p3"),
        npusim.run("npu_weight_quant_batchmatmul", *weights, device="ascend910b2"),
    ]


@pytest.mark.parametrize("which", [0, 1])
def test_a_run_is_read_back_as_it_was(which: int, runs: list[Run], tmp_path: Path) -> None:
    run = runs[which]
    assert run.trace is not None
    assert record.write(tmp_path, run.device, run.trace) == ["device.json", "trace.npz"]
    assert record.seal(tmp_path, run.to_json()) == "run.json"
    found = record.read(tmp_path)

    assert found.trace is not None
    assert (found.op, found.time_us, found.launch_us) == (run.op, run.time_us, run.launch_us)
    assert found.launches == run.launches
    assert found.accuracy == run.accuracy
    assert found.device == run.device
    assert found.device.sources == run.device.sources
    assert found.trace.to_text() == run.trace.to_text()
    assert found.trace.clock_hz == run.trace.clock_hz
    assert found.trace.counters() == run.trace.counters()
    assert found.trace.gm_written_bytes == run.trace.gm_written_bytes
    assert any(lane.copies.index.size for lane in found.trace.lanes)
    for own, known in zip(found.trace.lanes, run.trace.lanes, strict=True):
        assert own.l2_hit_bytes == known.l2_hit_bytes
        for field in fields(known.copies):
            column = getattr(own.copies, field.name)
            np.testing.assert_array_equal(column, getattr(known.copies, field.name))
        assert own.l2_written_bytes == known.l2_written_bytes
        assert (own.cores, own.kind, own.gm_bytes, own.l2_bytes, own.groups) == (
            *(known.cores, known.kind, known.gm_bytes, known.l2_bytes, known.groups),
        )
        assert own.ops == known.ops
        assert own.program.claimed_bytes == known.program.claimed_bytes


def test_lanes_know_the_groups_of_their_cores(runs: list[Run]) -> None:
    trace = runs[1].trace
    assert trace is not None
    assert {trace.kind(core) for core in trace.cores} == {"aic", "aiv"}
    # A cube core and its two vector cores are numbered one after the other.
    assert [trace.group(core) for core in trace.cores] == [core // 3 for core in trace.cores]
    assert trace.group(max(trace.cores)) > 0


def test_bodies_that_calls_share_are_still_shared(runs: list[Run], tmp_path: Path) -> None:
    run = runs[1]
    assert run.trace is not None
    record.write(tmp_path, run.device, run.trace)
    record.seal(tmp_path, run.to_json())
    found = record.read(tmp_path).trace

    assert found is not None
    assert [len(lane.program.bodies) for lane in found.lanes] == [
        len(lane.program.bodies) for lane in run.trace.lanes
    ]


def test_a_run_without_time_has_no_trace(tmp_path: Path) -> None:
    found = record.read(written(tmp_path / "out", "--no-timing"))

    assert (found.trace, found.time_us, found.code) == (None, None, {})


def test_lines_of_kernels_are_stored(tmp_path: Path) -> None:
    found = record.read(written(tmp_path / "out"))
    assert found.trace is not None
    calls = found.trace.lanes[0].program.calls

    lines = [line for call in calls for line in call.lines]
    assert {file for file, _ in lines} == {"npusim/ops/npu_quantize/kernel.py"}
    assert len(lines) == sum(len(call.ops) for call in calls)
    source = Path(npusim.__file__).parent.parent
    for (file, number), text in found.code.items():
        assert (source / file).read_text().splitlines()[number - 1].strip() == text


def test_each_micro_op_knows_the_line_that_wrote_it(tiny: npusim.DeviceSpec) -> None:
    builder = Builder("kernel", tiny.cores["aiv"], tiny.sync)
    builder.barrier("vector")
    builder.call("body", {}, lambda: builder.sync("mte2", "vector"))
    builder.barrier()
    program = builder.build()

    ops: list[MicroOp] = [op for call in program.calls for op in call.ops]
    lines = [line for call in program.calls for line in call.lines]
    first = lines[0][1]
    assert len(lines) == len(ops) == 4
    assert [number - first for _, number in lines] == [0, 1, 1, 2]
    assert {file for file, _ in lines} == {__file__}


def test_a_folder_knows_what_was_written_into_it(tmp_path: Path) -> None:
    out = written(tmp_path / "out", "--export", "perfetto")

    assert record.made(out) == {
        *("device.json", "output.npy", "perfetto.json", "pipes.png", "run.json", "timeline.png"),
        "trace.npz",
    }


@pytest.mark.parametrize("scalar", [float("inf"), -3.4028234663852886e38, float("nan"), 7])
def test_every_number_that_a_micro_op_takes_is_read_back(scalar: float) -> None:
    op = Duplicate(Local("ub", 0, FLOAT32, 8), scalar)
    text = json.dumps(programs.described(trace(lane((0,), (op, 0, 1, 2)))))
    (found,) = programs.programs_of(programs.Tree.model_validate_json(text))

    assert str(found.ops) == str((op,))


def test_a_name_that_cannot_be_shown_is_not_written(tmp_path: Path) -> None:
    op = Load(Local("ub", 0, FLOAT32, 8), Global("x\x1b[31m", 0, 32))
    with pytest.raises(ValueError, match=ANY) as caught:
        record.write(tmp_path, ASCEND910B2, trace(lane((0,), (op, 0, 1, 2))))
    assert str(caught.value) == (
        "record: a name must be at most 1000 printable characters, not 'x\\x1b[31m'; rename it"
    )


def test_no_more_is_written_than_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_BYTES", 23)
    op = Load(Local("ub", 0, FLOAT32, 8), Global("x", 0, 32))
    with pytest.raises(ValueError, match=ANY) as caught:
        record.write(tmp_path, ASCEND910B2, trace(lane((0,), (op, 0, 1, 2))))
    assert str(caught.value) == (
        "record: the times of a stored run must have at most 23 bytes, not 24; "
        "run it on smaller tensors, or without a folder"
    )
