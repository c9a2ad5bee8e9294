"""torch_npu.profiler: its files, in simulated time."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from simulated_card import torch, torch_npu

import npusim
import npusim.torch
from npusim.torch.clock import clock

profiler = torch_npu.profiler


@pytest.fixture(autouse=True)
def card() -> Iterator[None]:
    npusim.torch.install(device="ascend910b2")
    yield
    npusim.torch.install(device="ascend910b2")


@pytest.fixture
def inputs() -> tuple[Any, Any]:
    return torch.rand(16, 64).half().npu(), torch.rand(64).half().npu()


def work(x: Any, scale: Any) -> None:
    torch_npu.npu_quantize(x.flip(0), scale, None, torch.qint8, -1, False)


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / name).open(newline="") as file:
        return list(csv.DictReader(file))


def results(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found / "ASCEND_PROFILER_OUTPUT"


def test_the_files_are_torch_npus(tmp_path: Path, inputs: Any) -> None:
    handler = profiler.tensorboard_trace_handler(str(tmp_path / "new"), worker_name="me")
    with profiler.profile(on_trace_ready=handler) as prof:
        prof.add_metadata("batch", "16")
        prof.add_metadata_json("sizes", "[1, 2]")
        work(*inputs)
    (folder,) = (tmp_path / "new").iterdir()
    assert re.fullmatch(r"me_\d{17}_ascend_pt", folder.name)
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*")) == [
        "ASCEND_PROFILER_OUTPUT/kernel_details.csv",
        "ASCEND_PROFILER_OUTPUT/op_statistic.csv",
        "ASCEND_PROFILER_OUTPUT/step_trace_time.csv",
        "ASCEND_PROFILER_OUTPUT/trace_view.json",
        "profiler_info.json",
        "profiler_metadata.json",
    ]
    noted = json.loads((folder / "profiler_metadata.json").read_text())
    assert noted == {"batch": "16", "sizes": [1, 2]}
    info = json.loads((folder / "profiler_info.json").read_text())
    assert info == {"rank_id": -1, "device": "Ascend910B2", "simulated": True}


def test_two_profiles_at_once_do_not_meet(tmp_path: Path) -> None:
    for _ in range(3):
        with profiler.profile(on_trace_ready=profiler.tensorboard_trace_handler(str(tmp_path))):
            pass
    assert len(list(tmp_path.iterdir())) == 3


def test_without_analysis_only_notes_are_left(tmp_path: Path, inputs: Any) -> None:
    handler = profiler.tensorboard_trace_handler(str(tmp_path), analyse_flag=False)
    with profiler.profile(on_trace_ready=handler):
        work(*inputs)
    assert not results(tmp_path).exists()


def test_a_kernel_has_a_row(tmp_path: Path, inputs: Any) -> None:
    start_us = clock.now_us
    with profiler.profile(on_trace_ready=profiler.tensorboard_trace_handler(str(tmp_path))):
        work(*inputs)
        torch_npu.npu_convert_weight_to_int4pack(torch.ones(8, 8, dtype=torch.int32).npu())
    (row,) = rows(results(tmp_path), "kernel_details.csv")
    x, scale = (tensor.cpu().numpy() for tensor in inputs)
    run = npusim.run(
        "npu_quantize", x, scale, None, "qint8", -1, False, device="ascend910b2", values=False
    )
    assert run.plan is not None
    assert row == {
        "Device_id": "0",
        "Name": "npu_quantize",
        "Type": "npu_quantize",
        "Accelerator Core": "AI_VECTOR_CORE",
        "Start Time(us)": f"{start_us:.3f}",
        "Duration(us)": f"{run.time_us:.3f}",
        "Wait Time(us)": "0.000",
        "Block Num": str(run.plan.block_dim),
        "Input Shapes": "16,64;64",
        "Input Data Types": "FLOAT16;FLOAT16",
        "Input Formats": "ND;ND",
        "Output Shapes": "16,64",
        "Output Data Types": "INT8",
        "Output Formats": "ND",
    }


@pytest.mark.parametrize(
    ("device", "pertoken", "cores"),
    [("ascend910b2", False, "AI_CORE"), ("ascend910b2", True, "MIX_AIC"),
     ("ascend310p3", False, "AI_CORE")],
)  # fmt: skip
def test_which_cores_took_part(tmp_path: Path, device: str, pertoken: bool, cores: str) -> None:
    npusim.torch.install(device=device)
    x1, x2 = torch.ones(16, 64, dtype=torch.int8).npu(), torch.ones(64, 32, dtype=torch.int8).npu()
    with profiler.profile(on_trace_ready=profiler.tensorboard_trace_handler(str(tmp_path))):
        torch_npu.npu_quant_matmul(
            *(x1, x2, torch.ones(32).npu()),
            pertoken_scale=torch.ones(16).npu() if pertoken else None,
            output_dtype=torch.float16,
        )
    found = rows(results(tmp_path), "op_statistic.csv")
    told = {row["OP Type"]: (row["Core Type"], row["Count"]) for row in found}
    assert told.pop("npu_quant_matmul") == (cores, "1")
    # Scales a column become words by a launch of their own.
    kinds = {"ascend910b2": "AI_VECTOR_CORE", "ascend310p3": "AI_CORE"}
    assert told == ({} if pertoken else {"npu_trans_quant_param": (kinds[device], "1")})


def test_both_kernels_of_a_float32_scale_follow_each_other(tmp_path: Path) -> None:
    x1, x2 = torch.ones(16, 64, dtype=torch.int8).npu(), torch.ones(64, 32, dtype=torch.int8).npu()
    scale = torch.ones(32).npu()
    before = clock.now_us, clock.kernels, clock.launches
    with profiler.profile(on_trace_ready=profiler.tensorboard_trace_handler(str(tmp_path))):
        torch_npu.npu_quant_matmul(x1, x2, scale, output_dtype=torch.float16)
    first, second = rows(results(tmp_path), "kernel_details.csv")
    assert (first["Name"], second["Name"]) == ("npu_trans_quant_param", "npu_quant_matmul")
    ended_us = float(first["Start Time(us)"]) + float(first["Duration(us)"])
    assert float(second["Start Time(us)"]) == pytest.approx(ended_us, abs=2e-3)
    passed_us, kernels, launches = clock.now_us - before[0], clock.kernels, clock.launches
    assert (kernels - before[1], launches - before[2]) == (2, 2)
    # Once each: as the two calls of someone who packs the scale himself.
    words = torch_npu.npu_trans_quant_param(scale)
    torch_npu.npu_quant_matmul(x1, x2, words, output_dtype=torch.float16)
    assert (clock.kernels, clock.launches) == (kernels + 2, launches + 2)
    assert clock.now_us - before[0] == pytest.approx(2 * passed_us)


def test_operators_are_summed_up_the_longest_first(tmp_path: Path, inputs: Any) -> None:
    with profiler.profile(on_trace_ready=profiler.tensorboard_trace_handler(str(tmp_path))):
        torch_npu.npu_trans_quant_param(torch.ones(8).npu())
        work(*inputs)
        work(inputs[0][:1], inputs[1])
    kernels = rows(results(tmp_path), "kernel_details.csv")
    first, second = rows(results(tmp_path), "op_statistic.csv")
    times = [float(row["Duration(us)"]) for row in kernels if row["Name"] == "npu_quantize"]
    assert (first["OP Type"], first["Count"]) == ("npu_quantize", "2")
    assert float(first["Total Time(us)"]) == pytest.approx(sum(times), abs=0.002)
    assert float(first["Avg Time(us)"]) == pytest.approx(sum(times) / 2, abs=0.002)
    assert (float(first["Min Time(us)"]), float(first["Max Time(us)"])) == (min(times), max(times))
    assert (second["OP Type"], second["Core Type"]) == ("npu_trans_quant_param", "AI_VECTOR_CORE")
    assert float(first["Ratio(%)"]) + float(second["Ratio(%)"]) == pytest.approx(100, abs=0.01)


def test_steps_have_their_kernels(tmp_path: Path, inputs: Any) -> None:
    with profiler.profile(on_trace_ready=profiler.tensorboard_trace_handler(str(tmp_path))) as prof:
        for count in (1, 0, 2):
            for _ in range(count):
                work(*inputs)
            prof.step()
    kernels = rows(results(tmp_path), "kernel_details.csv")
    assert [row["Step Id"] for row in kernels] == ["0", "2", "2"]
    steps = rows(results(tmp_path), "step_trace_time.csv")
    assert [row["Step"] for row in steps] == ["0", "1", "2"]
    us = float(kernels[0]["Duration(us)"])
    computing = [float(row["Computing"]) for row in steps]
    assert computing == pytest.approx([us, 0, 2 * us], abs=0.002)
    assert {row["Free"] for row in steps} == {"0.000"}


def test_a_schedule_keeps_the_steps_it_names(inputs: Any) -> None:
    seen = []

    def note(prof: Any) -> None:
        names = [event.name for event in prof.events if event.is_simulated]
        seen.append((prof.step_num, [step.number for step in prof.steps], len(names)))

    planned = profiler.schedule(wait=1, warmup=1, active=2, repeat=2, skip_first=1)
    with profiler.profile(schedule=planned, on_trace_ready=note) as prof:
        for _ in range(12):
            work(*inputs)
            prof.step()
    assert seen == [(5, [3, 4], 2), (9, [7, 8], 2)]


def test_active_stretches_may_follow_each_other(inputs: Any) -> None:
    seen = []
    planned = profiler.schedule(wait=0, active=1)
    with profiler.profile(schedule=planned, on_trace_ready=lambda p: seen.append(p.steps)) as prof:
        for _ in range(3):
            work(*inputs)
            prof.step()
    assert [[step.number for step in steps] for steps in seen] == [[0], [1], [2], [3]]


def test_start_and_stop_without_with(inputs: Any) -> None:
    prof = profiler.profile()
    work(*inputs)
    prof.start()
    work(*inputs)
    prof.stop()
    work(*inputs)
    assert [event.name for event in prof.events if event.is_simulated] == ["npu_quantize"]


def test_a_graph_is_told_in_the_trace(tmp_path: Path, inputs: Any) -> None:
    with profiler.profile() as prof:
        with clock.graph("graph_x"):
            work(*inputs)
        work(*inputs)
    prof.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    kernels = [event for event in events if event["name"] == "npu_quantize"]
    assert [event["args"].get("graph") for event in kernels] == ["graph_x", None]
    plain = [event for event in events if event["name"] == "aten.flip.default"]
    assert [(event["dur"], event["args"]["simulated"]) for event in plain] == [(0.0, False)] * 2


def test_a_profile_must_run_before_it_is_exported(tmp_path: Path) -> None:
    message = (
        "torch_npu.profiler: a profile must have run before it is exported, but has not; "
        "call start() and stop(), or use it in a with statement"
    )
    with pytest.raises(RuntimeError, match="^" + re.escape(message) + "$"):
        profiler.profile().export_chrome_trace(str(tmp_path / "trace.json"))


def test_settings_of_scripts_are_taken(inputs: Any) -> None:
    config = profiler._ExperimentalConfig(
        profiler_level=profiler.ProfilerLevel.Level1,
        aic_metrics=profiler.AiCMetrics.PipeUtilization,
        export_type=[profiler.ExportType.Text],
        l2_cache=True,
    )
    activities = [profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.NPU]
    assert profiler.supported_activities() == set(activities)
    with profiler.profile(
        activities=activities, experimental_config=config, record_shapes=True, with_stack=True
    ) as prof:
        work(*inputs)
    assert len(prof.steps) == 1


def test_databases_are_refused() -> None:
    message = (
        "torch_npu.profiler: export_type must be ExportType.Text, not ExportType.Db; leave it out"
    )
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        profiler._ExperimentalConfig(export_type=profiler.ExportType.Db)


@pytest.mark.parametrize(
    "wrong",
    [{"active": 0}, {"active": 1, "repeat": -1}, {"active": 1.5}, {"active": 1, "wait": None}],
)
def test_a_schedule_is_of_whole_steps(wrong: dict[str, Any]) -> None:
    counts = {"active": 1, "wait": 1, "warmup": 0, "repeat": 0, "skip_first": 0} | wrong
    told = ", ".join(f"{name}={count}" for name, count in counts.items())
    message = (
        f"torch_npu.profiler: active must be at least 1 and the rest at least 0, not {told}; "
        f"name whole steps"
    )
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        profiler.schedule(**({"wait": 1} | wrong))


def test_a_schedule_is_torch_s_own() -> None:
    options = {"wait": 2, "warmup": 1, "active": 3, "repeat": 2, "skip_first": 4}
    ours, theirs = profiler.schedule(**options), torch.profiler.schedule(**options)
    assert [ours(step) for step in range(30)] == [theirs(step) for step in range(30)]
