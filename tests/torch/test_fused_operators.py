"""Operators that multiply, or route tokens, and speak to other cards."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from simulated_card import torch, torch_npu

import npusim.torch
from npusim.data.errors import OpError
from npusim.torch import distributed
from npusim.torch.clock import clock

dist: Any = torch.distributed


def on_ranks(count: int, step: Callable[[int, str], object]) -> list[Any]:
    """What *step* gives on each rank, called with the rank and the name of the group."""

    def begun(rank: int) -> object:
        dist.init_process_group(backend="hccl")
        group = dist.distributed_c10d._get_default_group()
        backend = group._get_backend(torch.device("npu"))
        return step(rank, backend.get_hccl_comm_name(rank))

    return distributed.run(begun, count)


def drawn(seed: int, *shape: int, dtype: Any = torch.float16) -> Any:
    numbers = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return torch.from_numpy(numbers).to(dtype)


def took_us(call: Callable[[], Any]) -> tuple[Any, float]:
    """What *call* gives, and the simulated time that it takes."""
    before_us = clock.now_us
    found = call()
    return found, clock.now_us - before_us


# ---- products ----


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_product_that_is_reduced_has_the_bits_of_its_parts(ranks: int) -> None:
    def step(rank: int, name: str) -> tuple[Any, ...]:
        x, w = drawn(rank, 40, 256).npu(), drawn(99 + rank, 256, 64).npu()
        bias = drawn(7, 64).npu()
        own = torch.addmm(bias, x, w)
        return torch_npu.npu_mm_all_reduce_base(x, w, name, bias=bias).cpu(), own.cpu()

    found = on_ranks(ranks, step)
    right = found[0][1].numpy()
    for _, own in found[1:]:
        right = right + own.numpy()
    for whole, _ in found:
        assert np.array_equal(whole.numpy(), right)


def test_what_is_added_to_a_product_is_reduced_with_it() -> None:
    def step(rank: int, name: str) -> Any:
        x, w, more = torch.ones(2, 3, 32), torch.ones(32, 16), torch.full((2, 3, 16), rank + 1.0)
        return torch_npu.npu_mm_all_reduce_base(
            *(x.half().npu(), w.half().npu(), name), x3=more.half().npu()
        ).cpu()

    for found in on_ranks(2, step):
        assert torch.equal(found, torch.full((2, 3, 16), 67.0, dtype=torch.float16))


def test_quantised_products_are_those_of_the_operators_that_quantise() -> None:
    def step(rank: int, name: str) -> tuple[Any, ...]:
        draw = np.random.default_rng(rank)
        x, w = (
            torch.from_numpy(draw.integers(-9, 9, shape, np.int8)).npu()
            for shape in ((40, 64), (64, 32))
        )
        scale = torch.full((32,), 0.5, dtype=torch.bfloat16).npu()
        rows = torch.linspace(0.5, 1.5, 40).npu()
        whole = torch_npu.npu_mm_all_reduce_base(
            x, w, name, dequant_scale=scale, pertoken_scale=rows
        )
        own = torch_npu.npu_quant_matmul(
            x, w, scale, pertoken_scale=rows, output_dtype=torch.bfloat16
        )
        float_x = drawn(rank, 40, 64).npu()
        by_weight = torch.full((32,), 0.5, dtype=torch.float16).npu()
        dequantised = torch_npu.npu_mm_all_reduce_base(float_x, w, name, antiquant_scale=by_weight)
        own_too = torch_npu.npu_weight_quant_batchmatmul(float_x, w, by_weight)
        return tuple(each.cpu() for each in (whole, own, dequantised, own_too))

    first, second = on_ranks(2, step)
    for whole, own in ((0, 1), (2, 3)):
        assert torch.equal(first[whole], first[own] + second[own])
        assert torch.equal(first[whole], second[whole])


def test_gathered_rows_are_multiplied_and_products_are_scattered() -> None:
    def step(rank: int, name: str) -> tuple[Any, ...]:
        x, w = drawn(rank, 384, 256).npu(), drawn(99, 256, 512).npu()
        of_all, rows = torch_npu.npu_all_gather_base_mm(x, w, name, 2)
        share = torch_npu.npu_mm_reduce_scatter_base(x, w, name, 2)
        return of_all.cpu(), rows.cpu(), share.cpu(), (x @ w).cpu()

    (of_all, rows, first, own), (same, _, second, other) = on_ranks(2, step)
    assert torch.equal(rows, torch.cat([drawn(0, 384, 256), drawn(1, 384, 256)]))
    assert torch.equal(of_all, same)
    assert torch.equal(of_all, torch.cat([own, other]))
    assert torch.equal(torch.cat([first, second]), own + other)


@pytest.mark.parametrize("name", ["all_reduce", "reduce_scatter", "all_gather"])
def test_a_product_and_its_collective_overlap(name: str) -> None:
    npusim.torch.install("ascend910b2", values=False)

    def step(_: int, group: str) -> list[float]:
        x = torch.empty(4096, 4096, dtype=torch.float16, device="npu")
        own, own_us = took_us(lambda: x @ x)
        out = torch.empty(4 * 4096, 4096, dtype=torch.float16, device="npu")
        if name == "all_reduce":
            _, apart_us = took_us(lambda: dist.all_reduce(own))
            call = torch_npu.npu_mm_all_reduce_base
        elif name == "reduce_scatter":
            _, apart_us = took_us(lambda: dist.reduce_scatter_single(own[:1024], own))
            call = torch_npu.npu_mm_reduce_scatter_base
        else:
            _, apart_us = took_us(lambda: dist.all_gather_single(out, x))
            _, own_us = took_us(lambda: out @ x)
            call = torch_npu.npu_all_gather_base_mm
        sizes = () if name == "all_reduce" else (4,)
        _, fused_us = took_us(lambda: call(x, x, group, *sizes))
        return [own_us, apart_us, fused_us]

    for own_us, apart_us, fused_us in on_ranks(4, step):
        assert max(own_us, apart_us) < fused_us < own_us + apart_us


def test_a_product_that_pto_isa_measured() -> None:
    npusim.torch.install("ascend910b2", values=False)

    def step(_: int, group: str) -> list[float]:
        x = torch.empty(5416, 6144, dtype=torch.float16, device="npu")
        w = torch.empty(6144, 1408, dtype=torch.float16, device="npu")
        _, fused_us = took_us(lambda: torch_npu.npu_mm_all_reduce_base(x, w, group))
        _, apart_us = took_us(lambda: dist.all_reduce(x @ w))
        return [fused_us, apart_us]

    # docs/collectives.md: the kernel of pto-isa, which moves otherwise, took 561 us.
    for fused_us, apart_us in on_ranks(8, step):
        assert fused_us == pytest.approx(561, rel=0.1)
        assert fused_us == pytest.approx(apart_us * 5 / 6, rel=0.05)


def test_a_fused_product_waits_for_the_last_rank() -> None:
    def step(rank: int, name: str) -> float:
        x = torch.ones(256, 256).half().npu()
        for _ in range(3 * rank):
            x @ x
        torch_npu.npu_mm_all_reduce_base(x, x, name)
        return clock.now_us

    first, second = on_ranks(2, step)
    assert first == second > 30


# ---- experts ----


@pytest.mark.parametrize("version", ["", "_v2"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_tokens_come_back_weighed(version: str, ranks: int) -> None:
    experts, chosen = 2 * ranks, 2

    def step(rank: int, name: str) -> tuple[Any, ...]:
        tokens = 3 + rank % 2
        ids = np.stack(
            [np.random.default_rng(rank * 9 + at).permutation(experts) for at in range(tokens)]
        )[:, :chosen]
        x = drawn(rank, tokens, 64, dtype=torch.bfloat16)
        weights = torch.rand(tokens, chosen)
        shared = drawn(50 + rank, tokens, 64, dtype=torch.bfloat16)
        of_group = (name, ranks, rank, experts)
        numbers = torch.from_numpy(ids.astype(np.int32)).npu()
        dispatch = getattr(torch_npu, f"npu_moe_distribute_dispatch{version}")
        rows, _, index, counts, sums, *_ = dispatch(
            x.npu(), numbers, *of_group, global_bs=4 * ranks
        )
        # Each expert doubles.
        combine = getattr(torch_npu, f"npu_moe_distribute_combine{version}")
        found = combine(
            *(rows * 2, numbers, index, sums, weights.npu(), *of_group),
            global_bs=4 * ranks,
            shared_expert_x=shared.npu(),
        )
        right = torch.zeros(tokens, 64)
        for place in range(chosen):
            right = right + (x * 2).float() * weights[:, place : place + 1]
        right = (right + shared.float()).bfloat16()
        assert torch.equal(found.cpu(), right)
        assert int(sums[-1]) == int(counts.sum())
        return int(counts.sum()), tokens * chosen

    found = on_ranks(ranks, step)
    assert sum(come for come, _ in found) == sum(sent for _, sent in found)


def test_dispatch_quantises_and_counts() -> None:
    def step(rank: int, name: str) -> tuple[Any, ...]:
        x = drawn(rank, 4, 64).npu()
        ids = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0]], dtype=torch.int32).npu()
        rows, scales, *_ = torch_npu.npu_moe_distribute_dispatch_v2(
            x, ids, name, 2, rank, 4, quant_mode=2
        )
        running = torch_npu.npu_moe_distribute_dispatch_v2(
            x, ids, name, 2, rank, 4, expert_token_nums_type=0
        )[3]
        return rows.cpu(), scales.cpu(), running.tolist()

    rows, scales, running = on_ranks(2, step)[1]
    # Experts 2 and 3: tokens 1 and 2, then 2 and 3, of rank 0 and then of rank 1.
    order = [(0, 1), (0, 2), (1, 1), (1, 2), (0, 2), (0, 3), (1, 2), (1, 3)]
    assert rows.dtype == torch.int8
    assert running == [4, 8]
    for at, (source, token) in enumerate(order):
        values = drawn(source, 4, 64)[token].float()
        factor = torch.tensor(127.0) / values.abs().max()
        assert torch.equal(rows[at], (values * factor).round().to(torch.int8))
        assert scales[at] == 1 / factor


# ---- refusals ----


def half(*shape: int) -> Any:
    return torch.empty(*shape, dtype=torch.float16, device="npu")


def ids(*numbers: list[int]) -> Any:
    return torch.tensor(numbers, dtype=torch.int32).npu()


Refused = tuple[Callable[[int, str], object], str]
REFUSED: dict[str, Refused] = {
    "an unknown group": (
        lambda *_: torch_npu.npu_mm_all_reduce_base(half(8, 256), half(256, 8), "other"),
        "npu_mm_all_reduce_base: hcom must be the name of a group of hccl, '0', not 'other'; pass "
        "what group._get_backend(torch.device('npu')).get_hccl_comm_name(rank) gives",
    ),
    "matrices that do not fit": (
        lambda _, name: torch_npu.npu_mm_all_reduce_base(half(8, 256), half(255, 8), name),
        "npu_mm_all_reduce_base: x2 must have 256 rows, as many as columns go before, not 255; "
        "transpose or cut it",
    ),
    "another operation": (
        lambda _, name: torch_npu.npu_mm_all_reduce_base(
            half(8, 256), half(256, 8), name, reduce_op="max"
        ),
        "npu_mm_all_reduce_base: reduce_op must be sum, which is what npusim simulates, not 'max'; "
        "leave it out",
    ),
    "a type that is not multiplied": (
        lambda _, name: torch_npu.npu_mm_all_reduce_base(
            half(8, 256).float(), half(256, 8).float(), name
        ),
        "npu_mm_all_reduce_base: x1 must have 2 dimensions of float16 or bfloat16, not shape "
        "(8, 256) of float32; make it so",
    ),
    "another world": (
        lambda _, name: torch_npu.npu_all_gather_base_mm(half(8, 256), half(256, 8), name, 4),
        "npu_all_gather_base_mm: world_size must be 2, the ranks of the group, not 4; pass that",
    ),
    "few columns": (
        lambda _, name: torch_npu.npu_all_gather_base_mm(half(8, 128), half(128, 8), name, 2),
        "npu_all_gather_base_mm: input must have 256 to 65534 columns, not 128; use a product and "
        "a collective",
    ),
    "rows that do not divide": (
        lambda _, name: torch_npu.npu_mm_reduce_scatter_base(half(7, 256), half(256, 8), name, 2),
        "npu_mm_reduce_scatter_base: input must have a multiple of 2 rows, of ranks, not 7; pad it",
    ),
    "experts that do not divide": (
        lambda rank, name: torch_npu.npu_moe_distribute_dispatch_v2(
            half(1, 64), ids([0]), name, 2, rank, 3
        ),
        "npu_moe_distribute_dispatch_v2: moe_expert_num must be a multiple of 2 ranks, not 3; pad "
        "the experts",
    ),
    "another rank": (
        lambda _, name: torch_npu.npu_moe_distribute_dispatch_v2(
            half(1, 64), ids([0]), name, 2, 5, 4
        ),
        "npu_moe_distribute_dispatch_v2: ep_rank_id must be 0, as the group has it, not 5; pass "
        "that",
    ),
    "an expert that there is not": (
        lambda rank, name: torch_npu.npu_moe_distribute_dispatch_v2(
            half(1, 64), ids([4]), name, 2, rank, 4
        ),
        "npu_moe_distribute_dispatch_v2: expert_ids must be 0 to 3, not 4 to 4; correct them",
    ),
    "long tokens": (
        lambda rank, name: torch_npu.npu_moe_distribute_dispatch_v2(
            half(1, 7200), ids([0]), name, 2, rank, 4
        ),
        "npu_moe_distribute_dispatch_v2: tokens must have 1 to 7168 elements on Atlas A2, a "
        "multiple of 32, not 7200; pad them",
    ),
    "many tokens": (
        lambda rank, name: torch_npu.npu_moe_distribute_dispatch_v2(
            half(257, 64), ids(*[[0]] * 257), name, 2, rank, 4
        ),
        "npu_moe_distribute_dispatch_v2: expert_ids must have up to 256 tokens and 16 experts of "
        "each on Atlas A2, not shape (257, 1); cut the batch",
    ),
    "a mode that is not simulated": (
        lambda rank, name: torch_npu.npu_moe_distribute_dispatch_v2(
            half(1, 64), ids([0]), name, 2, rank, 4, quant_mode=1
        ),
        "npu_moe_distribute_dispatch_v2: quant_mode must be 0 or 2, which is what npusim "
        "simulates, not 1; leave it out",
    ),
    "little room": (
        lambda rank, name: torch_npu.npu_moe_distribute_dispatch_v2(
            half(3, 64), ids([0], [0], [0]), name, 2, rank, 4, global_bs=2
        ),
        "npu_moe_distribute_dispatch_v2: global_bs must make room for the 6 rows that come, not "
        "for 2; pass the most tokens of a rank times the ranks",
    ),
    "counts of another call": (
        lambda rank, name: torch_npu.npu_moe_distribute_combine_v2(
            *(half(2, 64), ids([0]), torch.zeros(256, dtype=torch.int32).npu()),
            *(ids([0, 0, 0])[0], torch.ones(1, 1).npu(), name, 2, rank, 4),
        ),
        "npu_moe_distribute_combine_v2: ep_send_counts must have 4 numbers and expert_scales the "
        "shape (1, 1) of expert_ids, not 3 and (1, 1); pass what dispatch and gating give",
    ),
    "sources of another call": (
        lambda rank, name: torch_npu.npu_moe_distribute_combine_v2(
            *(half(2, 64), ids([0]), torch.zeros(256, dtype=torch.int32).npu()),
            *(ids([0, 0, 0, 0])[0], torch.ones(1, 1).npu(), name, 2, rank, 4),
        ),
        "npu_moe_distribute_combine_v2: assist_info_for_combine must be what dispatch gave, not "
        "lack rows of some token; pass that on every rank",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_card_refuses_is_refused(case: str) -> None:
    call, message = REFUSED[case]
    first = r"npu_\w+: NPU function error: call aclnn\w+, error code is (161002|361001)\n"
    first = first.replace("aclnn\\w+,", "aclnn\\w+ failed,")
    with pytest.raises(OpError, match=f"^{first}{re.escape(message)} \\[(161002|361001)\\]$"):
        on_ranks(2, call)


def test_ranks_and_chips_that_the_kernels_do_not_take_are_refused() -> None:
    def product(_: int, name: str) -> None:
        torch_npu.npu_mm_all_reduce_base(half(8, 256), half(256, 8), name)

    with pytest.raises(OpError, match=r"the group must have 2, 4 or 8 ranks on Atlas A2, not 3; "):
        on_ranks(3, product)
    npusim.torch.install("Atlas 300I Duo")

    def route(rank: int, name: str) -> None:
        torch_npu.npu_moe_distribute_dispatch(half(1, 64), ids([0]), name, 2, rank, 4)

    with pytest.raises(
        OpError,
        match=r"the chip must be of Atlas A2 or Atlas A3, not of Atlas inference; use all_to_all",
    ):
        on_ranks(2, route)


def test_the_tensors_of_the_host_are_refused_and_shapes_are_known_to_tracing() -> None:
    with pytest.raises(NotImplementedError, match="npu_mm_all_reduce_base: its tensors must lie"):
        torch_npu.npu_mm_all_reduce_base(torch.ones(2, 2), torch.ones(2, 2), "0")
    with torch._subclasses.FakeTensorMode():
        x, w = torch.empty(8, 256, device="npu"), torch.empty(256, 32, device="npu")
        whole, rows = torch.ops.npu.npu_all_gather_base_mm(x, w, "0", 4)
        assert (whole.shape, rows.shape) == ((32, 32), (32, 256))
        share = torch.ops.npu.npu_mm_reduce_scatter_base(x, w, "0", 4)
        assert share.shape == (2, 32)
        numbers = torch.empty(8, 2, dtype=torch.int32, device="npu")
        outputs = torch.ops.npu.npu_moe_distribute_dispatch_v2(x, numbers, "0", 4, 0, 8)
        assert [tuple(each.shape) for each in outputs] == [
            *((64, 256), (64,), (8192,), (2,), (8,), (0,), (0,))
        ]
