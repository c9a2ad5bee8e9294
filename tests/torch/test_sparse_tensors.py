"""Sparse gradients on npu: what they are made of, and what the host computes with them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from simulated_card import torch

from npusim.torch.clock import clock

INDEX = torch.tensor([[0, 1], [2, 2]])


def gradient(x: Any, index: Any) -> Any:
    """The sparse gradient of what *index* chooses of *x*."""
    leaf = x.requires_grad_()
    found = torch.gather(leaf, 1, index, sparse_grad=True)
    (found * 2).sum().backward()
    return leaf.grad


def test_a_sparse_gradient_is_on_the_card_as_are_its_parts() -> None:
    found, want = gradient(torch.ones(3, 3).npu(), INDEX.npu()), gradient(torch.ones(3, 3), INDEX)
    assert (found.layout, found.device.type) == (torch.sparse_coo, "npu")
    assert found.is_coalesced() == want.is_coalesced()
    for mine, theirs in ((found._indices(), want._indices()), (found._values(), want._values())):
        assert mine.device.type == "npu"
        assert torch.equal(mine.cpu(), theirs)


def test_the_host_computes_with_it() -> None:
    found, want = gradient(torch.ones(3, 3).npu(), INDEX.npu()), gradient(torch.ones(3, 3), INDEX)
    before = clock.not_timed.total()
    whole = found.coalesce()
    assert (whole.device.type, whole.is_coalesced()) == ("npu", True)
    assert torch.equal(whole.values().cpu(), want.coalesce().values())
    assert torch.equal(found.to_dense().cpu(), want.to_dense())
    assert clock.not_timed.total() > before


def test_what_it_is_not_taken_by_says_so() -> None:
    found = gradient(torch.ones(3, 3).npu(), INDEX.npu())
    message = (
        "npusim.torch: aten.mul_.Tensor must not write to a sparse tensor, nor need its shape "
        "alone; move its tensors with .cpu()"
    )
    with pytest.raises(NotImplementedError, match=f"^{re.escape(message)}$"):
        found.mul_(found)
