"""Every name that torch_npu has is there; what is not simulated refuses when it is called."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from simulated_card import torch, torch_npu, torchair

from npusim import OpError, ops
from npusim.published import names, schemas
from npusim.torch import composed
from npusim.torch.clock import clock
from npusim.torch.distributed.declared import FUSED
from npusim.torch.format_casts import FUNCTIONS
from npusim.torch.refusals import OF_LATER_CHIPS

PACKETS = sorted({re.match(r"\w+", schema)[0] for schema in schemas()})  # type: ignore[index]
OWN = [
    *(each for op in ops.names() for each in ops.load(op).torch),
    *FUSED.values(),
    *composed.declared().values(),
]
SIMULATED = {function.name for function in OWN}


def exactly(message: str) -> str:
    return f"^{re.escape(message)}$"


ELDER = {"npu_format_cast", "npu_format_cast_", "_npu_reshape_and_cache"}
"""Functions with the schemas of older versions, which say more; the last one is vllm-ascend's."""


def _arguments(schema: Any) -> list[tuple[str, Any, bool]]:
    """Name, default, and whether it goes by name alone; today's `input` was `self` before."""
    return [
        ("self" if each.name == "input" else each.name, each.default_value, each.kwarg_only)
        for each in schema.arguments
    ]


def test_our_operators_take_what_theirs_take() -> None:
    parsed = [torch._C.parse_schema(f"npu::{schema}") for schema in schemas()]
    theirs = {(each.name, each.overload_name): each for each in parsed}
    for function in OWN:
        own = torch._C.parse_schema(f"npu::{function.schema}")
        if function.name not in ELDER:
            assert _arguments(own) == _arguments(theirs[own.name, own.overload_name])


@pytest.mark.sample(20)
@pytest.mark.parametrize("module", sorted(names()))
def test_a_module_has_all_its_names(module: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in names()[module] if not hasattr(found, name)] == []


def test_every_operator_is_there_by_both_names() -> None:
    assert [name for name in PACKETS if not callable(getattr(torch_npu, name))] == []
    assert [name for name in PACKETS if not hasattr(torch.ops.npu, name)] == []
    assert set(PACKETS) <= set(dir(torch_npu))


def test_an_operator_that_is_not_simulated_refuses_when_called() -> None:
    known = {*SIMULATED, *FUNCTIONS, *OF_LATER_CHIPS, "get_npu_format"}
    others = [name for name in PACKETS if name not in known]
    assert len(others) > 200
    for name in others:
        with pytest.raises(
            NotImplementedError, match=f"^torch_npu.{name}: it must be simulated to be called, "
        ):
            getattr(torch_npu, name)(1, two=2)


@pytest.mark.parametrize("name", sorted(OF_LATER_CHIPS))
def test_what_only_later_chips_have_is_refused_as_on_a_card(name: str) -> None:
    words = name.strip("_").split("_")[1:]
    acl = "aclnn" + "".join(map(str.capitalize, words))
    message = (
        f"{name}: NPU function error: call {acl} failed, error code is 561000\n{name}: the chip "
        f"must be an Ascend 950, which has float8 and float4, not ascend910b2 of Atlas A2; use "
        f"{OF_LATER_CHIPS[name]} [561000]"
    )
    with pytest.raises(OpError, match=exactly(message)):
        getattr(torch_npu, name)(torch.ones(2, 64).npu())
    if name == "npu_dynamic_mx_quant":
        with pytest.raises(OpError, match=exactly(message)):
            torch.ops.npu.npu_dynamic_mx_quant(torch.ones(2, 64).npu())


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        (
            "npu_fused_floyd_attention",
            "it would need its own kernel: write it with torch's own operations",
        ),
        (
            "_npu_flash_attention_v3",
            "use npu_fused_infer_attention_score on Atlas A2 or A3, with the lengths of the "
            "sequences",
        ),
        ("npu_conv2d", "use torch.nn.functional.conv2d"),
        (
            "npu_moe_distribute_combine_add_rms_norm",
            "it speaks to other cards: write it with torch.distributed, with backend hccl",
        ),
        ("matmul_checksum", "do without it"),
    ],
)
def test_a_refusal_says_what_to_use(name: str, advice: str) -> None:
    message = f"torch_npu.{name}: it must be simulated to be called, but is not; {advice}"
    with pytest.raises(NotImplementedError, match=exactly(message)):
        getattr(torch_npu, name)()


def test_the_dispatcher_refuses_as_well() -> None:
    x = torch.ones(2, 2, device="npu")
    with pytest.raises(NotImplementedError, match=r"^torch_npu.npu_nms_v4: "):
        torch.ops.npu.npu_nms_v4(x, x, 1, x, x)


def test_a_class_can_be_inherited_from_but_not_made() -> None:
    optim = importlib.import_module("torch_npu.optim")

    class Mine(optim.NpuFusedAdamW):  # type: ignore[misc, name-defined]
        pass

    message = (
        "torch_npu.optim.NpuFusedAdamW: it must be simulated to be called, but is not; "
        "do without it"
    )
    with pytest.raises(NotImplementedError, match=exactly(message)):
        Mine([])


@pytest.mark.parametrize(
    ("module", "name", "advice"),
    [
        ("torch_npu", "npu_quantzie", "did you mean npu_quantize?"),
        ("torch_npu.npu", "mem_pool", "leave it out"),
    ],
)
def test_a_name_that_torch_npu_lacks_is_an_error(module: str, name: str, advice: str) -> None:
    message = (
        f"module {module!r} has no attribute {name!r}\nnpusim.torch: {module}.{name} must be a "
        f"name of torch_npu 2.14 or older, but is none; {advice}"
    )
    with pytest.raises(AttributeError, match=exactly(message)):
        getattr(importlib.import_module(module), name)


def test_torchair_has_two_names() -> None:
    second = importlib.import_module("torch_npu.dynamo.torchair")
    assert second is torchair
    inference = importlib.import_module("torch_npu.dynamo.torchair.inference")
    assert inference is torchair.inference
    assert torch_npu.dynamo.torchair is torchair


# ---- what scripts touch besides operators ----


def test_pinned_memory_is_marked() -> None:
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert torch.ones(3).new_zeros(2, pin_memory=True).is_pinned()
    plain = torch.ones(3)
    pinned = plain.pin_memory()
    assert (pinned.is_pinned(), plain.is_pinned()) == (True, False)
    assert pinned.pin_memory() is pinned
    assert pinned[1:].is_pinned()
    with pytest.raises(RuntimeError, match=r"^cannot pin 'torch.npu.torch.float32' only dense "):
        torch.ones(3, device="npu", pin_memory=True)


def test_the_mark_ends_with_the_memory() -> None:
    for _ in range(100):
        torch.empty(3, pin_memory=True)
    assert not any(torch.empty(3).is_pinned() for _ in range(100))


def test_torchs_own_events_and_streams_are_the_cards() -> None:
    start, end = torch.Event("npu", enable_timing=True), torch.Event(enable_timing=True)
    x = torch.ones(64, device="npu", dtype=torch.float16)
    start.record()
    _ = x * x
    end.record()
    assert start.elapsed_time(end) > 0
    assert isinstance(start, torch.Event)
    x.record_stream(torch.npu.Stream())
    assert isinstance(torch.Stream("npu"), torch.npu.Stream)


def test_memory_is_counted_by_every_name() -> None:
    x = torch.ones(4096, device="npu")
    allocated = torch.npu.memory_allocated()
    assert torch.accelerator.memory_allocated() == allocated
    stats = torch.npu.memory_stats()
    assert stats["allocated_bytes.all.current"] == allocated
    nested = torch.npu.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["all"]["current"] == allocated
    taken = stats["allocated_bytes.all.allocated"]
    del x
    after = torch.npu.memory_stats()
    assert after["allocated_bytes.all.freed"] >= 16384
    assert after["allocated_bytes.all.allocated"] == taken
    assert f"{torch.npu.memory_allocated()} bytes allocated" in torch.npu.memory_summary()


def test_a_share_of_the_memory_is_a_limit() -> None:
    torch.npu.set_per_process_memory_fraction(0.0)
    try:
        with pytest.raises(torch.OutOfMemoryError, match=r"^NPU out of memory\. "):
            torch.empty(1 << 30, device="npu")
    finally:
        torch.npu.set_per_process_memory_fraction(1.0)
    message = (
        "torch.npu.set_per_process_memory_fraction: fraction must be 0 to 1, not 2; "
        "pass a share of the card's memory"
    )
    with pytest.raises(ValueError, match=exactly(message)):
        torch.npu.set_per_process_memory_fraction(2)


def test_older_names_of_types() -> None:
    x = torch.npu.HalfTensor([1, 2])
    assert (x.dtype, x.is_npu, x.tolist()) == (torch.float16, True, [1, 2])
    assert torch.npu.FloatTensor(2, 3).shape == (2, 3)
    assert isinstance(x, torch.npu.HalfTensor)
    assert not isinstance(x, torch.npu.FloatTensor)
    assert not isinstance(x.cpu(), torch.npu.HalfTensor)


@pytest.mark.parametrize(
    ("setter", "getter", "value"),
    [
        ("set_sync_debug_mode", "get_sync_debug_mode", 1),
        ("set_mm_bmm_format_nd", "get_mm_bmm_format_nd", False),
        ("set_task_queue_enable", "get_task_queue_enable", False),
        ("use_compatible_impl", "are_compatible_impl_enabled", True),
        ("set_autocast_dtype", "get_autocast_dtype", torch.bfloat16),
    ],
)
def test_settings_stay(setter: str, getter: str, value: Any) -> None:
    before = getattr(torch.npu, getter)()
    getattr(torch.npu, setter)(value)
    assert getattr(torch.npu, getter)() == value
    getattr(torch.npu, setter)(before)


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


# ---- torchair ----


def test_wishes_for_a_part_of_a_graph_change_nothing() -> None:
    x = torch.ones(4, device="npu")
    with torchair.scope.npu_stream_switch("a"), torchair.scope.super_kernel("b"):
        assert torchair.scope.npu_wait_tensor(x, x) is x
    with pytest.raises(ValueError, match=r"^torchair.scope.deterministic: level must be 0, 1, 2 "):
        torchair.scope.deterministic(4)
    with pytest.raises(NotImplementedError, match=r"^torchair.scope.limit_core_num: "):
        torchair.scope.limit_core_num(4, 8)


def test_gears_are_sizes_of_a_dimension() -> None:
    x = torch.ones(4, 8, device="npu")
    torchair.inference.set_dim_gears(x, {0: [2, 4]})
    message = (
        "torchair.inference.set_dim_gears: a dimension must be 0 to 1, not 2; "
        "name one of the tensor's"
    )
    with pytest.raises(ValueError, match=exactly(message)):
        torchair.inference.set_dim_gears(x, {2: [2, 4]})
    message = (
        "torchair.inference.set_dim_gears: the sizes of dimension 0 must be a list of "
        "2 to 100 whole numbers but 0, not [4]; list them"
    )
    with pytest.raises(ValueError, match=exactly(message)):
        torchair.inference.set_dim_gears(x, {0: [4]})


def test_a_method_compiled_once() -> None:
    layer = torch.nn.Linear(4, 4).npu()
    x = torch.ones(2, 4, device="npu")
    compiled = torchair.inference.cache_compile(layer.forward, config=torchair.CompilerConfig())
    assert torch.equal(compiled(x), layer(x))


@pytest.mark.parametrize("name", ["hifloat8", "float8_e8m0fnu", "float4_e2m1fn_x2"])
def test_a_type_of_later_chips_is_there_and_refused_by_name(name: str) -> None:
    assert name in dir(torch_npu)
    x = torch.ones(2, 64, device="npu", dtype=torch.float16)
    message = f"dst_type must be int8 or quint4x2 on Atlas A2, not '{name}'; "
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_dynamic_quant(x, dst_type=getattr(torch_npu, name))


# ---- parts by their full names ----


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
