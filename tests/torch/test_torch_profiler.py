"""torch_npu.profiler: its files, in simulated time."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from simulated_card import torch, torch_npu

import npusim
import npusim.torch
from npusim.torch.clock import clock

profiler = torch_npu.profiler


@pytest.fixture
def inputs() -> tuple[Any, Any]:
    return torch.rand(16, 64).half().npu(), torch.rand(64).half().npu()


def work(x: Any, scale: Any) -> None:
    torch_npu.npu_quantize(x.lgamma(), scale, None, torch.qint8, -1, False)


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
        "ASCEND_PROFILER_OUTPUT/operator_details.csv",
        "ASCEND_PROFILER_OUTPUT/step_trace_time.csv",
        "ASCEND_PROFILER_OUTPUT/trace_view.json",
        "profiler_info.json",
        "profiler_metadata.json",
    ]
    noted = json.loads((folder / "profiler_metadata.json").read_text())
    assert noted == {"batch": "16", "sizes": [1, 2]}
    info = json.loads((folder / "profiler_info.json").read_text())
    assert info == {
        "config": {
            "common_config": {
                "activities": ["ProfilerActivity.CPU", "ProfilerActivity.NPU"],
                "record_shapes": False,
                "with_stack": False,
            },
            "experimental_config": {
                "_profiler_level": "Level0",
                "_aic_metrics": "ACL_AICORE_NONE",
                "_export_type": ["text"],
            },
        },
        "rank_id": -1,
        "device": "Ascend910B2",
        "simulated": True,
    }


def test_processes_say_ranks(tmp_path: Path, inputs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 3)
    with profiler.profile(on_trace_ready=profiler.tensorboard_trace_handler(str(tmp_path))):
        work(*inputs)
    (folder,) = tmp_path.iterdir()
    assert json.loads((folder / "profiler_info_3.json").read_text())["rank_id"] == 3


def test_streams_have_rows_of_their_own(tmp_path: Path, inputs: Any) -> None:
    stream = torch.npu.Stream()
    with profiler.profile() as prof:
        work(*inputs)
        with torch.npu.stream(stream):
            work(*inputs)
    kernels = [event for event in timeline(prof, tmp_path) if event["pid"] == 2]
    own = [event["tid"] for event in kernels if event["ph"] == "X"]
    assert own == [torch.npu.default_stream().stream_id, stream.stream_id]
    named = {e["tid"]: e["args"]["name"] for e in kernels if e["name"] == "thread_name"}
    assert named == {number: f"Stream {number}" for number in own}


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
    work(*inputs)  # The clock no longer shows 0.
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
        "Name": "aclnnAscendQuantV3_AscendQuantV2_AscendQuantV2",
        "Type": "AscendQuantV2",
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
    assert told.pop("QuantBatchMatmulV3") == (cores, "1")
    # Scales a column become words by a launch of their own.
    kinds = {"ascend910b2": "AI_VECTOR_CORE", "ascend310p3": "AI_CORE"}
    assert told == ({} if pertoken else {"TransQuantParamV2": (kinds[device], "1")})


def test_both_kernels_of_a_float32_scale_follow_each_other(tmp_path: Path) -> None:
    x1, x2 = torch.ones(16, 64, dtype=torch.int8).npu(), torch.ones(64, 32, dtype=torch.int8).npu()
    scale = torch.ones(32).npu()
    before = clock.now_us, clock.kernels, clock.launches
    with profiler.profile(on_trace_ready=profiler.tensorboard_trace_handler(str(tmp_path))):
        torch_npu.npu_quant_matmul(x1, x2, scale, output_dtype=torch.float16)
    first, second = rows(results(tmp_path), "kernel_details.csv")
    assert first["Name"] == "aclnnTransQuantParamV2_TransQuantParamV2_TransQuantParamV2"
    assert second["Name"] == "aclnnQuantMatmulV5_QuantBatchMatmulV3_QuantBatchMatmulV3"
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
    times = [float(row["Duration(us)"]) for row in kernels if row["Type"] == "AscendQuantV2"]
    assert (first["OP Type"], first["Count"]) == ("AscendQuantV2", "2")
    assert float(first["Total Time(us)"]) == pytest.approx(sum(times), abs=0.002)
    assert float(first["Avg Time(us)"]) == pytest.approx(sum(times) / 2, abs=0.002)
    assert (float(first["Min Time(us)"]), float(first["Max Time(us)"])) == (min(times), max(times))
    assert (second["OP Type"], second["Core Type"]) == ("TransQuantParamV2", "AI_VECTOR_CORE")
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


def test_a_graph_is_reported_in_the_trace(tmp_path: Path, inputs: Any) -> None:
    with profiler.profile() as prof:
        with clock.graph("graph_x"):
            work(*inputs)
        work(*inputs)
    prof.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())
    kernels = [
        event
        for event in events
        if event["name"] == "aclnnAscendQuantV3_AscendQuantV2_AscendQuantV2"
    ]
    assert [event["args"].get("graph") for event in kernels] == ["graph_x", None]
    plain = [event for event in events if event["name"] == "aten::lgamma"]
    assert [(event["dur"], event["args"]) for event in plain] == [(0.0, {"simulated": False})] * 2


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
    )
    activities = [profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.NPU]
    assert profiler.supported_activities() == set(activities)
    assert config.profiler_level in profiler.supported_profiler_level()
    assert config.aic_metrics in profiler.supported_ai_core_metrics()
    assert profiler.ExportType.Text in profiler.supported_export_type()
    with profiler.profile(
        activities=activities, experimental_config=config, record_shapes=True, with_stack=True
    ) as prof:
        work(*inputs)
    assert len(prof.steps) == 1


def left_out(asked: str, what: str) -> str:
    text = (
        f"torch_npu.profiler: what is asked for must be simulated to be written, but {asked} is "
        f"not: {what} are left out"
    )
    return f"^{re.escape(text)}$"


@pytest.mark.parametrize(
    ("option", "what"),
    [
        ("profile_memory", "operator_memory.csv and memory_record.csv"),
        ("with_modules", "the modules of call stacks"),
        ("with_flops", "numbers of operations"),
    ],
)
def test_what_is_not_simulated_is_said_to_be_left_out(option: str, what: str) -> None:
    with pytest.warns(UserWarning, match=left_out(f"{option}=True", what)):
        profiler.profile(**{option: True})


def test_settings_that_are_not_simulated_are_said_to_be_left_out() -> None:
    message = left_out("l2_cache=True", "hits and misses of the L2")
    with pytest.warns(UserWarning, match=message) as told:
        profiler._ExperimentalConfig(l2_cache=True)
    assert told[0].filename == __file__
    message = left_out("aic_metrics=AiCMetrics.Memory", "its counters")
    with pytest.warns(UserWarning, match=message):
        config = profiler._ExperimentalConfig(
            profiler_level=profiler.ProfilerLevel.Level2, aic_metrics=profiler.AiCMetrics.Memory
        )
    assert (config.is_detailed, config.has_counters) == (True, False)


def test_what_torch_s_profiler_alone_has_is_reported(inputs: Any) -> None:
    with profiler.profile() as prof:
        work(*inputs)
    message = (
        "torch_npu.profiler.profile: an attribute must be one that is simulated, not key_averages; "
        "read op_statistic.csv and operator_details.csv, as with torch_npu itself"
    )
    with pytest.raises(AttributeError, match=f"^{re.escape(message)}$"):
        prof.key_averages()
    message = (
        "torch_npu.profiler.profile: an attribute must be one that is simulated, not averages; "
        "leave it out"
    )
    with pytest.raises(AttributeError, match=f"^{re.escape(message)}$"):
        _ = prof.averages


# ---- operations of torch ----


def test_operations_have_the_time_of_their_kernels(tmp_path: Path) -> None:
    x, y = torch.rand(16, 64).bfloat16().npu(), torch.rand(64, 16).bfloat16().npu()
    z = torch.rand(16, 16).bfloat16().npu()
    handler = profiler.tensorboard_trace_handler(str(tmp_path))
    with profiler.profile(on_trace_ready=handler, record_shapes=True, with_stack=True):
        torch.addmm(z, x, y)
        x @ y
        x.lgamma()
    kernels = rows(results(tmp_path), "kernel_details.csv")
    # A whole matrix is added by kernels of its own, in float32.
    assert [(row["Name"], row["Type"]) for row in kernels] == [
        ("aclnnAddmm_MatMulV3AiCore_MatMulV3", "MatMulV3"),
        ("aclnnAddmm_CastAiCore_Cast", "Cast"),
        ("aclnnAddmm_AddAiCore_Add", "Add"),
        ("aclnnAddmm_CastAiCore_Cast", "Cast"),
        ("aclnnMm_MatMulV3AiCore_MatMulV3", "MatMulV3"),
    ]
    *sum_us, product_us = (float(row["Duration(us)"]) for row in kernels)
    listed = rows(results(tmp_path), "operator_details.csv")
    assert [row["Name"] for row in listed] == ["aten::addmm", "aten::mm", "aten::lgamma"]
    found = {row["Name"]: row for row in listed}
    times = {
        name: [float(row[f"Device {part} Duration{kind}"])
               for kind in ("(us)", " With AICore(us)") for part in ("Self", "Total")]
        for name, row in found.items()
    }  # fmt: skip
    assert times["aten::addmm"] == pytest.approx([sum(sum_us)] * 2 + sum_us[:1] * 2, abs=3e-3)
    assert times["aten::mm"] == pytest.approx([product_us] * 4, abs=2e-3)
    assert times["aten::lgamma"] == [0, 0, 0, 0]
    assert found["aten::mm"]["Input Shapes"] == "16,64;64,16"
    assert {row["Host Total Duration(us)"] for row in found.values()} == {"0.000"}
    innermost = found["aten::lgamma"]["Call Stack"].split(";")[0]
    test = "test_operations_have_the_time_of_their_kernels"
    assert re.fullmatch(rf"{re.escape(__file__)}\(\d+\): {test}", innermost)


BATCHED = "aclnnBatchMatMul_BatchMatMulV2AiCore_BatchMatMulV2"


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: x + x, "aclnnAdd_AddAiCore_Add"),
        (lambda x: torch.bmm(*[x.view(2, 32, 32)] * 2), BATCHED),
        (lambda x: x / 2, "aclnnDivs_RealDivAiCore_RealDiv"),
        (lambda x: x.exp_(), "aclnnInplaceExp_ExpAiCore_Exp"),
        (lambda x: x == 1, "aclnnEqScalar_EqualAiCore_Equal"),
        (lambda x: x.clone(), "aclnnInplaceCopy_TensorMoveAiCore_TensorMove"),
        (lambda x: torch.softmax(x, -1), "aclnnSoftmax_SoftmaxV2AiCore_SoftmaxV2"),
        (lambda x: x.t().contiguous(), "aclnnInplaceCopy_TransposeAiCore_Transpose"),
        (lambda x: x.float(), "aclnnCast_CastAiCore_Cast"),
        (lambda x: torch_npu.npu_swiglu(x), "aclnnSwiGlu_SwiGlu_SwiGlu"),
        (lambda x: torch_npu.npu_format_cast(x, 29), "aclnnNpuFormatCast_TransData_TransData"),
    ],
)
def test_kernels_are_named_after_what_called_them(tmp_path: Path, call: Any, name: str) -> None:
    x = torch.rand(32, 64).half().npu()
    with profiler.profile(on_trace_ready=profiler.tensorboard_trace_handler(str(tmp_path))):
        call(x)
    assert [row["Name"] for row in rows(results(tmp_path), "kernel_details.csv")] == [name]


def test_a_weight_is_described_as_it_lies(tmp_path: Path) -> None:
    x, weight = torch.rand(16, 64).half().npu(), torch.rand(32, 64).half().npu()
    with profiler.profile(on_trace_ready=profiler.tensorboard_trace_handler(str(tmp_path))):
        torch.nn.functional.linear(x, weight)
    (row,) = rows(results(tmp_path), "kernel_details.csv")
    assert row["Input Shapes"] == "16,64;32,64"


@pytest.mark.parametrize("device", ["ascend910b2", "ascend310p3"])
def test_above_level_0_the_pipes_are_reported(tmp_path: Path, device: str) -> None:
    npusim.torch.install(device=device)
    config = profiler._ExperimentalConfig(profiler_level=profiler.ProfilerLevel.Level1)
    handler = profiler.tensorboard_trace_handler(str(tmp_path))
    x = torch.rand(256, 256).half().npu()
    with profiler.profile(on_trace_ready=handler, experimental_config=config):
        x @ x
    (row,) = rows(results(tmp_path), "kernel_details.csv")
    run = npusim.run("matmul", *(x.cpu().numpy(),) * 2, device=device, values=False)
    assert run.trace is not None
    prefix = "" if device == "ascend310p3" else "aic_"
    assert list(row)[:24] == [
        *("Device_id", "Model ID", "Task ID", "Stream ID", "Name", "Type", "OP State"),
        *("Accelerator Core", "Start Time(us)", "Duration(us)", "Wait Time(us)", "Block Num"),
        *("Mix Block Num", "HF32 Eligible", "Input Shapes", "Input Data Types", "Input Formats"),
        *("Output Shapes", "Output Data Types", "Output Formats", "Context ID"),
        *("aicore_time(us)", f"{prefix}total_cycles"),
        "vec_time(us)" if device == "ascend310p3" else "aic_mac_time(us)",
    ]
    lanes = [lane for lane in run.trace.lanes if "cube" in lane.counters()]
    cores = sum(len(lane.cores) for lane in lanes)
    cycles = sum(lane.last_end * len(lane.cores) for lane in lanes)
    busy = sum(lane.counters()["cube"].busy_cycles * len(lane.cores) for lane in lanes)
    assert row[f"{prefix}total_cycles"] == str(cycles)
    assert float(row["aicore_time(us)"]) == pytest.approx(
        cycles / cores / run.device.clock_hz * 1e6, abs=1e-3
    )
    assert float(row[f"{prefix}mac_ratio"]) == pytest.approx(busy / cycles, abs=1e-3)
    assert row[f"{prefix}icache_miss_rate"] == "N/A"
    assert (row["Stream ID"], row["Task ID"], row["OP State"]) == ("0", "0", "dynamic")


def test_shapes_alone_are_profiled_alike(tmp_path: Path) -> None:
    tables = []
    for values in (True, False):
        npusim.torch.install(device="ascend910b2", values=values)
        x = torch.empty(64, 64, device="npu", dtype=torch.float16)
        folder = tmp_path / str(values)
        with profiler.profile(on_trace_ready=profiler.tensorboard_trace_handler(str(folder))):
            torch.softmax(x @ x, -1)
        found = rows(results(folder), "kernel_details.csv")
        tables.append([{**row, "Start Time(us)": ""} for row in found])
    assert tables[0] == tables[1]
    assert [row["Type"] for row in tables[0]] == ["MatMulV3", "SoftmaxV2"]


# ---- the timeline ----


def timeline(prof: Any, tmp_path: Path) -> list[dict[str, Any]]:
    prof.export_chrome_trace(str(tmp_path / "trace.json"))
    found: list[dict[str, Any]] = json.loads((tmp_path / "trace.json").read_text())
    return found


def test_arrows_lead_from_operations_to_their_kernels(tmp_path: Path) -> None:
    x = torch.rand(16, 64).half().npu()
    clock.now_us = 0.0
    with profiler.profile() as prof:
        x.view(64, 16)
        torch.softmax(x.t().contiguous(), -1)
        x.lgamma()
        x.float()
    events = timeline(prof, tmp_path)
    names = {(e["pid"], e["ts"]): e["name"] for e in events if e["ph"] == "X" and e["pid"] < 3}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    starts = [e for e in events if e["ph"] == "s"]
    assert [
        (names[start["pid"], start["ts"]], names[end["pid"], end["ts"]])
        for start, end in ((start, ends[start["id"]]) for start in starts)
    ] == [
        ("aten::clone", "aclnnInplaceCopy_TransposeAiCore_Transpose"),
        ("aten::_softmax", "aclnnSoftmax_SoftmaxV2AiCore_SoftmaxV2"),
        ("aten::_to_copy", "aclnnCast_CastAiCore_Cast"),
    ]
    assert all(start["ts"] <= ends[start["id"]]["ts"] for start in starts)
    begun = [e["ts"] for e in events if e.get("cat") == "cpu_op"]
    assert len(set(begun)) == len(begun)
    assert min(begun) == 0.0


def test_rows_of_the_timeline_are_nested(tmp_path: Path, inputs: Any) -> None:
    with profiler.profile() as prof:
        for _ in range(3):
            work(*inputs)
            torch.add(inputs[0], inputs[0], alpha=0.5)
            prof.step()
    open_until: dict[tuple[int, int], list[float]] = {}
    slices = [event for event in timeline(prof, tmp_path) if event["ph"] == "X"]
    assert [e["name"] for e in slices if "Step" in e["name"]] == [
        "ProfilerStep#0",
        "ProfilerStep#1",
        "ProfilerStep#2",
        "ProfilerStep#3",
    ][: len(prof.steps)]
    for event in sorted(slices, key=lambda e: (e["ts"], -e["dur"])):
        ends = open_until.setdefault((event["pid"], event["tid"]), [])
        end = event["ts"] + event["dur"]
        while ends and ends[-1] <= event["ts"] - 5e-4:
            ends.pop()
        assert not ends or end <= ends[-1] + 5e-4 or ends[-1] <= event["ts"] + 5e-4
        ends.append(end)
    computing = [event["dur"] for event in slices if event["name"] == "Computing"]
    assert sum(computing) == pytest.approx(prof.steps[-1].end_us - prof.steps[0].start_us, abs=0.01)
    assert not [event for event in slices if event["name"] == "Free"]


# ---- the vendor's own tools ----


@pytest.mark.nightly
@pytest.mark.skipif(
    shutil.which("msprof-analyze") is None, reason="msprof-analyze is not installed"
)
@pytest.mark.parametrize(
    "command", [("compare", "-bp"), ("advisor", "all")], ids=lambda command: command[0]
)
def test_the_vendor_s_analysis_reads_the_folder(tmp_path: Path, command: tuple[str, str]) -> None:
    config = profiler._ExperimentalConfig(profiler_level=profiler.ProfilerLevel.Level1)
    handler = profiler.tensorboard_trace_handler(str(tmp_path / "result"))
    x = torch.rand(64, 64).half().npu()
    with profiler.profile(
        on_trace_ready=handler, record_shapes=True, with_stack=True, experimental_config=config
    ):
        torch.softmax(x @ x, -1)
    (folder,) = (tmp_path / "result").iterdir()
    asked = ["compare", "-bp", str(folder)] if command[0] == "compare" else list(command)
    done = subprocess.run(
        ["msprof-analyze", *asked, "-d", str(folder), "-o", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        env={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
    )
    told = done.stdout + done.stderr
    assert "[ERROR]" not in told
    assert "Failed to" not in told
    if command[0] == "compare":
        assert re.search(r"NPU \|\s+0.000s\(1\)\s+\|\s+0.000s\(1\)", told)
        assert list((tmp_path / "out").glob("performance_comparison_result_*.xlsx"))
    else:
        assert list((tmp_path / "out").glob("mstt_advisor_*.html"))


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


@pytest.mark.parametrize("level", [profiler.ProfilerLevel.Level0, profiler.ProfilerLevel.Level1])
def test_its_folder_reads_back_with_ratio_1(level: object, tmp_path: Path) -> None:
    config = profiler._ExperimentalConfig(profiler_level=level)
    handler = profiler.tensorboard_trace_handler(str(tmp_path))
    x, weight = torch.ones(64, 256).half().npu(), torch.ones(512, 256).half().npu()
    with profiler.profile(experimental_config=config, on_trace_ready=handler):
        y = torch_npu.npu_swiglu(torch.nn.functional.linear(x, weight))
        y, _ = torch_npu.npu_rms_norm(y, torch.ones(256).half().npu())
        torch.softmax((y + 1).float(), -1).sum(0)

    found = npusim.profile.read(tmp_path).compare("ascend910b2", jobs=1)
    types = [each.kernel.type for each in found.kernels]
    assert types[:3] == ["MatMulV2", "SwiGlu", "RmsNorm"]
    assert types[-4:] == ["Add", "Cast", "SoftmaxV2", "ReduceSum"]
    assert [each.ratio for each in found.kernels] == [1.0] * len(types)
