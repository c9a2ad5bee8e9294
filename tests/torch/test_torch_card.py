"""Which card there is, its memory, and the formats of storages."""

from __future__ import annotations

import copy
import io
import re
from typing import Any

import numpy as np
import pytest
from simulated_card import torch, torch_npu

import npusim
import npusim.torch
from npusim.data.tensor import allocated_bytes
from npusim.torch import card, formats
from npusim.torch.clock import clock
from npusim.torch.memory import Memory, memory


@pytest.mark.parametrize(
    ("device", "name", "cores"),
    [
        ("Atlas A2", "Ascend910B2", (24, 48)),
        ("Atlas A3", "Ascend910_9391", (24, 48)),
        ("Atlas 300I Pro", "Ascend310P3", (8, 15)),
    ],
)
def test_the_card_bears_the_chips_name(device: str, name: str, cores: tuple[int, int]) -> None:
    assert npusim.torch.install(device) == name
    assert torch.npu.get_device_name() == torch_npu.npu.get_device_name(0) == name
    told = torch.npu.get_device_properties()
    spec = npusim.devices.load(device)
    assert (told.name, told.cube_core_num, told.vector_core_num) == (name, *cores)
    assert told.total_memory == spec.gm.capacity_bytes
    assert torch.npu.is_bf16_supported() is (spec.series != "Atlas inference")


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(npusim.devices.DeviceError, match=r"^devices: no device 'ascend42'; "):
        npusim.torch.install("ascend42")
    assert card.name() == "Ascend910B2"


def test_there_is_one_current_card() -> None:
    assert torch.npu.is_available()
    assert (torch.npu.device_count(), torch.npu.current_device()) == (1, 0)
    assert torch.accelerator.current_accelerator() == torch.device("npu")
    torch.accelerator.synchronize()
    torch.npu.synchronize("npu:0")
    with torch.npu.device(0):
        assert torch.npu.current_stream() is torch.npu.default_stream()


def test_a_run_on_the_card_moves_the_clock() -> None:
    before, x = clock.now_us, np.ones((2, 32), np.float32)
    args = ("npu_quantize", x, np.ones(1, np.float32), None)
    kwargs: dict[str, Any] = {"dtype": "qint8", "axis": -1, "div_mode": False}
    done = card.run(*args, **kwargs)
    alone = npusim.run(*args, device="ascend910b2", **kwargs)
    assert done.time_us == alone.time_us
    assert clock.now_us == before + (alone.time_us or 0)
    assert np.array_equal(done.output, alone.output)


# ---- memory ----


def test_memory_counts_living_storages_in_blocks() -> None:
    before = torch.npu.memory_allocated()
    torch.npu.reset_peak_memory_stats()
    tensor = torch.empty(1000, device="npu")
    view = tensor[1:]
    assert torch.npu.memory_allocated() - before == allocated_bytes(4000) == 4096
    del tensor
    assert torch.npu.memory_allocated() - before == 4096
    del view
    assert torch.npu.memory_allocated() == before
    assert torch.npu.max_memory_allocated() - before == 4096
    free, total = torch.npu.mem_get_info()
    assert total - free == before


def test_memory_that_is_full_takes_no_more() -> None:
    spec = card.spec()
    small = spec.model_copy(update={"gm": spec.gm.model_copy(update={"capacity_bytes": 5000})})
    card.insert(small)
    tensor, own = torch.empty(1000), Memory()
    own.take(tensor)
    message = (
        "NPU out of memory. Tried to allocate 4000 bytes (NPU 0; 5000 bytes total capacity; "
        "4096 bytes already allocated; 904 bytes free)\nnpusim.torch: the tensors must fit into "
        "the memory of Ascend910B2, not take 8192 bytes; free some first"
    )
    with pytest.raises(torch.OutOfMemoryError, match=f"^{re.escape(message)}$"):
        own.take(torch.empty(1000))
    assert own.allocated_bytes == 4096


def test_an_empty_tensor_takes_no_memory() -> None:
    before = memory.allocated_bytes
    empty = torch.empty(0, device="npu")
    assert memory.allocated_bytes == before
    assert empty.is_npu


# ---- formats ----


def test_a_format_follows_the_storage() -> None:
    weight = torch.ones(16, 32, dtype=torch.int8, device="npu")
    assert torch_npu.get_npu_format(weight) == formats.ND
    formats.put(weight, formats.NZ)
    holder = torch.nn.Parameter(torch.empty(1, device="npu"), requires_grad=False)
    holder.data = weight.t()
    del weight
    assert torch_npu.get_npu_format(holder) == torch_npu.get_npu_format(holder.data) == 29
    assert torch_npu.get_npu_format(holder + 0) == formats.ND
    formats.put(holder, formats.ND)
    assert torch_npu.get_npu_format(holder) == formats.ND


def in_fractals() -> Any:
    return torch_npu.npu_format_cast(torch.arange(32.0 * 48).half().view(32, 48).npu(), 29)


def saved(tensor: Any) -> Any:
    return torch.load(_file_of(tensor))


@pytest.mark.parametrize(
    "copied",
    [
        lambda x: x.clone(),
        copy.deepcopy,
        lambda x: copy.deepcopy(torch.nn.Parameter(x)),
        saved,
        lambda x: saved(torch.nn.Parameter(x)),
        lambda x: saved({"weight": x})["weight"],
        lambda x: x.to("npu:0"),
        lambda x: x.to(torch.float16, copy=True),
        lambda x: x.t().clone().t(),
    ],
)
def test_a_copy_keeps_the_format(copied: Any) -> None:
    weight = in_fractals()
    found = copied(weight)
    assert torch_npu.get_npu_format(found) == formats.NZ
    assert torch.equal(found.cpu(), weight.cpu())


def test_a_cast_keeps_the_format_and_what_leaves_the_card_loses_it() -> None:
    weight = in_fractals()
    assert torch_npu.get_npu_format(weight.float()) == formats.NZ
    assert torch_npu.get_npu_format(weight.cpu().npu()) == formats.ND
    assert torch_npu.get_npu_format(torch.load(_file_of(weight), map_location="cpu").npu()) == 2


def _file_of(tensor: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("numbers", [(29,), (2,), (2, 29), (29, 2), (29, 2, 29)])
def test_a_format_goes_with_its_storage(numbers: tuple[int, ...]) -> None:
    known = dict(formats._formats)
    weight = torch.ones(16, 32, device="npu")
    for number in numbers:
        formats.put(weight, number)
    assert torch_npu.get_npu_format(weight) == numbers[-1]
    del weight
    # The next storage may lie at the same place.
    assert formats._formats == known


def test_only_known_settings_are_taken() -> None:
    torch.npu.config.allow_internal_format = False
    torch.npu.config.allow_internal_format = True
    torch.npu.set_compile_mode(jit_compile=False)
    with pytest.raises(AttributeError):
        torch.npu.config.made_up = True
