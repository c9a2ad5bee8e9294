"""Graph mode: the same bits by one launch, one compilation, options as torchair's."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from simulated_card import torch, torch_npu, torchair

import npusim
import npusim.torch
from npusim.torch.clock import clock

CompilerConfig = torchair.CompilerConfig
LinearWeightQuant = torch_npu.contrib.module.LinearWeightQuant


@pytest.fixture(autouse=True)
def no_graphs() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend=torchair.get_npu_backend(**options), fullgraph=True)


def layer(x: Any, weight: Any, scale: Any) -> Any:
    rows, scales = torch_npu.npu_dynamic_quant(x)
    y = torch_npu.npu_quant_matmul(
        rows, weight, scale, pertoken_scale=scales, output_dtype=torch.float16
    )
    return torch_npu.npu_quantize(torch.relu(y), torch.full((1,), 0.5, device="npu"), None, 12)


def inputs(m: int, k: int, n: int) -> tuple[Any, ...]:
    weight = torch.randint(-8, 8, (k, n), dtype=torch.int8)
    return tuple(t.npu() for t in (torch.randn(m, k).half(), weight, torch.rand(n)))


def test_a_graph_is_one_launch_for_every_shape() -> None:
    seen = []
    backend = torchair.get_npu_backend()

    def counted(module: Any, given: Any) -> Any:
        seen.append(module)
        return backend(module, given)

    graph = torch.compile(layer, backend=counted, fullgraph=True, dynamic=True)
    for shape in ((4, 64, 32), (48, 128, 64), (7, 96, 80)):
        given = inputs(*shape)
        start = clock.now_us, clock.launches
        found = graph(*given)
        middle = clock.now_us, clock.launches
        eager = layer(*given)
        assert torch.equal(found, eager)
        assert middle[1] - start[1] == 1
        # Two quantisations, a product, Relu, and Fill of the scale.
        assert clock.launches - middle[1] == 5
        assert middle[0] - start[0] < clock.now_us - middle[0]
    assert len(seen) == 1


@pytest.mark.parametrize("dynamic", [False, None, True])
def test_packed_weights_and_formats_in_a_graph(dynamic: bool | None) -> None:
    def packed(x: Any, weight: Any, scale: Any) -> Any:
        cast = torch_npu.npu_format_cast(torch_npu.npu_convert_weight_to_int4pack(weight), 2)
        return torch_npu.npu_weight_quant_batchmatmul(x, cast, scale, antiquant_group_size=64)

    weight = torch.randint(-8, 8, (128, 64), dtype=torch.int32).npu()
    given = torch.randn(100, 128).half().npu(), weight, torch.randn(2, 64).half().npu()
    graph = torch.compile(packed, backend=torchair.get_npu_backend(), dynamic=dynamic)
    assert torch.equal(graph(*given), packed(*given))


def test_a_graph_that_changes_its_input() -> None:
    def step(x: Any, scale: Any) -> Any:
        x.add_(1)
        return torch_npu.npu_quantize(x, scale, None, torch.qint8)

    x, scale = torch.zeros(4, 16).npu(), torch.ones(1).npu()
    assert compiled(step)(x, scale).tolist() == [[1] * 16] * 4
    assert x.tolist() == [[1.0] * 16] * 4


def test_a_graph_is_refused_as_its_operators_are() -> None:
    x, weight, _ = inputs(4, 64, 32)
    with pytest.raises(npusim.OpError, match=r"^npu_quant_matmul: NPU function error: call "):
        compiled(layer)(x, weight, torch.rand(31).npu())


@pytest.mark.parametrize("kind", ["txt", "pbtxt", "py"])
def test_a_graph_is_written_where_the_config_says(tmp_path: Path, kind: str) -> None:
    config = CompilerConfig()
    graph = compiled(layer, compiler_config=config)
    config.debug.graph_dump.type = kind
    config.debug.graph_dump.path = str(tmp_path)
    graph(*inputs(4, 64, 32))
    (file,) = tmp_path.iterdir()
    assert re.fullmatch(
        rf"dynamo_optimized_graph_\d+_rank_0_pid_\d+_ts_\d{{14}}\.{kind}", file.name
    )
    assert file.read_text().count(" = torch.ops.npu.") == 3


def test_no_graph_is_written_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    compiled(layer)(*inputs(4, 64, 32))
    assert not list(tmp_path.iterdir())


def test_options_that_steer_nothing_here_are_taken() -> None:
    config = CompilerConfig()
    config.mode = "reduce-overhead"
    config.experimental_config.frozen_parameter = True
    assert (config.mode, config.experimental_config.frozen_parameter) == ("reduce-overhead", True)


def test_an_unknown_option_is_refused() -> None:
    message = re.escape(
        "torchair: an option of config.debug.graph_dump must be one of type, path, not 'kind'; "
        "leave it out"
    )
    with pytest.raises(AttributeError, match=f"^{message}$"):
        CompilerConfig().debug.graph_dump.kind = "py"
    with pytest.raises(AttributeError, match=f"^{message}$"):
        _ = CompilerConfig().debug.graph_dump.kind
    with pytest.raises(AttributeError, match=r"^torchair: an option of config\.debug must be "):
        CompilerConfig().debug.graph_dump = "py"


def test_a_value_that_an_option_does_not_have() -> None:
    message = re.escape(
        "torchair: config.debug.graph_dump.type must be one of None, 'txt', 'pbtxt', 'py', not "
        "'svg'; use one of these"
    )
    with pytest.raises(ValueError, match=f"^{message}$"):
        CompilerConfig().debug.graph_dump.type = "svg"
    message = re.escape(
        "torchair: config.debug.graph_dump.path must be one of './', any path, not an array of "
        "float32 (2,); use one of these"
    )
    with pytest.raises(ValueError, match=f"^{message}$"):
        CompilerConfig().debug.graph_dump.path = torch.ones(2).numpy()
    CompilerConfig().debug.graph_dump.path = Path("elsewhere")


def test_another_kind_of_config_is_refused() -> None:
    message = re.escape(
        "torchair.get_npu_backend: compiler_config must be a CompilerConfig, not dict; "
        "pass torchair.CompilerConfig()"
    )
    with pytest.raises(TypeError, match=f"^{message}$"):
        torchair.get_npu_backend(compiler_config={})


def test_the_import_lines_of_the_documents() -> None:
    for name in (
        "torchair.core.utils",
        "torchair.configs.compiler_config",
        "torchair.ge_concrete_graph.ge_apis",
        "torchair.experimental.inference",
    ):
        assert importlib.import_module(name)
    assert importlib.import_module("torchair.core.utils").logger.name == "torchair"


@pytest.mark.parametrize(
    ("device", "acl_format"), [("ascend910b2", 29), ("ascend310p3", 29), ("ascend910_9391", 2)]
)
def test_internal_formats_by_product_line(device: str, acl_format: int) -> None:
    npusim.torch.install(device=device)
    model = torch.nn.Sequential(LinearWeightQuant(64, 32, bias=False, quant_scale=True)).npu()
    weight = torch.randint(-8, 8, (64, 32), dtype=torch.int8).npu()
    scale = torch.rand(32).npu()
    model[0].weight.data, model[0].quant_scale.data = weight.T, scale
    torchair.experimental.inference.use_internal_format_weight(model)
    assert torch_npu.get_npu_format(model[0].weight) == acl_format
    assert torch.equal(model[0].weight, weight.T)
    assert torch.equal(model[0].quant_scale, torch_npu.npu_trans_quant_param(scale))
