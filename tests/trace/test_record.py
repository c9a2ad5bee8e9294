"""Runs on disk: what is written is read back, and what is no whole run is refused in one line."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from records import written

import npusim
from npusim.isa import MicroOp
from npusim.kernel.builder import Builder
from npusim.run import Run
from npusim.trace import record
from npusim.trace.record import RecordError


def refused(folder: Path, message: str) -> None:
    with pytest.raises(RecordError) as caught:
        record.read(folder)
    assert str(caught.value) == message


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
    (tmp_path / "run.json").write_text(json.dumps({"version": record.VERSION} | run.to_json()))
    assert record.write(tmp_path, run.device, run.trace) == ["device.json", "trace.npz"]
    found = record.read(tmp_path)

    assert found.trace is not None
    assert (found.op, found.time_us, found.launch_us) == (run.op, run.time_us, run.launch_us)
    assert found.device == run.device
    assert found.device.sources == run.device.sources
    assert found.trace.to_text() == run.trace.to_text()
    assert found.trace.clock_hz == run.trace.clock_hz
    assert found.trace.counters() == run.trace.counters()
    for lane, known in zip(found.trace.lanes, run.trace.lanes, strict=True):
        assert (lane.cores, lane.kind, lane.gm_bytes, lane.l2_bytes, lane.groups) == (
            *(known.cores, known.kind, known.gm_bytes, known.l2_bytes, known.groups),
        )
        assert lane.ops == known.ops
        assert lane.program.claimed_bytes == known.program.claimed_bytes


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
    (tmp_path / "run.json").write_text(json.dumps({"version": record.VERSION} | run.to_json()))
    record.write(tmp_path, run.device, run.trace)
    found = record.read(tmp_path).trace

    assert found is not None
    assert [len(lane.program.bodies) for lane in found.lanes] == [
        len(lane.program.bodies) for lane in run.trace.lanes
    ]


def test_a_run_without_time_has_no_trace(tmp_path: Path) -> None:
    found = record.read(written(tmp_path / "out", "--no-timing"))

    assert (found.trace, found.time_us, found.code) == (None, None, {})


def test_lines_of_kernels_are_kept(tmp_path: Path) -> None:
    found = record.read(written(tmp_path / "out"))
    assert found.trace is not None
    (call,) = found.trace.lanes[0].program.calls

    assert {file for file, _ in call.lines} == {"npusim/ops/npu_quantize/kernel.py"}
    assert len(call.lines) == len(call.ops)
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


# ---- what is no whole run ----


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("whole") / "out")


AGAIN = "write it again with npusim run -o"


def test_a_folder_must_hold_a_run(tmp_path: Path) -> None:
    refused(
        tmp_path,
        f"report: the folder {tmp_path} must hold a run.json, but holds none; "
        f"name one that npusim run -o has written",
    )


def test_an_older_version_is_told(tmp_path: Path) -> None:
    out = written(tmp_path / "out")
    facts = json.loads((out / "run.json").read_text())
    del facts["version"]
    (out / "run.json").write_text(json.dumps(facts))

    refused(out, f"report: the run in {out} must be of version 3, not 1; {AGAIN}")


@pytest.mark.parametrize("name", ["run.json", "device.json", "trace.npz"])
@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "other"])
def test_half_a_run_is_refused(name: str, damage: str, whole: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(whole, tmp_path / "out"))
    content = (out / name).read_bytes()
    if damage == "gone" and name == "run.json":
        pytest.skip("then there is no run at all")
    (out / name).unlink()
    if damage != "gone":
        (out / name).write_bytes(
            {"empty": b"", "cut": content[: len(content) // 2], "other": b"[]"}[damage]
        )

    refused(
        out,
        f"report: the folder {out} must hold a whole run, but {name} is missing or broken; {AGAIN}",
    )
