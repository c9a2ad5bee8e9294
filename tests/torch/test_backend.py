"""How the device and its operators are made known to torch."""

from __future__ import annotations

import re
from typing import Any

import pytest
from simulated_card import torch

from npusim.torch import backend
from npusim.torch.relabel import to_host, to_npu


@pytest.fixture(scope="module")
def twice() -> Any:
    """An operator that doubles, defined as the operators of the card are."""
    backend.define(
        "test_twice(Tensor x, *, bool keep=True) -> Tensor",
        real=lambda x, *, keep=True: to_npu(to_host(x) * 2),  # noqa: ARG005
        fake=lambda x, *, keep=True: torch.empty_like(x),  # noqa: ARG005
    )
    return torch.ops.npu.test_twice


def test_an_operator_runs_on_npu_tensors(twice: Any) -> None:
    x = torch.arange(3.0, device="npu")
    assert twice(x, keep=False).tolist() == [0, 2, 4]


def test_an_operator_says_what_it_says_on_a_card_to_cpu_tensors(twice: Any) -> None:
    told = r"^Could not run 'npu::test_twice' with arguments from the 'CPU' backend\."
    with pytest.raises(NotImplementedError, match=told):
        twice(torch.arange(3.0))


def test_an_operator_is_traced_by_its_fake(twice: Any) -> None:
    compiled = torch.compile(lambda x: twice(x) + 1, backend="aot_eager", fullgraph=True)
    assert compiled(torch.arange(3.0, device="npu")).tolist() == [1, 3, 5]


def test_the_device_is_made_once() -> None:
    message = (
        "npusim.torch: torch must not have a device of another package yet, but has 'npu'; "
        "start a new process"
    )
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
        backend.register()


def test_a_torch_that_shares_no_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    backend.check()
    monkeypatch.setattr(torch, "equal", lambda *_: False)
    message = (
        "npusim.torch: torch must share memory between a tensor and its views on npu, "
        f"but torch {torch.__version__} does not; use torch 2.13"
    )
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
        backend.check()


def _counted(count: int) -> torch.Tensor:
    return torch.arange(count) + torch.ones(count)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_torch_jit_scripts_the_factories_of_torch() -> None:
    assert torch.jit.script(_counted)(3).tolist() == [1, 2, 3]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_torch_jit_traces_no_shapes_that_kernels_read() -> None:
    def turned(x: Any) -> Any:
        return torch.zeros(x.shape[::-1], device="npu").copy_(x.t())

    traced = torch.jit.trace(turned, torch.ones(4, 6).npu())
    x = torch.arange(10.0).view(2, 5).npu()
    assert torch.equal(traced(x), turned(x))
