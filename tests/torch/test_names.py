"""Every name that torch_npu has is there; what is not simulated refuses when it is called."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
from simulated_card import torch, torch_npu, torchair

from npusim import OpError, ops
from npusim.published import names, schemas
from npusim.torch import composed, functions, hosted
from npusim.torch.distributed.declared import FUSED
from npusim.torch.format_casts import FUNCTIONS
from npusim.torch.refusals import OF_LATER_CHIPS

PACKETS = sorted({re.match(r"\w+", schema)[0] for schema in schemas()})  # type: ignore[index]
OWN = [
    *(each for op in ops.names() for each in ops.load(op).torch),
    *FUSED.values(),
    *composed.declared().values(),
    *hosted.declared().values(),
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


def test_what_is_there_under_torch_alone_is_known_without_it(pytestconfig: pytest.Config) -> None:
    """With --update-golden, the list that messages outside of PyTorch go by is written anew."""
    public = {name for name in functions.FUNCTIONS if not name.startswith("_")} - {*ops.names()}
    if pytestconfig.getoption("--update-golden"):
        path = Path(ops.__path__[0]) / "under_torch.txt"
        path.write_text("\n".join(sorted(public)) + "\n", encoding="utf-8")
        ops.under_torch.cache_clear()
    assert ops.under_torch() == public, "pytest --update-golden renews npusim/ops/under_torch.txt"


def test_an_operator_that_is_not_simulated_refuses_when_called() -> None:
    known = {*SIMULATED, *FUNCTIONS, *composed.OF_ATB, *OF_LATER_CHIPS, "get_npu_format"}
    others = [name for name in PACKETS if name not in known]
    assert len(others) > 150
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
            "_npu_paged_attention_splitfuse_v2",
            "use npu_fused_infer_attention_score on Atlas A2 or A3, with block_table and a mask",
        ),
        (
            "npu_quant_grouped_matmul_dequant",
            "use npu_quantize and npu_quant_matmul for each group; on a card it is for Atlas "
            "inference alone",
        ),
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
    with pytest.raises(NotImplementedError, match=r"^torch_npu.npu_sub_sample: "):
        torch.ops.npu.npu_sub_sample(x, 1, 0.5)


def test_a_class_can_be_inherited_from_but_not_made() -> None:
    optim = importlib.import_module("torch_npu.optim")

    class Mine(optim.NpuFusedLamb):  # type: ignore[misc, name-defined]
        pass

    message = (
        "torch_npu.optim.NpuFusedLamb: it must be simulated to be called, but is not; do without it"
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


def test_a_class_like_a_tensor_sees_the_function_that_it_was_called_by() -> None:
    class Pair(list[Any]):
        @classmethod
        def __torch_function__(cls, func: Any, _: Any, args: Any, kwargs: Any = None) -> Any:
            assert func is torch.empty_like
            return cls(torch.empty_like(each, **(kwargs or {})) for each in args[0])

    made = torch.empty_like(Pair([torch.ones(2), torch.ones(3)]))
    assert [each.shape for each in made] == [(2,), (3,)]


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
