"""Operators through torch: bits, formats and time of npusim.run, and the errors of a card."""

from __future__ import annotations

import copy
import gc
import re
from functools import partial
from typing import Any

import calls
import numpy as np
import pytest
from simulated_card import torch, torch_npu

import npusim
import npusim.torch
from npusim.torch.clock import clock

A2, INFERENCE = "ascend910b2", "ascend310p3"
NZ = 29


def integers(*shape: int, low: int = -8, high: int = 8, dtype: Any = torch.int8) -> Any:
    return torch.randint(low, high, shape, dtype=dtype)


def half(*shape: int) -> Any:
    return torch.randn(shape).half()


def array(tensor: Any) -> Any:
    """A CPU tensor as npusim takes it."""
    if isinstance(tensor, list):
        return [array(part) for part in tensor]
    if not isinstance(tensor, torch.Tensor):
        return tensor
    if tensor.dtype == torch.bfloat16:
        bits = tensor.view(torch.int16).numpy()
        return bits.view(npusim.TensorSpec((), "bfloat16").element.numpy)
    return tensor.view(torch.uint8).numpy() if tensor.dtype == torch.bool else tensor.numpy()


def on_npu(value: Any) -> Any:
    if isinstance(value, list):
        return [on_npu(part) for part in value]
    if isinstance(value, npusim.Tensor):
        return torch_npu.npu_format_cast(torch.from_numpy(value.numpy()).npu(), NZ)
    return value.npu() if isinstance(value, torch.Tensor) else value


CALLS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "multiplied": (
        "npu_quantize",
        {
            "input": torch.randn(2, 5, 16).bfloat16(),
            "scales": torch.rand(5).bfloat16(),
            "zero_points": torch.rand(5).bfloat16(),
            "axis": -2,
            "div_mode": False,
        },
        {"dtype": "quint4x2"},
    ),
    "a view with gaps": (
        "npu_quantize",
        {"input": half(6, 80)[::2, ::5], "scales": torch.rand(1), "zero_points": None},
        {"dtype": "qint8"},
    ),
    "attention, second version": (
        "npu_fused_infer_attention_score_v2",
        {
            "query": half(5, 2, 32),
            "key": half(5, 2, 32),
            "value": half(5, 2, 32),
            "atten_mask": torch.triu(torch.ones(2048, 2048), 1).bool(),
            "actual_seq_qlen": [2, 5],
            "actual_seq_kvlen": [2, 5],
            "num_query_heads": 2,
            "softmax_scale": 0.125,
            "input_layout": "TND",
            "sparse_mode": 3,
            "return_softmax_lse": True,
        },
        {},
    ),
    "attention, heads first": (
        "npu_fused_infer_attention_score",
        {
            "query": half(2, 4, 5, 64),
            "key": half(2, 2, 9, 64),
            "value": half(2, 2, 9, 64),
            "atten_mask": torch.rand(2, 1, 5, 9) < 0.3,
            "actual_seq_lengths_kv": [9, 7],
            "num_heads": 4,
            "num_key_value_heads": 2,
            "scale": 0.125,
            "input_layout": "BNSD_BSND",
            "inner_precise": 2,
            "softmax_lse_flag": True,
        },
        {},
    ),
    "norm, quantised by rows": (
        "npu_add_rms_norm_dynamic_quant",
        {
            "x1": half(5, 32),
            "x2": half(5, 32),
            "gamma": half(32),
            "smooth_scale1": half(32),
            "output_mask": [True, False],
        },
        {"y_dtype": "quint4x2"},
    ),
    "rows by expert": (
        "npu_moe_init_routing_v2",
        {
            "x": half(5, 48),
            "expert_idx": integers(5, 2, low=0, high=8, dtype=torch.int32),
            "scale": torch.rand(3, 48),
            "expert_num": 8,
            "expert_tokens_num_type": 1,
            "expert_tokens_num_flag": True,
            "quant_mode": 1,
            "active_expert_range": [2, 5],
        },
        {},
    ),
    "groups along k": (
        "npu_grouped_matmul",
        {
            "x": [half(64, 20).T],
            "weight": [half(64, 48)],
            "group_list": torch.tensor([32, 64]),
            "group_type": 2,
            "split_item": 3,
        },
        {},
    ),
    "a weight for each": (
        "npu_grouped_matmul",
        {
            "x": [half(2, 5, 32), half(1, 3, 64)],
            "weight": [half(32, 16), half(64, 24)],
            "group_type": -1,
            "split_item": 0,
        },
        {},
    ),
    "groups of integers": (
        "npu_grouped_matmul",
        {
            "x": [half(20, 32)],
            "weight": [half(32, 16), half(32, 16)],
            "group_list": [5, 20],
            "split_item": 0,
        },
        {},
    ),
    "products of groups of int4": (
        "npu_quant_matmul",
        {
            "x1": integers(3, 128, dtype=torch.int32),
            "x2": integers(256, 128, dtype=torch.int32).t(),
            "scale": torch.rand(4, 256),
            "offset": half(4, 256),
            "pertoken_scale": torch.rand(3, 1),
            "group_sizes": [0, 0, 256],
        },
        {"output_dtype": "bfloat16"},
    ),
    "heads in two parts": (
        "npu_transpose_batchmatmul",
        {"input": half(4, 3, 32), "weight": half(4, 48, 32), "perm_x2": [0, 2, 1]}
        | {"batch_split_factor": 2},
        {},
    ),
}  # fmt: skip
"""What it is -> operator, tensors and attributes, and dtypes by npusim's names."""
WITHOUT_ONE = {"npu_format_cast", "npu_reshape_and_cache", "npu_scatter_pa_kv_cache"}
"""These give a format or write in place: they have tests of their own."""


OWN_NAMES = {
    ("npu_dynamic_quant_asymmetric", "input"): "x",
    ("npu_dynamic_quant", "input"): "x",
    ("npu_rms_norm", "self"): "x",
    ("npu_rms_norm_backward", "self"): "x",
    ("npu_gelu", "self"): "x",
    ("npu_gelu_backward", "self"): "x",
    ("npu_fast_gelu", "self"): "x",
    ("npu_fast_gelu_backward", "self"): "x",
    ("npu_fast_gelu_backward", "grad"): "grad_output",
    ("npu_swiglu_backward", "self"): "x",
    ("npu_swiglu", "self"): "x",
}
"""Operator and parameter of torch_npu -> npusim's name of it."""


def as_torch(value: Any) -> Any:
    """An array as a tensor of the CPU, whose floats are not all the same."""
    if not isinstance(value, np.ndarray):
        return value
    tensor = torch.from_numpy(value.copy())
    if tensor.is_floating_point():
        return tensor * torch.randint(1, 4, tensor.shape)
    return tensor.bool() if tensor.dtype == torch.uint8 else tensor


def torch_call(op: str, given: dict[str, Any]) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """A call that arrays are passed to, with the names and the lists of torch_npu."""
    dtypes = {name: value for name, value in given.items() if is_dtype(value)}
    schema = getattr(torch.ops.npu, op).default._schema
    lists = {each.name for each in schema.arguments if "List[Tensor]" in str(each.type)}
    theirs = {own: name for (of, name), own in OWN_NAMES.items() if of == op}
    # What is one array in the call stays one tensor, as latent keys that are the values, too.
    tensors = {id(value): as_torch(value) for value in given.values()}
    named = {name: tensors[id(value)] for name, value in given.items() if name not in dtypes}
    named = {name: [value] if name in lists else value for name, value in named.items()}
    return op, {theirs.get(name, name): value for name, value in named.items()}, dtypes


def is_dtype(value: Any) -> bool:
    return isinstance(value, str) and isinstance(getattr(torch, value, None), torch.dtype)


OF_KERNELS_ONLY = "attention, backward of dropout", "attention, second version, backward"
"""Calls with an argument that torch_npu's function makes itself: the mask of seed and offset."""
CALLS |= {
    f"arrays: {call}": torch_call(op, given)
    for call, (op, given) in calls.CALLS.items()
    if op.startswith("npu_") and op not in WITHOUT_ONE and call not in OF_KERNELS_ONLY
}


def torch_dtype(name: str) -> Any:
    return getattr(torch, name)


def plain_run(op: str, given: dict[str, Any], dtypes: dict[str, str]) -> npusim.Run:
    named = {name: array(value) for name, value in given.items()} | dtypes
    named = {OWN_NAMES.get((op, name), name): value for name, value in named.items()}
    return npusim.run(op, device=A2, **named)


@pytest.mark.sample(28)
@pytest.mark.parametrize("call", CALLS)
def test_bits_and_time_are_those_of_run(call: str) -> None:
    op, given, dtypes = CALLS[call]
    has_run_as(op, given, dtypes)
    # The second call finds what the first one prepared.
    has_run_as(op, {name: negative(value) for name, value in given.items()}, dtypes)


def negative(value: Any) -> Any:
    """The same tensor in memory with negative numbers, if they are floats."""
    if isinstance(value, list):
        return [negative(part) for part in value]
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    return copy.deepcopy(value).neg_()


def has_run_as(op: str, given: dict[str, Any], dtypes: dict[str, str]) -> None:
    """A call through torch has the bits and the time of a run."""
    run = plain_run(op, given, dtypes)
    theirs = {name: torch_dtype(value) for name, value in dtypes.items()}
    theirs |= {name: on_npu(value) for name, value in given.items()}
    before, kernels = clock.now_us, clock.kernels
    found = getattr(torch_npu, op)(**theirs)
    assert run.time_us is not None
    assert clock.now_us - before == pytest.approx(run.time_us)
    assert clock.kernels - kernels == len(run.launches)
    outputs = found if isinstance(found, tuple | list) else (found,)
    # Behind them there may be what no kernel computes.
    for output, wanted in zip(outputs[: len(run.outputs)], run.outputs.values(), strict=True):
        assert (output.device.type, output.is_contiguous()) == ("npu", True)
        came = array(output.cpu())
        assert came.dtype == np.asarray(wanted).dtype
        np.testing.assert_array_equal(came, wanted)


@pytest.mark.parametrize("call", CALLS)
def test_the_fake_tells_the_shape_and_dtype(call: str) -> None:
    op, given, dtypes = CALLS[call]
    theirs = {name: torch_dtype(value) for name, value in dtypes.items()}
    whole = {name: on_npu(value) for name, value in given.items()} | theirs
    real = getattr(torch_npu, op)(**whole)
    with torch._subclasses.FakeTensorMode() as mode:

        def fake_of(value: Any) -> Any:
            if isinstance(value, list):
                return [fake_of(part) for part in value]
            return mode.from_tensor(value) if isinstance(value, torch.Tensor) else value

        faked = {name: fake_of(value) for name, value in whole.items()}
        fake = getattr(torch_npu, op)(**faked)
    assert isinstance(fake, type(real))
    pairs = zip(*((x if isinstance(x, tuple | list) else (x,)) for x in (real, fake)), strict=True)
    for wanted, told in pairs:
        if not isinstance(wanted, torch.Tensor):
            assert told == wanted
            continue
        assert (told.shape, told.dtype) == (wanted.shape, wanted.dtype)
        assert (told.device, told.stride()) == (wanted.device, wanted.stride())


@pytest.mark.parametrize("dtype", [torch.qint8, torch.int8, 12, 1])
def test_dtypes_may_be_torch_s_or_ints(dtype: Any) -> None:
    x, scale = half(3, 16).npu(), torch.rand(1).npu()
    wanted = torch_npu.npu_quantize(x, scale, None, torch.qint8)
    assert torch.equal(torch.ops.npu.npu_quantize(x, scale, None, dtype), wanted)
    assert torch.equal(torch_npu.npu_quantize(x, scale, None, dtype=dtype), wanted)
    groups = (half(1, 16).npu(), torch.tensor([3]).npu())
    assert torch_npu.npu_group_quant(x, *groups, dst_dtype=dtype).dtype == torch.int8
    assert torch_npu.npu_dynamic_quant(x, dst_type=dtype)[0].dtype == torch.int8


def test_offset_and_bias_by_position_as_the_first_edition_has_them() -> None:
    x1, x2 = integers(4, 32).npu(), integers(32, 16).npu()
    scale, offset = torch.rand(16).npu(), torch.ones(16).npu()
    bias = integers(16, dtype=torch.int32).npu()
    named = torch.ops.npu.npu_quant_matmul(x1, x2, scale, offset=offset, bias=bias)
    assert torch.equal(torch_npu.npu_quant_matmul(x1, x2, scale, offset, bias), named)


def test_operators_are_exported() -> None:
    class Layer(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any, scale: Any) -> Any:
            rows, scales = torch_npu.npu_dynamic_quant(x)
            return rows, scales, torch_npu.npu_quantize(x, scale, None, torch.qint8)

    x, scale = half(8, 64).npu(), torch.rand(1).npu()
    exported = torch.export.export(Layer(), (x, scale)).module()
    for found, wanted in zip(exported(x, scale), Layer()(x, scale), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.nightly
def test_a_thousand_calls_leave_nothing_behind() -> None:
    x, scale = half(4, 16).npu(), torch.rand(1).npu()
    weight = torch_npu.npu_format_cast(integers(32, 32).npu(), NZ)

    def calls(count: int) -> int:
        for _ in range(count):
            torch_npu.npu_quantize(x, scale, None, torch.qint8)
            torch_npu.npu_format_cast(weight, 2)
        return torch.npu.memory_allocated()

    # What earlier tests left is gone before anything is counted.
    gc.collect()
    before = calls(10)
    gc.collect()
    objects = len(gc.get_objects())
    assert calls(490) == before
    gc.collect()
    assert len(gc.get_objects()) - objects < 100


def test_rows_are_replaced_in_place() -> None:
    x, indices, updates = half(9, 16), torch.tensor([[5], [2]]), half(2, 16)
    wanted = x.clone()
    wanted[indices[:, 0]] = updates
    card = x.npu()
    assert torch_npu.npu_scatter_nd_update_(card, indices.npu(), updates.npu()) is card
    assert torch.equal(card.cpu(), wanted)


def test_tokens_are_written_into_caches_in_place() -> None:
    key, value, pages = half(2, 1, 16), half(2, 1, 16), torch.zeros(3, 4, 1, 16).half()
    slots = torch.tensor([9, 2], dtype=torch.int32).npu()
    for name in ("npu_scatter_pa_kv_cache", "_npu_reshape_and_cache"):
        caches = pages.npu(), pages.npu()
        more = {"cache_mode": "Norm"} if "scatter" in name else {}
        call = getattr(torch_npu, name)
        assert call(key.npu(), value.npu(), *caches, slots, **more) is None
        for cache, tokens in zip(caches, (key, value), strict=True):
            wanted = pages.clone().view(12, 1, 16)
            wanted[[9, 2]] = tokens
            assert torch.equal(cache.cpu(), wanted.view(3, 4, 1, 16))


def test_embedding_of_torch_runs_on_the_card() -> None:
    table, indices = half(50, 16), torch.tensor([[3, 49], [0, 3]])
    before = clock.now_us
    found = torch.nn.functional.embedding(indices.npu(), table.npu())
    took_us = clock.now_us - before
    assert torch.equal(found.cpu(), table[indices])
    run = npusim.run("embedding", array(table), array(indices), device=A2)
    assert took_us == pytest.approx(run.time_us)


def test_embedding_has_gradients() -> None:
    table = torch.nn.Embedding(5, 4).npu()
    table(torch.tensor([1, 3, 1]).npu()).sum().backward()
    assert table.weight.grad.cpu().sum(1).tolist() == [0, 8, 0, 4, 0]


# ---- formats ----


@pytest.fixture
def weight() -> Any:
    return torch_npu.npu_format_cast(integers(64, 96).npu(), NZ)


def test_the_elements_stay_where_they_are_numbered() -> None:
    plain = integers(20, 40).npu()
    cast = torch_npu.npu_format_cast(plain, NZ)
    assert torch.equal(cast, plain)
    assert cast.data_ptr() != plain.data_ptr()
    back = torch_npu.npu_format_cast(cast, 2)
    assert torch.equal(back, plain)
    assert torch_npu.get_npu_format(back) == 2


def test_a_cast_in_place_changes_the_tensor_itself() -> None:
    x = integers(20, 40).npu()
    before = x.clone()
    assert torch_npu.npu_format_cast_(x, NZ) is x
    assert torch_npu.get_npu_format(x) == NZ
    assert torch.equal(x, before)


def test_formats_have_names() -> None:
    x = integers(32, 32).npu()
    cast = torch_npu.npu_format_cast(x, torch_npu.Format.FRACTAL_NZ)
    assert torch_npu.get_npu_format(cast) == torch_npu.Format.FRACTAL_NZ == NZ
    assert torch_npu.get_npu_format(torch_npu.npu_format_cast(cast, torch_npu.Format.ND)) == 2


def test_newer_parameters_are_taken_at_their_defaults() -> None:
    x = half(4, 32).npu()
    cast = torch_npu.npu_format_cast(x, NZ, customize_dtype=None, input_dtype=None)
    assert torch.equal(cast, x)
    wanted = torch_npu.npu_dynamic_quant(x)
    found = torch_npu.npu_dynamic_quant(x, quant_mode="pertoken", dst_type_max=0.0)
    assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))
    rows, w, scale = integers(4, 32).npu(), integers(32, 16).npu(), torch.rand(16).npu()
    later = dict.fromkeys(("x1_dtype", "x2_dtype", "scale_dtype"))
    wanted = torch_npu.npu_quant_matmul(rows, w, scale)
    assert torch.equal(torch_npu.npu_quant_matmul(rows, w, scale, **later), wanted)


def test_dynamic_quantisation_packs_int4_and_takes_groups() -> None:
    x, smooth = half(6, 32).npu(), half(2, 32).npu()
    index = torch.tensor([2, 6], dtype=torch.int32).npu()
    packed, scale = torch_npu.npu_dynamic_quant(x, dst_type=torch.quint4x2)
    assert (packed.dtype, packed.shape, scale.shape) == (torch.int32, (6, 4), (6,))
    values, scale = torch_npu.npu_dynamic_quant(x, smooth_scales=smooth, group_index=index)
    own = torch_npu.npu_dynamic_quant(x[2:], smooth_scales=smooth[1])
    assert torch.equal(values[2:], own[0])


def test_a_cast_to_the_same_format_takes_no_time(weight: Any) -> None:
    before = clock.now_us
    assert torch_npu.get_npu_format(torch_npu.npu_format_cast(weight, NZ)) == NZ
    torch_npu.npu_format_cast(integers(4).npu(), 2)
    assert clock.now_us == before


def test_a_weight_packed_to_int32_may_be_viewed_as_its_fractals() -> None:
    """A cast of bytes, viewed as int32 in the shape `(e, n / 8, k / 16, 16, 8)`."""
    rng = torch.Generator().manual_seed(1)
    pairs = torch.randint(-128, 128, (2, 32, 64), generator=rng).to(torch.int8)
    cast = torch_npu.npu_format_cast(pairs.npu(), NZ)
    x = torch.randint(-128, 128, (3, 32), generator=rng).to(torch.int8).npu()
    ends, words = torch.tensor([1, 3]).npu(), torch.full((2, 128), 0x3C000000).npu()
    bias, scale = torch.ones(2, 128).npu(), torch.ones(3).npu()
    packed = torch_npu.npu_format_cast(pairs.view(torch.int32).npu(), NZ)
    call = torch_npu.npu_grouped_matmul_swiglu_quant
    y, y_scale, _ = call(x, packed, ends, words, scale, bias=bias)
    viewed = cast.view(torch.int32).view(2, 2, 2, 16, 8)
    for of_columns in (words, words[:, None]):
        found = call(x, viewed, ends, of_columns, scale, bias=bias)
        assert torch.equal(found[0], y)
        assert torch.equal(found[1], y_scale)
    assert y.shape == (3, 64)
    assert y.any()


def test_weights_of_groups_in_fractals() -> None:
    plain = integers(2, 32, 64)
    given = {
        "x": integers(4, 32),
        "group_list": torch.tensor([1, 4]),
        "weight_scale": torch.rand(2, 64),
        "x_scale": torch.rand(4),
    }
    weight = torch_npu.npu_format_cast(plain.npu(), NZ)
    there = {name: value.npu() for name, value in given.items()}
    found = torch_npu.npu_grouped_matmul_swiglu_quant(weight=weight, **there)
    held = npusim.Tensor.of(plain.numpy(), "FRACTAL_NZ")
    named = {name: array(value) for name, value in given.items()} | {"weight": held}
    wanted = npusim.run("npu_grouped_matmul_swiglu_quant", device=A2, **named)
    for output, numbers in zip(found, wanted.outputs.values(), strict=True):
        np.testing.assert_array_equal(output.cpu().numpy(), numbers)


@pytest.mark.parametrize("turned", [False, True])
def test_operators_get_a_tensor_in_its_format(turned: bool) -> None:
    """The time tells: FRACTAL_NZ is read in another way than ND."""
    plain = integers(96, 64)
    cast = torch_npu.npu_format_cast(plain.npu(), NZ)
    x1, scale = integers(32, 64 if turned else 96), torch.rand(1)
    view = cast.T if turned else cast
    before = clock.now_us
    found = torch_npu.npu_quant_matmul(x1.npu(), view, scale.npu(), output_dtype=torch.float16)
    held = npusim.Tensor.of(plain.numpy(), "FRACTAL_NZ")
    run = npusim.run(
        "npu_quant_matmul",
        *(x1.numpy(), held.T if turned else held, scale.numpy()),
        output_dtype="float16",
        device=A2,
    )
    assert clock.now_us - before == pytest.approx(run.time_us)
    np.testing.assert_array_equal(found.cpu().numpy(), run.output)


def test_packing_keeps_the_format() -> None:
    numbers = integers(64, 64, dtype=torch.int32)
    cast = torch_npu.npu_format_cast(numbers.npu(), NZ)
    packed = torch_npu.npu_convert_weight_to_int4pack(cast)
    assert torch_npu.get_npu_format(packed) == NZ
    assert torch.equal(packed, torch_npu.npu_convert_weight_to_int4pack(numbers.npu()))


# ---- errors ----


def refused(call: Any, message: str, error: type[Exception] = npusim.OpError) -> None:
    with pytest.raises(error, match="^" + re.escape(message) + "$"):
        call()


def fails(call: Any, acl: str, message: str) -> None:
    """*message* comes after what a card says: its operator and its code, and the name *acl*."""
    op, code = message.partition(":")[0], message[-7:-1]
    failed = f"{op}: NPU function error: call {acl} failed, error code is {code}\n"
    refused(call, failed + message)


def test_errors_are_told_as_on_a_card() -> None:
    x, rows, w = half(4, 32).npu(), integers(4, 32).npu(), integers(32, 16).npu()
    scale, ones = half(16).npu(), torch.ones(1).npu()
    cast, quantize = torch_npu.npu_format_cast, torch_npu.npu_quantize
    product = torch_npu.npu_quant_matmul
    later = "must be None on the chips that are simulated, not given; leave it out [161002]"
    fails(
        lambda: product(rows, w, scale),
        "aclnnQuantMatmulV5",
        "npu_quant_matmul: scale must be float32, int64 or uint64 with output_dtype=int8 on Atlas "
        "A2, not float16; convert it [161002]",
    )
    fails(
        lambda: quantize(x.to(torch.float8_e5m2), ones, None, torch.qint8),
        "aclnnQuantize",
        "npu_quantize: input must be of a type that the operator knows, not torch.float8_e5m2; "
        "convert it [161002]",
    )
    fails(
        lambda: quantize(x, ones, None, 289),
        "aclnnQuantize",
        "npu_quantize: dtype must be qint8, quint8, int32 or qint32 with div_mode=True on Atlas "
        "A2, not 'complex32'; choose one of these [161002]",
    )
    fails(
        lambda: torch_npu.npu_dynamic_quant(x, quant_mode="pertensor"),
        "aclnnDynamicQuantV4",
        "npu_dynamic_quant: quant_mode must be pertoken, not 'pertensor', which only Ascend950 "
        "has; leave it out [561000]",
    )
    for name in ("customize_dtype", "input_dtype"):
        call = partial(cast, x, NZ, **{name: torch.int8})
        fails(call, "aclnnNpuFormatCast", f"npu_format_cast: {name} {later}")
    fails(
        lambda: torch_npu.npu_weight_quant_batchmatmul(x, w, scale, weight_dtype=torch.int8),
        "aclnnWeightQuantBatchMatmulV2",
        f"npu_weight_quant_batchmatmul: weight_dtype {later}",
    )
    fails(
        lambda: product(rows, w, scale.float(), y_scale=scale.float()),
        "aclnnQuantMatmulV5",
        f"npu_quant_matmul: y_scale {later}",
    )


def test_a_repeated_call_is_refused_for_its_own_values() -> None:
    query, key = half(1, 2, 1, 512).npu(), half(1, 1, 64, 512).npu()
    ropes = {"query_rope": half(1, 2, 1, 64).npu(), "key_rope": half(1, 1, 64, 64).npu()}
    stencil = torch.triu(torch.ones(2048, 2048, dtype=torch.bool), 1)
    causal = partial(
        torch_npu.npu_fused_infer_attention_score,
        *[half(1, 2, 64, 64).npu()] * 3,
        num_heads=2,
        input_layout="BNSD",
        sparse_mode=3,
    )
    latent = partial(
        torch_npu.npu_fused_infer_attention_score,
        num_heads=2,
        num_key_value_heads=1,
        input_layout="BNSD",
        **ropes,
    )
    for acl, good, bad, message in (
        (
            "aclnnFusedInferAttentionScoreV3",
            lambda: latent(query, key, key.clone()),
            lambda: latent(query, key, -key),
            "npu_fused_infer_attention_score: value must be key with heads of 512 columns and "
            "query_rope, not another one: that its kernel reads values from key is assumed; pass "
            "key for both [361001]",
        ),
        (
            "aclnnFusedInferAttentionScoreV3",
            lambda: causal(atten_mask=stencil.npu()),
            lambda: causal(atten_mask=stencil.T.contiguous().npu()),
            "npu_fused_infer_attention_score: atten_mask must have ones above its diagonal alone "
            "with sparse_mode 2, 3 or 4, not others: a card would hide other keys; pass "
            "numpy.triu(..., 1) [161002]",
        ),
    ):
        first = good()
        fails(bad, acl, message)
        again = good()
        pairs = zip(*(x if isinstance(x, tuple) else (x,) for x in (first, again)), strict=True)
        assert all(torch.equal(*pair) for pair in pairs)


def test_the_first_line_names_the_function_of_aclnn(weight: Any) -> None:
    x = half(4, 32).npu()
    for call, acl in (
        (lambda: torch_npu.npu_quantize(x, x, None, torch.qint8), "aclnnQuantize"),
        (lambda: torch_npu.npu_quantize(x, x, x, 3, 1, False), "aclnnAscendQuantV3"),
        (lambda: torch_npu.npu_quant_matmul(x, weight, x), "aclnnQuantMatmulWeightNz"),
        (lambda: torch_npu.npu_trans_quant_param(x, None, 1), "aclnnTransQuantParamV3"),
        (lambda: torch_npu.npu_trans_quant_param(x), "aclnnTransQuantParamV2"),
        (lambda: torch_npu.npu_format_cast(x.double(), NZ), "aclnnNpuFormatCast"),
    ):
        with pytest.raises(npusim.OpError, match=f"call {acl} failed, error code is 161002\n"):
            call()


def test_what_torch_npu_refuses_itself_has_its_first_line() -> None:
    x, groups = half(4, 32).npu(), torch.tensor([4]).npu()
    for group_type, first in (
        (None, "Requires manual passing group_type, current is None."),
        (1, "Use Tensor input with current cann version, The group type must be -1, 0 or 2, but "
         "now is [1]"),
    ):  # fmt: skip
        with pytest.raises(
            npusim.OpError, match=f"^{re.escape(first)}\nnpu_grouped_matmul: group_t"
        ):
            torch_npu.npu_grouped_matmul(
                [x], [half(1, 32, 16).npu()], group_list=groups, split_item=3, group_type=group_type
            )


def test_a_product_line_without_the_kernel() -> None:
    npusim.torch.install(device=INFERENCE)
    x, scale, ends = half(4, 16).npu(), torch.rand(1, 16).npu(), torch.tensor([4]).npu()
    fails(
        lambda: torch_npu.npu_group_quant(x, scale, ends),
        "aclnnGroupQuant",
        "npu_group_quant: the chip must be of Atlas A2 or Atlas A3, not ascend310p3 of Atlas "
        "inference, which has no such kernel; use npu_quantize with div_mode=False for each "
        "group [361001]",
    )
    row = scale.half().reshape(16)
    assert torch_npu.npu_quantize(x, row, None, torch.qint8, -1, False).shape == (4, 16)


def test_a_trap_is_told_as_at_the_next_synchronise() -> None:
    x, scale = half(4, 16).npu(), torch.rand(2, 16).npu()
    refused(
        lambda: torch_npu.npu_group_quant(x, scale, torch.tensor([3, 2]).npu()),
        "ACL stream synchronize failed, error code:507015\n"
        "npu_group_quant: group_index must not decrease, not be [3, 2]; pass the end row of each "
        "group, in order (core 0) [507015]",
    )


def test_cpu_tensors_are_refused_as_torch_does() -> None:
    refused(
        lambda: torch_npu.npu_trans_quant_param(torch.rand(4)),
        "Could not run 'npu::npu_trans_quant_param' with arguments from the 'CPU' backend.\n"
        "npu_trans_quant_param: its tensors must lie on the npu, not on the cpu; move them with "
        ".npu()",
        NotImplementedError,
    )


@pytest.mark.parametrize("stays", [0, 1])
def test_a_mix_of_devices_is_refused(stays: int) -> None:
    given = [torch.rand(4), torch.rand(4)]
    given[1 - stays] = given[1 - stays].npu()
    name = ("scale", "offset")[stays]
    refused(
        lambda: torch_npu.npu_trans_quant_param(*given),
        "Expected all tensors to be on the same device, but found at least two devices, npu:0 and "
        f"cpu! (when checking argument for argument {name} in method "
        "wrapper_PrivateUse1__npu_trans_quant_param)\n"
        f"npu_trans_quant_param: {name} must lie on the npu, not on the cpu; move it with .npu()",
        RuntimeError,
    )


@pytest.mark.parametrize("compiles", [False, True])
def test_no_gradient_goes_through_an_operator(compiles: bool) -> None:
    weight, scale = integers(32, 16).npu(), half(16).npu()

    def product(x: Any) -> Any:
        return torch_npu.npu_weight_quant_batchmatmul(x, weight, scale).float().sum()

    x = half(4, 32).npu().requires_grad_()
    function = torch.compile(product, backend="aot_eager") if compiles else product
    message = (
        "the derivative for 'npu_weight_quant_batchmatmul' is not implemented.\n"
        "npu_weight_quant_batchmatmul: no gradient must go through it, since it has none here; "
        "call it under torch.no_grad(), or detach its tensors"
    )
    wanted = torch._dynamo.exc.BackendCompilerFailed if compiles else NotImplementedError
    with pytest.raises(wanted, match=re.escape(message)):
        function(x).backward()
    with torch.no_grad():
        assert torch.equal(function(x), product(x.detach()))


def test_whole_numbers_need_no_gradient() -> None:
    x = half(4, 32).npu().requires_grad_()
    rows, scales = torch_npu.npu_dynamic_quant(x)
    assert (rows.requires_grad, scales.requires_grad) == (False, True)
    assert not torch_npu.npu_quantize(x, torch.ones(1).npu(), None, torch.qint8).requires_grad
    with pytest.raises(NotImplementedError, match=r"^the derivative for 'npu_dynamic_quant' is "):
        scales.sum().backward()


def test_a_part_of_a_fractal_tensor(weight: Any) -> None:
    x, scale = integers(4, 32).npu(), torch.rand(1).npu()
    fails(
        lambda: torch_npu.npu_quant_matmul(x, weight[:32, :48], scale),
        "aclnnQuantMatmulWeightNz",
        "npu_quant_matmul: x2 must be a whole tensor in FRACTAL_NZ or its transpose, not a view of "
        "shape (32, 48) with strides (96, 1); cast the whole tensor back with "
        "npu_format_cast(..., 2), and take the view of that [161002]",
    )
    view = torch_npu.npu_format_cast(weight, 2)[:32, :48]
    assert torch_npu.npu_quant_matmul(x, view, scale).shape == (4, 48)


def test_more_than_the_card_holds() -> None:
    x = torch.empty(1, device="npu").expand(2**17, 2**18)
    scale = torch.ones(1).npu()
    with pytest.raises(npusim.OpError, match=r"^NPU out of memory\.\nnpu_quantize: its tensors "):
        torch_npu.npu_quantize(x, scale, None, torch.qint8)


# ---- calls that do not fit their schema ----


def group_call() -> dict[str, Any]:
    return {
        "x": half(4, 16).npu(),
        "scale": torch.rand(1, 16).npu(),
        "group_index": torch.tensor([4]).npu(),
    }


def test_calls_that_do_not_fit_say_what_to_do() -> None:
    """Torch's own words first, as on a card; then what to do, which is done."""
    x, scale, group = half(4, 16).npu(), torch.rand(1).npu(), group_call()
    a, b = integers(4, 32).npu(), integers(32, 16).npu()
    quantize, grouped = torch_npu.npu_quantize, torch_npu.npu_group_quant
    product = torch_npu.npu_quant_matmul
    names = "x, scale, group_index, offset, dst_dtype"
    rows: list[tuple[Any, str, Any]] = [
        (
            lambda: grouped(*group.values(), scale),
            "npu_group_quant: at most 3 arguments must go by position, not 4; pass offset, "
            "dst_dtype by name",
            lambda: grouped(*group.values(), offset=scale),
        ),
        (
            lambda: quantize(x, scale, None, None),
            "npu_quantize: dtype must be a dtype of torch, not None; pass one, as torch.int8 is",
            lambda: quantize(x, scale, None, torch.int8),
        ),
        (
            lambda: quantize(x, scale, None, "int8"),
            "npu_quantize: dtype must be a dtype of torch, not 'int8'; pass one, as torch.int8 is",
            lambda: quantize(x, scale, None, torch.int8),
        ),
        (
            lambda: quantize(x, scale),
            "npu_quantize: zero_points must be given, but is not; add it",
            lambda: quantize(x, scale, zero_points=None, dtype=torch.int8),
        ),
        (
            lambda: quantize(x, scale, None, torch.int8, 1.0),
            "npu_quantize: axis must be a whole number of 64 bits, not 1.0; pass one without "
            "quotes or a point",
            lambda: quantize(x, scale, None, torch.int8, 1),
        ),
        (
            lambda: quantize(x, scale, None, torch.int8, div_mode="no"),
            "npu_quantize: div_mode must be True or False, not 'no'; pass one of them",
            lambda: quantize(x, scale, None, torch.int8, div_mode=True),
        ),
        (
            lambda: quantize(x, scale, None, torch.int8, self=x),
            "npu_quantize: self must be given once, not by position and by name; drop one of them",
            lambda: quantize(scales=scale, zero_points=None, dtype=torch.int8, self=x),
        ),
        (
            lambda: quantize(np.ones(3), scale, None, torch.int8),
            "npu_quantize: self must be a strided tensor on npu, not an array of float64 (3,); "
            "make it one",
            lambda: quantize(torch.as_tensor(np.ones(3)).half().npu(), scale, None, torch.int8),
        ),
        (
            lambda: product(a, b, scale, bias=np.float16),
            "npu_quant_matmul: bias must be a strided tensor on npu, not <class 'numpy.float16'>; "
            "make it one",
            lambda: product(a, b, scale, bias=torch.ones(16, dtype=torch.int32).npu()),
        ),
        (
            lambda: product(a, b, scale, None, None, None),
            "npu_quant_matmul: at most 3 arguments must go by position, not 6; pass offset, "
            "pertoken_scale, bias, output_dtype, x1_dtype, x2_dtype, pertoken_scale_dtype, "
            "scale_dtype, group_sizes, y_scale by name",
            lambda: product(a, b, scale, offset=None, bias=None, group_sizes=None),
        ),
        (
            lambda: product(a, b, scale, group_sizes=3),
            "npu_quant_matmul: group_sizes must be a list of whole numbers, not 3; pass one",
            lambda: product(a, b, scale, group_sizes=[0, 0, 0]),
        ),
        (
            lambda: grouped(**group, dst_type=torch.int8),
            f"npu_group_quant: an argument must be one of {names}, not 'dst_type'; did you mean "
            "dst_dtype?",
            lambda: grouped(**group, dst_dtype=torch.int8),
        ),
        (
            lambda: grouped(**group, rounding=0),
            f"npu_group_quant: an argument must be one of {names}, not 'rounding'; leave it out",
            lambda: grouped(**group),
        ),
    ]
    for wrong, message, right in rows:
        with pytest.raises((RuntimeError, TypeError)) as caught:
            wrong()
        first, _, last = str(caught.value).rpartition("\n")
        assert last == message
        assert message.partition(":")[0] in first
        right()


JUNK = [
    *(None, True, 0, -1, 10**30, 0.5, 1j, "", "int8", b"x", (), [], [1], {}, set(), float("nan")),
    *(np.float16, np.float16(1), np.int64(3), np.ones(3), np.ones(()), np.dtype("float16"), object),
    *(torch.float16, torch.device("npu"), torch.ones(2), torch.ones(2).npu(), slice(1), lambda: 1),
    *(torch.ones(2, device="meta"), torch.ones(2).to_sparse()),
    torch.ones(2, dtype=torch.complex64).npu(),
]


def ends_badly(call: Any, op: str) -> str | None:
    """What is said where *call* ends in neither a result nor a line of npusim; None if it does."""
    try:
        call()
    except (RuntimeError, TypeError) as error:
        last = str(error).splitlines()[-1]
        return None if last.startswith(f"{op}: ") and " must " in last else str(error)
    return None


@pytest.mark.sample(7)
@pytest.mark.filterwarnings("ignore:npu_(dequant_)?swiglu_quant:UserWarning")
@pytest.mark.parametrize("call", {op: call for call, (op, *_) in reversed(CALLS.items())}.values())
def test_junk_ends_in_words_of_npusim(call: str) -> None:
    op, given, dtypes = CALLS[call]
    good = {name: on_npu(value) for name, value in given.items()}
    good |= {name: torch_dtype(value) for name, value in dtypes.items()}
    function = getattr(torch_npu, op)
    found = {}
    for argument in getattr(torch.ops.npu, op).default._schema.arguments:
        name = "input" if argument.name == "self" else argument.name
        for junk in JUNK:
            with_junk = good | {name: junk}
            text = ends_badly(lambda with_junk=with_junk: function(**with_junk), op)
            if text is not None:
                found[name, str(junk)] = text
    assert found == {}
