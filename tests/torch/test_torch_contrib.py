"""Linear layers of quantised weights: they call their operators with the weight turned."""

from __future__ import annotations

import copy
import re
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from simulated_card import torch, torch_npu, torchair

import npusim
import npusim.torch
from npusim.torch.clock import clock

LinearA8W8Quant = torch_npu.contrib.module.LinearA8W8Quant
LinearQuant = torch_npu.contrib.module.LinearQuant
LinearWeightQuant = torch_npu.contrib.module.LinearWeightQuant
QuantConv2d = torch_npu.contrib.module.QuantConv2d


def integers(*shape: int, dtype: Any = torch.int8) -> Any:
    return torch.randint(-8, 8, shape, dtype=dtype).npu()


def filled(group_size: int) -> Any:
    layer = LinearWeightQuant(128, 32, antiquant_offset=True, antiquant_group_size=group_size).npu()
    assert all(not parameter.requires_grad for parameter in layer.parameters())
    layer.weight.data = integers(32, 128)
    scales = (32, -(-128 // group_size)) if group_size else (32,)
    for name, shape in (("antiquant_scale", scales), ("antiquant_offset", scales), ("bias", 32)):
        getattr(layer, name).data = torch.randn(shape).half().npu()
    return layer


@pytest.mark.parametrize("group_size", [0, 32, 64])
def test_linear_weight_quant_calls_its_operator(group_size: int) -> None:
    layer, x = filled(group_size), torch.randn(4, 128).half().npu()
    scale, offset = layer.antiquant_scale.data, layer.antiquant_offset.data
    assert scale.shape == ((32, -(-128 // group_size)) if group_size else (32,))
    wanted = torch_npu.npu_weight_quant_batchmatmul(
        *(x, layer.weight.data.T, scale.T if group_size else scale),
        antiquant_offset=offset.T if group_size else offset,
        bias=layer.bias.data,
        antiquant_group_size=group_size,
    )
    assert torch.equal(layer(x), wanted)


def test_parameters_that_are_not_asked_for_are_none() -> None:
    layer = LinearWeightQuant(64, 32, bias=False)
    assert set(layer.state_dict()) == {"weight", "antiquant_scale"}
    assert (layer.bias, layer.antiquant_offset) == (None, None)
    assert (layer.quant_scale, layer.quant_offset) == (None, None)
    assert {parameter.dtype for parameter in layer.parameters()} == {torch.float32}


def test_a_layer_is_copied_and_saved(tmp_path: Path) -> None:
    layer, x = filled(0), torch.randn(4, 128).half().npu()
    wanted = layer(x)
    assert torch.equal(copy.deepcopy(layer)(x), wanted)
    torch.save(layer.state_dict(), tmp_path / "layer.pt")
    other = filled(0)
    other.load_state_dict(torch.load(tmp_path / "layer.pt"))
    assert torch.equal(other(x), wanted)


@pytest.mark.parametrize("output_dtype", [None, torch.float16])
def test_linear_quant_calls_its_operator(output_dtype: Any) -> None:
    layer = LinearQuant(64, 32, offset=output_dtype is None, output_dtype=output_dtype).npu()
    layer.weight.data, layer.bias.data = integers(32, 64), integers(32, dtype=torch.int32)
    layer.scale.data = torch.rand(32).npu()
    if output_dtype is None:
        layer.offset.data = torch.rand(32).npu()
    x = integers(4, 64)
    wanted = torch_npu.npu_quant_matmul(
        *(x, layer.weight.data.T, layer.scale.data),
        offset=None if layer.offset is None else layer.offset.data,
        bias=layer.bias.data,
        output_dtype=output_dtype,
    )
    assert torch.equal(layer(x), wanted)
    assert wanted.dtype == (output_dtype or torch.int8)


def test_linear_quant_with_scales_a_row() -> None:
    layer = LinearQuant(
        64, 32, bias=False, pertoken_scale=True, output_dtype=torch.float16, device="npu"
    ).npu()
    layer.weight.data, layer.scale.data = integers(32, 64), torch.rand(32).npu()
    layer.pertoken_scale.data = torch.rand(4).npu()
    x = integers(4, 64)
    wanted = (x.cpu().double() @ layer.weight.cpu().double().T) * layer.scale.cpu().double()
    wanted *= layer.pertoken_scale.cpu().double()[:, None]
    torch.testing.assert_close(layer(x).cpu().double(), wanted, rtol=2e-3, atol=2e-3)


# ---- as torch_npu makes them ----


def shapes(layer: Any) -> dict[str, tuple[tuple[int, ...], Any]]:
    return {name: (tuple(p.shape), p.dtype) for name, p in layer.state_dict().items()}


def test_parameters_are_of_the_shapes_and_types_of_torch_npu() -> None:
    """Ascend/pytorch 2.14.0, torch_npu/contrib/module: what a checkpoint must fit on a card."""
    full, whole = torch.float32, torch.int32
    every = {"antiquant_offset": True, "quant_scale": True, "quant_offset": True}
    names = ("antiquant_scale", *every, "bias")
    linear = {"weight": ((32, 128), full)} | dict.fromkeys(names, ((32,), full))
    for group_size in (0, 32):
        assert (
            shapes(LinearWeightQuant(128, 32, **every, antiquant_group_size=group_size)) == linear
        )
    quant = {"weight": ((32, 64), full), "bias": ((32,), whole)}
    quant |= dict.fromkeys(("scale", "offset", "pertoken_scale"), ((32,), full))
    assert shapes(LinearQuant(64, 32, offset=True, pertoken_scale=True, device="npu")) == quant
    with pytest.warns(FutureWarning):
        older = LinearA8W8Quant(64, 32, offset=True, pertoken_scale=True)
    assert shapes(older) == quant
    assert shapes(QuantConv2d(4, 8, 3, torch.float16, groups=2)) == {
        "weight": ((8, 2, 3, 3), full), "scale": ((8,), torch.int64), "bias": ((8,), full),
    }  # fmt: skip


def test_scales_are_packed_by_a_launch_of_their_own() -> None:
    layer = LinearQuant(64, 32, bias=False).npu()
    layer.weight.data, layer.scale.data = integers(32, 64), torch.rand(32).npu()
    before = clock.launches
    layer(integers(4, 64))
    assert clock.launches == before + 2
    layer.output_dtype = torch.bfloat16
    layer(integers(4, 64))
    assert clock.launches == before + 3


def test_the_older_name_gives_the_same() -> None:
    message = "LinearA8W8Quant: torch_npu is going to drop this name; use LinearQuant"
    with pytest.warns(FutureWarning, match=f"^{message}$") as told:
        older = LinearA8W8Quant(64, 32, bias=False, output_dtype=torch.float16).npu()
    assert told[0].filename == __file__
    newer = LinearQuant(64, 32, bias=False, output_dtype=torch.float16).npu()
    x, weight, scale = integers(4, 64), integers(32, 64), torch.rand(32).npu()
    for layer in (older, newer):
        layer.weight.data, layer.scale.data = weight, scale
    assert torch.equal(older(x), newer(x))
    older.output_dtype = newer.output_dtype = torch.int32
    newer.scale.data = older.scale.data = scale
    with pytest.raises(
        ValueError,
        match=r"^LinearA8W8Quant: output_dtype must be torch\.int8, torch\.float16 or "
        r"torch\.bfloat16, not torch\.int32; use LinearQuant for others$",
    ):
        older(x)
    assert newer(x).dtype == torch.int32


def test_a_quantised_convolution_loads_and_says_what_it_lacks() -> None:
    layer, x = QuantConv2d(4, 8, 3, torch.float16, stride=2).npu(), integers(1, 4, 8, 8)
    layer.load_state_dict(QuantConv2d(4, 8, (3, 3), torch.float16).state_dict())
    assert (layer.kernel_size, layer.stride, layer.offset) == ((3, 3), (2, 2), None)
    message = (
        "QuantConv2d: its operator, npu_quant_conv2d, must be modelled to run it, but is not; "
        "use torch.nn.functional.conv2d with the weight turned back into floats"
    )
    with pytest.raises(NotImplementedError, match=f"^{re.escape(message)}$"):
        layer(x)
    floats = integers(8, 4, 3, 3).float()
    assert torch.nn.functional.conv2d(x.float(), floats, stride=2).shape == (1, 8, 3, 3)
    with pytest.raises(ValueError, match=r"^QuantConv2d: offset must be False, not True; leave "):
        QuantConv2d(4, 8, 3, torch.float16, offset=True)


# ---- what was never assigned ----

LEFT = "not torch.float32, in which it is made and in which load_state_dict leaves it"
FIRST = (
    "npu_weight_quant_batchmatmul: NPU function error: call aclnnWeightQuantBatchMatmulV2 failed, "
    "error code is 161002\n"
)


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_weight_that_was_never_assigned_is_to_be_assigned(is_loaded: bool) -> None:
    layer, x = LinearWeightQuant(128, 32, antiquant_offset=True).npu(), torch.ones(4, 128).half()
    x, whole = x.npu(), filled(0)
    if is_loaded:
        # float32 parameters take the numbers of any type, and stay float32.
        layer.load_state_dict(whole.state_dict())
    for name, kinds in (
        ("weight", "torch.int8 or torch.int32"),
        ("antiquant_scale", "torch.float16 like x"),
        ("antiquant_offset", "torch.float16 like x"),
        ("bias", "torch.float16 like x"),
    ):
        message = (
            f"{FIRST}LinearWeightQuant: {name} must be {kinds}, {LEFT}; assign "
            f"layer.{name}.data = ... [161002]"
        )
        with pytest.raises(npusim.OpError, match=f"^{re.escape(message)}$"):
            layer(x)
        getattr(layer, name).data = getattr(whole, name).data
    assert torch.equal(layer(x), whole(x))


def test_an_integer_layer_that_was_never_assigned_is_to_be_assigned() -> None:
    layer, x = LinearQuant(64, 32, bias=False).npu(), integers(4, 64)
    message = (
        "LinearQuant: x and weight must both be torch.int8 or both torch.int32, not torch.int8 "
        "and torch.float32; assign layer.weight.data, which is made float32 and which "
        "load_state_dict leaves so"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        layer(x)
    layer.weight.data = integers(32, 64)
    assert layer(x).dtype == torch.int8
    message = (
        "LinearQuant: x and weight must both be torch.int8 or both torch.int32, not torch.float16 "
        "and torch.int8; quantise x like the weight"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        layer(x.half())


# ---- FRACTAL_NZ outside of a graph ----

IN_GRAPHS_ONLY = (
    "npu_weight_quant_batchmatmul: the document of LinearWeightQuant takes weights in FRACTAL_NZ "
    "in graph mode only; it is taken; compile with torchair's backend, or leave the weight in ND"
)


@pytest.mark.parametrize("device", ["ascend910b2", "ascend910_9391", "ascend310p3"])
def test_a_weight_in_fractals_is_warned_of_outside_of_a_graph(device: str) -> None:
    npusim.torch.install(device=device)
    layer, x = filled(0), torch.randn(4, 128).half().npu()
    plain = layer(x)
    layer.weight.data = torch_npu.npu_format_cast(layer.weight.data, 29)
    with pytest.warns(npusim.DocumentWarning, match=f"^{re.escape(IN_GRAPHS_ONLY)}$") as told:
        eager = layer(x)
    assert told[0].filename == __file__
    torch.testing.assert_close(eager.cpu(), plain.cpu(), rtol=1e-2, atol=1e-2)
    graph = torch.compile(layer, backend=torchair.get_npu_backend(), fullgraph=True, dynamic=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", npusim.DocumentWarning)
        assert torch.equal(graph(x), eager)
        layer.weight.data = torch_npu.npu_format_cast(layer.weight.data, 2)
        assert torch.equal(layer(x), plain)


def test_the_operator_by_itself_warns_too() -> None:
    x, scale = torch.randn(4, 64).half().npu(), torch.rand(32).half().npu()
    weight = torch_npu.npu_format_cast(integers(64, 32), 29)
    with pytest.warns(npusim.DocumentWarning, match=f"^{re.escape(IN_GRAPHS_ONLY)}$"):
        torch_npu.npu_weight_quant_batchmatmul(x, weight, scale)


def test_the_docstring_says_so() -> None:
    words = " ".join(str(LinearWeightQuant.__doc__).split())
    assert "allows weights in FRACTAL_NZ only in graph mode" in words
    assert "DocumentWarning" in words


# ---- layers and functions that are torch's own in other words ----


@pytest.mark.parametrize("split", [False, True])
def test_channels_of_two_tensors_are_dealt_out_in_turn(split: bool) -> None:
    x, y = torch.randn(2, 3, 2, 2), torch.randn(2, 3, 2, 2)
    found = torch_npu.contrib.module.ChannelShuffle(3, split_shuffle=split)(x.npu(), y.npu())
    whole = torch.cat(found, 1).cpu() if split else found.cpu()
    for channel in range(3):
        assert torch.equal(whole[:, 2 * channel], x[:, channel])
        assert torch.equal(whole[:, 2 * channel + 1], y[:, channel])


def test_smoothed_labels() -> None:
    x, labels = torch.randn(4, 6), torch.tensor([0, 5, 2, 2])
    layer = torch_npu.contrib.module.LabelSmoothingCrossEntropy(6, 0.12)
    shares = torch.full((4, 6), 0.12 / 5)
    shares[range(4), labels] = 0.88
    expected = -(shares * x.log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(layer(x.npu(), labels.float().npu()).cpu(), expected)


def test_a_function_keeps_its_name_when_the_module_of_that_name_is_imported() -> None:
    module = import_module("torch_npu.contrib.function.fuse_add_softmax_dropout")
    found = torch_npu.contrib.function.fuse_add_softmax_dropout
    assert found is module.fuse_add_softmax_dropout
    assert callable(found)


def test_activations_and_functions() -> None:
    x, function = torch.randn(4, 6), torch_npu.contrib.function
    for layer, expected in (
        (torch_npu.contrib.module.Mish(), x * torch.tanh(torch.nn.functional.softplus(x))),
        (torch_npu.contrib.Swish(), x * torch.sigmoid(x)),
    ):
        torch.testing.assert_close(layer(x.npu()).cpu(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(function.roll(x.npu(), (1, 2), (0, 1)).cpu(), x.roll((1, 2), (0, 1)))
    product = function.matmul_transpose(x.npu(), x.npu())
    torch.testing.assert_close(product.cpu(), x @ x.T, rtol=1e-5, atol=1e-5)
    found = function.npu_fast_condition_index_put(x.npu(), (x < 0).npu(), 0.5)
    assert torch.equal(found.cpu(), torch.where(x < 0, 0.5, x))
    message = (
        "npu_fast_condition_index_put: condition must be of torch.bool, not torch.int32; compare "
        "first"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        function.npu_fast_condition_index_put(x, x.int(), 0.5)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("rows", [127, 128])
def test_the_fused_softmax_has_its_own_probability(rows: int, training: bool) -> None:
    x, function = torch.randn(4, 8, rows, 16), torch_npu.contrib.function
    half_dropped = torch.nn.Dropout(0.5)
    found = function.fuse_add_softmax_dropout(training, half_dropped, x.npu(), x.npu(), 4, p=0.1)
    wanted = (1.5 * x).softmax(-1)
    zeros = (found.cpu() == 0).double().mean().item()
    # The module drops in its own mode, whatever *training* is; p is of the fused kernel alone.
    expected = 0.5 if rows == 127 else 0.1 * training
    assert zeros == pytest.approx(expected, abs=0.02)
    kept = found.cpu() != 0
    torch.testing.assert_close(found.cpu(), wanted * kept / (1 - expected), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Adam", {"weight_decay": 0.1}),
        ("AdamW", {"amsgrad": True}),
        ("Adadelta", {}),
        ("RMSprop", {"momentum": 0.5}),
        ("SGD", {"momentum": 0.5, "nesterov": True}),
    ],
)
def test_fused_optimizers_step_as_torchs_do(name: str, options: dict[str, Any]) -> None:
    weights = [torch.randn(3, 4), torch.randn(5)]
    theirs = [each.clone().requires_grad_() for each in weights]
    own = [each.npu().requires_grad_() for each in weights]
    plain = getattr(torch.optim, name)(theirs, lr=0.1, **options)
    fused = getattr(torch_npu.optim, f"NpuFused{name}")(own, lr=0.1, **options)
    for _ in range(3):
        for optimizer, parameters in ((plain, theirs), (fused, own)):
            optimizer.zero_grad()
            sum(each.square().sum() for each in parameters).backward()
            optimizer.step()
    for a, b in zip(own, theirs, strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-5, atol=1e-6)
    for parameters in (theirs, own):
        for each in parameters:
            each.grad = each.detach() * 2
    norm = fused.clip_grad_norm_fused_(0.5)
    expected = torch.nn.utils.clip_grad_norm_(theirs, 0.5)
    torch.testing.assert_close(norm.cpu(), expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(own[0].grad.cpu(), theirs[0].grad, rtol=1e-4, atol=1e-6)
