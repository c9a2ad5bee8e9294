"""Tensors on npu:0 are real tensors: what scripts do with tensors works, or says why not."""

from __future__ import annotations

import copy
import gc
import importlib
import io
import re
from collections.abc import Callable
from typing import Any

import pytest
from simulated_card import recorded, torch

from npusim.torch.clock import clock
from npusim.torch.memory import memory
from npusim.torch.relabel import to_host

DTYPES = [
    *("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "complex64"),
    *("int8", "uint8", "int16", "int32", "int64", "bool"),
]
MIXED = (
    "Expected all tensors to be on the same device, but found at least two devices, "
    "npu:0 and cpu!\n{op}: its tensors must all be on npu:0, not on the host too; "
    "move them with .npu()"
)
INVALID = (
    "NPU function error: aclrtSetDevice, error code is 107001\n"
    "npusim.torch: the device must be npu:0, the one simulated card, not npu:1; use npu:0"
)


def exactly(message: str) -> str:
    return f"^{re.escape(message)}$"


def numbers(*shape: int) -> Any:
    return torch.randn(*shape, device="npu")


# ---- memory ----


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_lives_on_the_card(name: str) -> None:
    dtype = getattr(torch, name)
    ones = torch.ones(2, 3, device="npu", dtype=dtype)
    assert (ones.device, ones.dtype, ones.is_npu) == (torch.device("npu:0"), dtype, True)
    assert ones.cpu().to(torch.complex64).sum().item() == 6
    assert "device='npu:0'" in repr(ones)


def test_the_host_sees_the_same_memory() -> None:
    tensor = numbers(2, 3)
    host = to_host(tensor)
    host[0, 0] = 7
    assert tensor[0, 0].item() == 7
    assert host.data_ptr() == tensor.data_ptr()
    assert to_host(host) is host


VIEWS: dict[str, Callable[[Any], Any]] = {
    "t": lambda x: x.t(),
    "slice": lambda x: x[1:, ::2],
    "select": lambda x: x[1],
    "view": lambda x: x.view(6, 4),
    "reshape": lambda x: x.reshape(2, 12),
    "expand": lambda x: x[:, None].expand(4, 2, 6),
    "unfold": lambda x: x.unfold(1, 2, 2),
    "as_strided": lambda x: x.as_strided((2, 2), (1, 3), 4),
    "diagonal": lambda x: x.diagonal(),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "split": lambda x: x.split(2)[1],
    "bits": lambda x: x.view(torch.int32),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_shares_the_storage_of_its_base(name: str) -> None:
    base = numbers(4, 6)
    view, expected = VIEWS[name](base), VIEWS[name](base.cpu())
    assert view.untyped_storage()._cdata == base.untyped_storage()._cdata
    assert view.stride() == expected.stride()
    assert view.storage_offset() == expected.storage_offset()
    assert torch.equal(view.cpu(), expected)
    base.zero_()
    assert not view.cpu().any()


def test_data_takes_shape_type_and_memory_along() -> None:
    weight = torch.nn.Parameter(torch.empty(3, 4, device="npu"), requires_grad=False)
    packed = torch.randint(-8, 8, (4, 3), dtype=torch.int8, device="npu")
    weight.data = packed.transpose(-1, -2)
    assert (weight.dtype, weight.shape, weight.stride()) == (torch.int8, (3, 4), (1, 3))
    assert type(weight) is torch.nn.Parameter
    assert weight.data_ptr() == packed.data_ptr()
    assert torch.equal(weight.cpu(), packed.cpu().t())


def test_in_place_operations_stay_in_place() -> None:
    tensor = torch.arange(6.0, device="npu").view(2, 3)
    where, same = tensor.data_ptr(), tensor
    tensor += 1
    tensor[0].mul_(2)
    tensor[tensor > 5] = 0
    assert tensor is same
    assert tensor.data_ptr() == where
    assert tensor.tolist() == [[2, 4, 0], [4, 5, 0]]


@pytest.mark.parametrize("size", [(2, 3), (0,), (5,)])
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_an_output_is_filled_or_resized(size: tuple[int, ...]) -> None:
    out, x = torch.empty(size, device="npu"), numbers(2, 3)
    assert torch.add(x, x, out=out) is out
    assert torch.equal(out.cpu(), x.cpu() * 2)


OF_TWO = {
    "add": torch.add,
    "mul": torch.mul,
    "maximum": torch.maximum,
    "gt": torch.gt,
    "matmul": torch.matmul,
    "cat": lambda x, y, out: torch.cat([x, y], out=out),
    "sum": lambda x, _, out: torch.sum(x, 1, out=out),
}


@pytest.mark.parametrize("lies", ["larger", "smaller", "transposed"])
@pytest.mark.parametrize("name", OF_TWO)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_an_output_of_another_shape_has_memory_of_its_own(name: str, lies: str) -> None:
    # Many times over: freed memory may still hold what was there.
    for _ in range(5):
        x, y = numbers(40, 40), numbers(40, 40)
        want = OF_TWO[name](x.cpu(), y.cpu(), out=None)
        shape = {"larger": (100, 50), "smaller": (3, 2), "transposed": want.shape[::-1]}[lies]
        out = torch.empty(shape, dtype=want.dtype, device="npu")
        out = out.mT if lies == "transposed" and out.dim() > 1 else out
        assert OF_TWO[name](x, y, out=out) is out
        del x, y
        _others = [torch.full((size,), 7, dtype=want.dtype) for size in (40, 1600, 3200, 5000)]
        torch.testing.assert_close(out.cpu(), want)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_what_shares_memory_with_an_output_that_shrinks_still_does() -> None:
    base = torch.zeros(10, device="npu")
    out, x = base[2:8], torch.ones(3, device="npu")
    before = torch.npu.memory_allocated()
    torch.add(x, 1.0, out=out)
    assert torch.npu.memory_allocated() == before
    assert base.tolist() == [0, 0, 2, 2, 2, 0, 0, 0, 0, 0]
    assert out.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()


def test_a_tensor_grows_in_place() -> None:
    tensor = torch.arange(4.0, device="npu")
    assert tensor.resize_(2, 3) is tensor
    assert tensor.view(-1)[:4].tolist() == [0, 1, 2, 3]


def test_a_copy_is_separate() -> None:
    layer = torch.nn.Linear(3, 2).npu()
    twin = copy.deepcopy(layer)
    assert torch.equal(twin.weight, layer.weight)
    assert twin.weight.data_ptr() != layer.weight.data_ptr()
    assert twin.weight.is_npu


@pytest.mark.parametrize(
    ("device", "map_location", "found"),
    [("npu", None, "npu"), ("npu", "cpu", "cpu"), ("cpu", "npu", "npu")],
)
def test_what_is_saved_can_be_loaded(device: str, map_location: str | None, found: str) -> None:
    file, tensor = io.BytesIO(), torch.arange(6.0, device=device).view(2, 3).t()
    torch.save({"x": tensor}, file)
    file.seek(0)
    loaded = torch.load(file, map_location=map_location)["x"]
    assert (loaded.device.type, loaded.stride()) == (found, (1, 3))
    assert torch.equal(loaded.cpu(), tensor.cpu())


def test_a_conjugate_is_resolved_on_the_way() -> None:
    tensor = torch.tensor([1 + 2j], device="npu")
    assert tensor.conj().cpu().tolist() == [1 - 2j]
    assert tensor.conj().resolve_conj().is_npu
    assert torch.tensor([1 + 2j]).conj().npu().tolist() == [1 - 2j]


def test_a_storage_is_made_from_its_size() -> None:
    storage = torch.UntypedStorage(8, device="npu")
    assert (storage.nbytes(), storage.device.type) == (8, "npu")
    assert torch.UntypedStorage(4).device.type == "cpu"
    message = (
        "npusim.torch: a storage on npu must be made from a size, not [1, 2]; "
        "make it on the CPU and copy it"
    )
    with pytest.raises(TypeError, match=exactly(message)):
        torch.UntypedStorage([1, 2], device="npu")
    storage = torch.UntypedStorage(2, device="npu")
    storage.copy_(torch.UntypedStorage([1, 2]))
    assert list(storage.cpu()) == [1, 2]


# ---- computing ----


def test_gradients_are_those_of_the_host() -> None:
    torch.manual_seed(0)
    here = torch.nn.Sequential(torch.nn.Conv1d(2, 3, 2), torch.nn.ELU(), torch.nn.Linear(4, 1))
    there, x = copy.deepcopy(here).npu(), torch.randn(2, 2, 5)
    here(x).square().sum().backward()
    there(x.npu()).square().sum().backward()
    for own, other in zip(here.parameters(), there.parameters(), strict=True):
        assert other.grad.is_npu
        torch.testing.assert_close(other.grad.cpu(), own.grad)


def test_a_view_changed_in_place_is_differentiated() -> None:
    leaf = torch.ones(2, 2, device="npu", requires_grad=True)
    changed = leaf * 1
    changed[0].mul_(3)
    changed.sum().backward()
    assert leaf.grad.tolist() == [[3, 3], [1, 1]]


def test_an_optimiser_takes_its_step() -> None:
    layer = torch.nn.Linear(4, 1).npu()
    optimiser, x = torch.optim.AdamW(layer.parameters(), lr=0.1), numbers(16, 4)
    losses = []
    for _ in range(5):
        loss = (layer(x) - 1).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_functions_are_mapped_differentiated_and_exported() -> None:
    x = numbers(3, 4)
    torch.testing.assert_close(torch.func.vmap(torch.sum)(x).cpu(), x.cpu().sum(1))
    assert torch.equal(torch.func.grad(lambda y: (y * y).sum())(x), 2 * x)
    layer = torch.nn.Linear(4, 2).npu()
    exported = torch.export.export(layer, (x,)).module()
    assert torch.equal(exported(x), layer(x))


def test_random_numbers_are_those_of_the_cpu() -> None:
    torch.manual_seed(3)
    drawn = numbers(5)
    torch.manual_seed(3)
    assert torch.equal(drawn.cpu(), torch.randn(5))
    generator = torch.Generator(device="npu").manual_seed(3)
    again = torch.randn(5, device="npu", generator=generator)
    assert torch.equal(drawn, again)
    assert isinstance(torch.default_generator, torch.Generator)


def test_normal_integers_are_cut_off_reals() -> None:
    torch.manual_seed(3)
    drawn = torch.randn(64, dtype=torch.int8, device="npu")
    torch.manual_seed(3)
    assert torch.equal(drawn.cpu(), torch.randn(64).to(torch.int8))


def test_a_default_device_is_the_card() -> None:
    with torch.device("npu"):
        assert torch.nn.Linear(2, 2).weight.is_npu


def test_host_operations_take_no_simulated_time() -> None:
    before, times = clock.now_us, clock.not_timed["aten.lgamma.default"]
    _ = numbers(2).lgamma()
    assert clock.now_us == before
    assert clock.not_timed["aten.lgamma.default"] == times + 1


def test_a_thousand_operations_leave_nothing_behind() -> None:
    x = numbers(8, 8)
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            x = (x * 0.5).t().add_(1)
        held, objects = memory.allocated_bytes, len(gc.get_objects())
        for _ in range(334):
            x = (x * 0.5).t().add_(1)
        assert memory.allocated_bytes == held
        assert len(gc.get_objects()) - objects < 20
    finally:
        gc.enable()


# ---- refusals ----


def test_host_and_card_do_not_mix() -> None:
    x, host = numbers(2, 2), torch.ones(2, 2)
    with pytest.raises(RuntimeError, match=exactly(MIXED.format(op="aten.add.Tensor"))):
        x + host
    with pytest.raises(RuntimeError, match=exactly(MIXED.format(op="aten.cat.default"))):
        torch.cat([x, host])
    with pytest.raises(RuntimeError, match=exactly(MIXED.format(op="aten.add_.Tensor"))):
        host.add_(x)


def test_a_number_or_an_index_may_come_from_the_host() -> None:
    x = torch.arange(4.0, device="npu")
    assert (x * torch.tensor(2.0)).tolist() == [0, 2, 4, 6]
    assert x[torch.tensor([3, 0])].tolist() == [3, 0]


def test_only_indices_may_come_from_the_host() -> None:
    x, index = torch.zeros(4, device="npu"), torch.tensor([3, 0])
    with pytest.raises(RuntimeError, match=exactly(MIXED.format(op="aten.index.Tensor"))):
        torch.ones(4)[index.npu()]
    with pytest.raises(
        RuntimeError, match=exactly(MIXED.format(op="aten._index_put_impl_.default"))
    ):
        x[index] = torch.ones(2)
    x[index] = torch.tensor(1.0)
    assert x.tolist() == [1, 0, 0, 1]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside torch
def test_the_default_compiler_is_refused() -> None:
    message = (
        "torch.compile: the backend for tensors on npu must be torchair's, not inductor; "
        "pass backend=torchair.get_npu_backend()"
    )
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=re.escape(message)):
        torch.compile(lambda x: x * 2)(numbers(2))


@pytest.mark.parametrize(
    "use",
    [
        lambda: torch.ones(1, device="npu:1"),
        lambda: torch.empty_strided((1,), (1,), device="npu:1"),
        lambda: torch.arange(3, device="npu:1"),
        lambda: torch.ones(1).to("npu:1"),
        lambda: torch.ones(1).npu(1),
        lambda: numbers(1).to("npu:1", torch.float16),
        lambda: torch.nn.Linear(1, 1).to("npu:1"),
        lambda: torch.npu.set_device(1),
        lambda: torch.npu.device("npu:1"),
    ],
)
def test_there_is_one_card(use: Callable[[], Any]) -> None:
    with pytest.raises(RuntimeError, match=exactly(INVALID)):
        use()


def test_a_sparse_tensor_is_refused() -> None:
    message = (
        "npusim.torch: aten._to_sparse.default must not give a tensor of layout "
        "torch.sparse_coo; move its tensors with .cpu()"
    )
    with pytest.raises(NotImplementedError, match=exactly(message)):
        numbers(2, 2).to_sparse()
    assert numbers(2, 2).cpu().to_sparse().is_sparse


def test_a_transposed_copy_of_float64_is_counted_without_a_time() -> None:
    x = torch.arange(6.0, dtype=torch.float64).reshape(2, 3)
    copied, kernels = recorded(lambda: x.npu().t().contiguous())
    assert copied.cpu().tolist() == x.t().tolist()
    assert kernels == ["aten.clone.default"]


def test_data_is_exchanged_between_host_and_card() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    weight.data = numbers(2)
    (weight * 2).sum().backward()
    assert (weight.device.type, weight.grad.device.type) == ("npu", "npu")
    layer = torch.nn.Linear(2, 2)
    own = layer.weight
    assert layer.npu().weight is own
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        torch.ones(2).data = torch.ones(2).to_sparse()


def test_what_the_cpu_cannot_run_is_refused() -> None:
    message = (
        "npusim.torch: aten.cudnn_affine_grid_generator.default must not be run on npu, since "
        "torch has no kernel of that name for the CPU; move the tensors of what calls it with "
        ".cpu()"
    )
    with pytest.raises(NotImplementedError, match=exactly(message)):
        torch.cudnn_affine_grid_generator(numbers(1, 2, 3), 1, 1, 2, 2)


def test_an_array_is_not_on_the_card() -> None:
    with pytest.raises(TypeError, match=r"^can't convert npu:0 device type tensor to numpy\."):
        numbers(2).numpy()


def test_a_module_that_moves_has_the_parameters_that_it_had() -> None:
    layer = torch.nn.Linear(2, 3)
    weight, seen = layer.weight, []
    weight.register_hook(seen.append)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    before = weight.detach().clone()
    layer.npu()
    assert layer.weight is weight
    assert weight.device.type == "npu"
    layer(numbers(1, 2)).sum().backward()
    optimizer.step()
    assert [grad.device.type for grad in seen] == ["npu"]
    torch.testing.assert_close(weight.detach().cpu(), before - seen[0].cpu())
    assert layer.cpu().weight is weight
    assert weight.device.type == "cpu"


def test_pyacl_copies_memory_of_the_card() -> None:
    acl = importlib.import_module("acl")
    x, host = torch.arange(10, device="npu"), torch.zeros(12, dtype=torch.int64)
    size = x.nbytes
    assert acl.rt.memcpy(host.data_ptr(), host.nbytes, x.data_ptr(), size, 2) == 0
    assert host.tolist() == [*range(10), 0, 0]
    for dst, room in ((0, size), (host.data_ptr(), size - 1)):
        assert acl.rt.memcpy(dst, room, x.data_ptr(), size, 2) == 107000
    message = (
        "module 'acl.rt' has no attribute 'malloc'\nnpusim.torch: of acl.rt a script must call "
        "memcpy alone, not malloc; do without it"
    )
    with pytest.raises(AttributeError, match=exactly(message)):
        acl.rt.malloc(64, 0)


def test_a_function_may_load_storages_onto_the_card() -> None:
    x, file = torch.arange(6.0), io.BytesIO()
    torch.save([x, x[:3]], file)
    file.seek(0)
    found, part = torch.load(file, map_location=lambda storage, _: storage.npu())
    assert (found.device.type, found.tolist()) == ("npu", x.tolist())
    assert part.data_ptr() == found.data_ptr()
    assert found.untyped_storage().is_npu
    assert not x.untyped_storage().is_npu
