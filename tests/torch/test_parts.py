"""Parts of torch_npu that scripts reach by their full names: graphs, memory, options, profiles."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from simulated_card import torch, torch_npu

from npusim.torch.clock import clock


def exactly(message: str) -> str:
    return f"^{re.escape(message)}$"


# ---- graphs ----


def test_a_graph_runs_again_on_what_lies_in_its_memory() -> None:
    x = torch.ones(64, device="npu", dtype=torch.float16)
    before, launches = clock.now_us, clock.launches
    captured = torch.npu.NPUGraph()
    with torch.npu.graph(captured):
        assert torch.npu.is_current_stream_capturing()
        twice = x * 2
        y = torch.relu(twice - 5).view(8, 8)[1:].t()
    assert (clock.now_us, clock.launches) == (before, launches)
    assert not torch.npu.is_current_stream_capturing()
    x.fill_(4)
    now_us = clock.now_us
    captured.replay()
    assert y.tolist() == [[3.0] * 7] * 8
    assert twice[0].item() == 8
    # Three kernels, of which the first alone pays for a launch.
    eager = clock.now_us
    assert eager > now_us
    assert clock.launches == launches + 2
    _ = torch.relu(x * 2 - 5)
    assert clock.now_us - eager > eager - now_us


def test_a_graph_of_a_call() -> None:
    x = torch.arange(4.0, device="npu")
    call = torch.npu.make_graphed_callables(lambda a: a * 3, (x,))
    assert call(x + 1).tolist() == [3, 6, 9, 12]


def test_graphs_say_what_is_wrong() -> None:
    empty = torch.npu.NPUGraph()
    message = (
        "torch.npu.NPUGraph: a graph must be captured before replay(), but is not; use "
        "with torch.npu.graph(g)"
    )
    with pytest.raises(RuntimeError, match=exactly(message)):
        empty.replay()
    with pytest.raises(RuntimeError, match=r"^torch.npu.NPUGraph: a capture must have begun "):
        empty.capture_end()
    x = torch.ones(4, device="npu")
    message = (
        "torch.npu.graph: what is captured must not need a value on the host, but "
        ".item(), .cpu() or a condition asks for one; take it out of the graph"
    )
    with pytest.raises(RuntimeError, match=exactly(message)), torch.npu.graph(empty):
        x.sum().item()
    with (
        torch.npu.graph(empty),
        pytest.raises(RuntimeError, match=r"^torch.npu.NPUGraph: one graph must be captured at "),
    ):
        torch.npu.NPUGraph().capture_begin()


def test_a_group_of_a_graph_may_change_between_replays() -> None:
    x = torch.ones(4, device="npu")
    y, z = torch.empty_like(x), torch.empty_like(x)
    captured, stream = torch.npu.NPUGraph(), torch.npu.current_stream()
    with torch.npu.graph(captured):
        event = torch.npu.ExternalEvent()
        event.wait(stream)
        event.reset(stream)
        torch.npu.graph_task_group_begin(stream)
        torch.mul(x, 2, out=y)
        handle = torch.npu.graph_task_group_end(stream)
        torch.add(y, 1, out=z)
    assert isinstance(handle, torch_npu._C._NPUTaskGroupHandle)
    captured.replay()
    assert z.tolist() == [3] * 4
    before = clock.now_us
    torch.npu.graph_task_update_begin(stream, handle)
    torch.mul(x, 5, out=y)
    torch.npu.graph_task_update_end(stream)
    event.record(stream)
    assert clock.now_us == before
    captured.replay()
    assert z.tolist() == [6] * 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: torch.npu.graph_task_group_begin(None),
            "torch.npu.graph_task_group_begin: it must be called in a capture and outside of other "
            "groups, but none is under way; call it within torch.npu.graph, after the end of the "
            "last group",
        ),
        (
            lambda: torch.npu.graph_task_group_end(None),
            "torch.npu.graph_task_group_end: a group must have begun in the capture, but none has; "
            "call graph_task_group_begin() first",
        ),
        (
            lambda: torch.npu.graph_task_update_end(None),
            "torch.npu.graph_task_update_end: an update must have begun before it ends, but none "
            "has; call graph_task_update_begin() first",
        ),
    ],
)
def test_groups_say_what_is_wrong(call: Any, message: str) -> None:
    with pytest.raises(RuntimeError, match=exactly(message)):
        call()


def test_a_model_is_compiled_by_the_name_of_a_backend() -> None:
    x = torch.arange(4.0, device="npu")
    launches = clock.launches
    assert torch.compile(lambda a: (a * 2).relu(), backend="npugraph_ex")(x).tolist() == [
        0,
        2,
        4,
        6,
    ]
    assert clock.launches == launches + 1
    assert torch.npu.npugraph_ex.compile_fx is not None


# ---- memory, options, types, profiles ----


def test_memory_is_listed_by_segments() -> None:
    x = torch.empty(1000, device="npu")
    with torch.npu.memory.use_mem_pool(torch.npu.memory.MemPool()):
        y = torch.empty(5000, device="npu")
    found = {each["address"]: each["total_size"] for each in torch.npu.memory.memory_snapshot()}
    assert found[x.data_ptr()] == 4096
    assert found[y.data_ptr()] == 20480
    assert sum(found.values()) == torch.npu.memory_allocated()


def test_options_are_read_back() -> None:
    assert torch_npu._C._npu_getOption("ALLOW_NOTHING") is None
    torch.npu.set_option({"ALLOW_CONV_HF32": "enable"})
    assert torch_npu._C._npu_getOption("ALLOW_CONV_HF32") == b"enable"
    for allowed, option in ((False, b"disable"), (True, b"enable")):
        torch.npu.config.allow_internal_format = allowed
        assert torch.npu.config.allow_internal_format is allowed
        assert torch_npu._C._npu_getOption("ALLOW_INTERNAL_FORMAT") == option


def test_the_card_has_its_number_and_its_module_lists_its_names() -> None:
    assert torch.npu.get_soc_version() == 221
    assert torch.version.cann == "not known"
    assert {"Stream", "graph_task_group_begin", "npugraph_ex", "get_device_name"} <= set(
        dir(torch.npu)
    )


def test_types_are_numbered_as_acl_numbers_them() -> None:
    found = [torch_npu.float32, torch_npu.int8, torch_npu.bfloat16, torch_npu.int4]
    assert found == [256, 258, 283, 285]
    assert torch_npu.hifloat8 == 290
    assert torch_npu.float4_e1m2fn_x2 == 297


def test_a_file_starts_a_profile(tmp_path: Path) -> None:
    from torch_npu.profiler import dynamic_profile

    dynamic_profile.init(str(tmp_path))
    dynamic_profile.set_state({"cur_step": 0})
    dynamic_profile.step()
    options = {"start_step": 3, "active": 2, "prof_dir": str(tmp_path / "found")}
    (tmp_path / "profiler_config.json").write_text(json.dumps(options))
    for step in range(2, 7):
        dynamic_profile.step()
        torch.ones(64, device="npu").mul_(step)
    (kernels,) = (tmp_path / "found").rglob("kernel_details.csv")
    assert "Mul" in kernels.read_text(encoding="utf-8")
    nowhere = str(tmp_path / "no")
    message = f"torch_npu.profiler.dynamic_profile: path must be a folder, not '{nowhere}'; make it"
    with pytest.raises(RuntimeError, match=exactly(message)):
        dynamic_profile.init(nowhere)
