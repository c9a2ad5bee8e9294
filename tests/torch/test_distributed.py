"""torch.distributed with the backend hccl, on ranks that are threads."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated_card import torch, torch_npu

import npusim.torch
from npusim import collectives, profile
from npusim.torch import distributed
from npusim.torch.clock import clock
from npusim.torch.distributed import transport
from npusim.trace import model

# Torch warns of a barrier that is not told its device.
pytestmark = pytest.mark.filterwarnings("ignore:barrier")
dist: Any = torch.distributed


def on_ranks(count: int, step: Callable[[int], object]) -> list[Any]:
    """What *step* gives on each of *count* ranks."""

    def begun(rank: int) -> object:
        dist.init_process_group(backend="hccl")
        assert (dist.get_rank(), dist.get_world_size()) == (rank, count)
        return step(rank)

    return distributed.run(begun, count)


def drawn(rank: int, *shape: int) -> Any:
    """The same for a rank wherever it is asked for."""
    numbers = np.random.default_rng(rank).standard_normal(shape).astype(np.float32)
    return torch.from_numpy(numbers)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_all_reduce_adds_from_rank_0_on_in_the_type_of_the_tensors(ranks: int, dtype: str) -> None:
    kind = getattr(torch, dtype)

    def step(rank: int) -> Any:
        x = drawn(rank, 33).to(kind).npu()
        dist.all_reduce(x)
        return x.cpu()

    right = drawn(0, 33).to(kind)
    for rank in range(1, ranks):
        right = right + drawn(rank, 33).to(kind)
    for found in on_ranks(ranks, step):
        assert torch.equal(found, right)


def test_all_reduce_of_long_tensors_adds_each_slice_from_its_own_rank_on() -> None:
    count = 4 * 65_536

    def step(rank: int) -> Any:
        x = drawn(rank, count).npu()
        dist.all_reduce(x)
        return x.cpu()

    parts = [drawn(rank, count).numpy() for rank in range(4)]
    for found in on_ranks(4, step):
        for place in range(4):
            piece = slice(place * 65_536, (place + 1) * 65_536)
            right = parts[place][piece]
            for step_on in range(1, 4):
                right = right + parts[(place + step_on) % 4][piece]
            assert np.array_equal(found.numpy()[piece], right)


def test_the_other_reductions() -> None:
    def step(rank: int) -> list[list[float]]:
        found = []
        for operation in ("MAX", "MIN", "PRODUCT", "AVG"):
            x = torch.tensor([rank + 1.0, 3.0 - rank]).npu()
            dist.all_reduce(x, op=getattr(dist.ReduceOp, operation))
            found.append(x.tolist())
        x = torch.tensor([rank + 1.0]).npu()
        dist.reduce(x, dst=1)
        found.append(x.tolist())
        return found

    same = [[3.0, 3.0], [1.0, 1.0], [6.0, 6.0], [2.0, 2.0]]
    assert on_ranks(3, step) == [[*same, [1.0]], [*same, [6.0]], [*same, [3.0]]]


def test_shares_and_copies_reach_the_rank_that_they_are_for() -> None:
    def step(rank: int) -> dict[str, Any]:
        x, found = torch.tensor([rank, 10 + rank]).npu(), {}
        whole = torch.empty(4, dtype=torch.int64).npu()
        dist.all_gather_single(whole, x)
        parts = [torch.empty_like(x) for _ in range(2)]
        dist.all_gather(parts, x)
        assert torch.equal(torch.cat(parts), whole)
        found["gathered"] = whole.tolist()
        share = torch.empty(1, dtype=torch.int64).npu()
        dist.reduce_scatter_single(share, x)
        of_list = torch.empty(1, dtype=torch.int64).npu()
        dist.reduce_scatter(of_list, list(x.split(1)))
        assert torch.equal(share, of_list)
        found["share"] = share.tolist()
        y = x.clone()
        dist.broadcast(y, src=1)
        found["from 1"] = y.tolist()
        places = [torch.empty_like(x) for _ in range(2)] if rank == 0 else None
        dist.gather(x, places, dst=0)
        found["at 0"] = [place.tolist() for place in places or []]
        dist.scatter(y, [x, x + 1] if rank == 0 else None, src=0)
        found["scattered"] = y.tolist()
        return found

    assert on_ranks(2, step) == [
        {
            "gathered": [0, 10, 1, 11],
            "share": [1],
            "from 1": [1, 11],
            "at 0": [[0, 10], [1, 11]],
            "scattered": [0, 10],
        },
        {
            "gathered": [0, 10, 1, 11],
            "share": [21],
            "from 1": [1, 11],
            "at 0": [],
            "scattered": [1, 11],
        },
    ]


def test_all_to_all_gives_parts_of_any_size() -> None:
    def step(rank: int) -> Any:
        given = torch.arange(6).npu() + 10 * rank
        even = torch.empty_like(given)
        dist.all_to_all_single(even, given)
        # Rank 0 gives one and five, rank 1 gives two and four.
        sizes = [[1, 2], [5, 4]][rank]
        taken = torch.empty(sum(sizes), dtype=torch.int64).npu()
        dist.all_to_all_single(taken, given, sizes, [[1, 5], [2, 4]][rank])
        parts = [torch.empty(3, dtype=torch.int64).npu() for _ in range(2)]
        dist.all_to_all(parts, list(given.split(3)))
        assert torch.equal(torch.cat(parts), even)
        return even.tolist(), taken.tolist()

    assert on_ranks(2, step) == [
        ([0, 1, 2, 10, 11, 12], [0, 10, 11]),
        ([3, 4, 5, 13, 14, 15], [1, 2, 3, 4, 5, 12, 13, 14, 15]),
    ]


def test_messages_and_groups() -> None:
    def step(rank: int) -> Any:
        x, y = torch.tensor([float(rank)]).npu(), torch.empty(1).npu()
        if rank < 2:
            asked = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]
            for work in dist.batch_isend_irecv(asked):
                work.wait()
        elif rank == 2:
            dist.send(x, dst=3, tag=5)
        else:
            assert dist.recv(y, tag=5) == 2
        odd, even = dist.new_group([1, 3]), dist.new_group([0, 2], backend="hccl")
        dist.all_reduce(x, group=odd if rank % 2 else even)
        dist.barrier()
        objects = [None] * 4
        dist.all_gather_object(objects, {"rank": rank})
        return y.tolist() if rank != 2 else None, x.tolist(), len(objects), objects[3]

    last = (4, {"rank": 3})
    assert on_ranks(4, step) == [
        ([1.0], [2.0], *last),
        ([0.0], [4.0], *last),
        (None, [2.0], *last),
        ([2.0], [4.0], *last),
    ]


# ---- time ----


def test_a_collective_begins_with_the_last_rank_and_ends_for_all() -> None:
    def step(rank: int) -> tuple[float, float]:
        if rank == 1:
            x = torch.ones(512, 512).npu()
            x @ x
        before_us = clock.now_us
        dist.all_reduce(torch.ones(1 << 20).npu())
        return before_us, clock.now_us

    (early_us, end_us), (late_us, same_us) = on_ranks(2, step)
    assert early_us == 0 < late_us
    took_us = collectives.time_us("all_reduce", 4 << 20, 2, "ascend910b2")
    assert end_us == same_us == pytest.approx(late_us + took_us)


def test_what_is_not_awaited_goes_on_while_the_card_computes() -> None:
    def step(_: int) -> tuple[float, float, bool, bool]:
        work = dist.all_reduce(torch.ones(1 << 20).npu(), async_op=True)
        x = torch.ones(512, 512).npu()
        x @ x
        computed_us, is_early = clock.now_us, work.is_completed()
        work.wait()
        return computed_us, clock.now_us, is_early, work.is_completed()

    took_us = collectives.time_us("all_reduce", 4 << 20, 2, "ascend910b2")
    for computed_us, end_us, *is_completed in on_ranks(2, step):
        assert 0 < computed_us < took_us
        assert end_us == pytest.approx(took_us)
        assert is_completed == [False, True]


def test_collectives_of_a_group_follow_each_other() -> None:
    def step(_: int) -> float:
        works = [dist.all_reduce(torch.ones(1 << 20).npu(), async_op=True) for _ in range(2)]
        works[1].wait()
        return clock.now_us

    took_us = collectives.time_us("all_reduce", 4 << 20, 2, "ascend910b2")
    assert on_ranks(2, step) == pytest.approx([2 * took_us] * 2)


def test_ranks_of_two_servers_take_the_links_between_them() -> None:
    def step(rank: int) -> float:
        apart = dist.new_group([0, 8])
        before_us = clock.now_us
        if rank in (0, 8):
            dist.all_gather_single(torch.empty(2048).npu(), torch.ones(1024).npu(), group=apart)
        return clock.now_us - before_us

    took_us = collectives.time_us("all_gather", 4096, 2, "ascend910b2", servers=2)
    assert on_ranks(16, step)[8] == pytest.approx(took_us)


def test_a_graph_that_is_replayed_meets_the_other_ranks_again() -> None:
    def step(rank: int) -> Any:
        x, y = torch.full((4,), rank + 1.0).npu(), torch.empty(4).npu()
        captured = torch.npu.NPUGraph()
        with torch.npu.graph(captured):
            z = x * 2
            work = dist.all_reduce(z, op=dist.ReduceOp.AVG, async_op=True)
            w = x + 1
            work.wait()
            asked = [dist.P2POp(dist.isend, w, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]
            for each in dist.batch_isend_irecv(asked):
                each.wait()
        took, found = [], []
        for factor in (1.0, 10.0):
            x.fill_(factor * (rank + 1))
            before_us = clock.now_us
            captured.replay()
            took.append(clock.now_us - before_us)
            found.append((z.tolist()[0], y.tolist()[0]))
        return took[0] == pytest.approx(took[1]), took[0] > 5, found

    for rank, (is_same, takes_time, found) in enumerate(on_ranks(2, step)):
        other = 2 - rank
        assert (is_same, takes_time) == (True, True)
        assert found == [(3.0, other + 1.0), (30.0, 10.0 * other + 1.0)]


def test_tensors_without_elements_or_dimensions_take_part() -> None:
    def step(rank: int) -> Any:
        none, one = torch.empty(0).npu(), torch.tensor(rank + 1).npu()
        dist.all_reduce(none)
        dist.all_gather_single(torch.empty(0).npu(), none)
        dist.all_reduce(one)
        return none.tolist(), one.tolist()

    assert on_ranks(2, step) == [([], 3)] * 2


def test_shapes_alone_take_the_same_time() -> None:
    def step(rank: int) -> float:  # noqa: ARG001
        x = torch.empty(1 << 20, device="npu")
        dist.all_reduce(x)
        dist.all_gather_single(torch.empty(2 << 20, device="npu"), x)
        return clock.now_us

    with_values = on_ranks(2, step)
    npusim.torch.install("ascend910b2", values=False)
    assert on_ranks(2, step) == with_values


def test_a_report_shows_communication(tmp_path: Path) -> None:
    def step(rank: int) -> None:
        with npusim.torch.record() as recorded:
            dist.all_reduce(torch.ones(8).npu())
        if rank == 0:
            recorded.write(tmp_path)

    on_ranks(2, step)
    (launch,) = model.read(tmp_path).launches
    assert (launch.kernel.op, launch.kernel.bound) == ("hcom_allReduce_", "links")
    assert launch.kernel.inputs == ("float32 (8,) sum",)


def test_the_page_on_collectives_prints_what_it_shows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "collectives.md").read_text("utf-8")
    first, second = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (shown,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    exec(first, {"__name__": "page"})
    exec(second, {})
    assert capsys.readouterr().out == shown


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_profile_shows_what_is_hidden_and_what_is_not(tmp_path: Path) -> None:
    def step(rank: int) -> None:
        handler = torch_npu.profiler.tensorboard_trace_handler(str(tmp_path / str(rank)))
        with torch_npu.profiler.profile(on_trace_ready=handler) as profiler:
            work = dist.all_reduce(torch.ones(1 << 20).npu(), async_op=True)
            x = torch.ones(512, 512).npu()
            x @ x
            work.wait()
            dist.all_reduce(torch.ones(8).npu())
            profiler.step()

    on_ranks(2, step)
    (folder,) = (tmp_path / "0").glob("*/ASCEND_PROFILER_OUTPUT")
    rows = table(folder / "kernel_details.csv")
    assert [row["Accelerator Core"] for row in rows].count("COMMUNICATION") == 2
    (times,) = table(folder / "step_trace_time.csv")
    long_us, short_us = (
        collectives.time_us("all_reduce", size, 2, "ascend910b2") for size in (4 << 20, 32)
    )
    computing = float(times["Computing"])
    assert computing > 0
    assert float(times["Communication"]) == pytest.approx(long_us + short_us, abs=0.01)
    assert float(times["Overlapped"]) == pytest.approx(computing, abs=0.01)
    assert float(times["Free"]) == pytest.approx(0, abs=0.01)
    found = profile.read(folder).compare("ascend910b2", jobs=1)
    assert found.communication_us == pytest.approx(long_us + short_us, abs=0.01)


# ---- the process ----


def test_each_rank_has_its_own_clock_numbers_and_card() -> None:
    torch.manual_seed(3)
    right = torch.rand(2)
    before_us = clock.now_us

    def step(rank: int) -> Any:
        torch.npu.set_device(rank)
        torch.manual_seed(3 + rank)
        x = torch.ones(3, device=f"npu:{rank}")
        dist.barrier()
        return torch.npu.current_device(), torch.npu.device_count(), torch.rand(2), x.tolist()

    first, second = on_ranks(2, step)
    assert [first[0], second[0], first[1], second[1]] == [0, 1, 2, 2]
    assert torch.equal(first[2], right)
    assert not torch.equal(second[2], right)
    assert torch.npu.device_count() == 1
    assert clock.now_us > before_us
    assert dist.is_hccl_available()
    assert not dist.is_initialized()


def test_data_parallel_models_have_the_mean_of_gradients() -> None:
    def step(rank: int) -> Any:
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 1, bias=False).npu()
        on_all = torch.nn.parallel.DistributedDataParallel(layer)
        on_all(torch.full((1, 4), float(rank)).npu()).sum().backward()
        return layer.weight.grad.tolist()

    assert on_ranks(3, step) == [[[1.0] * 4]] * 3


# ---- refusals ----


def two(call: Callable[[int], object]) -> list[Any]:
    return on_ranks(2, call)


def empty(*shape: int) -> Any:
    return torch.empty(*shape, device="npu")


TYPES = "int8, int16, int32, int64, float16, float32, bfloat16"
REFUSED: dict[str, tuple[Callable[[int], object], str]] = {
    "another shape": (
        lambda rank: dist.all_reduce(empty(2 + rank)),
        "all_reduce: all ranks must call it alike, as rank 0 calls all_reduce float32 (2,) sum on "
        "ascend910b2, but rank 1 calls all_reduce float32 (3,) sum on ascend910b2; make the calls "
        "alike",
    ),
    "another collective": (
        lambda rank: dist.barrier() if rank else dist.all_reduce(empty(2)),
        "all_reduce: all ranks must call it alike, as rank 0 calls all_reduce float32 (2,) sum on "
        "ascend910b2, but rank 1 calls barrier on ascend910b2; make the calls alike",
    ),
    "a rank that returns": (
        lambda rank: None if rank else dist.all_reduce(empty(2)),
        "npusim.torch.distributed: ranks must come to each collective and message together, but "
        "rank 0 waits in all_reduce, rank 1 has returned; let each of them call it",
    ),
    "ranks that wait for each other": (
        lambda rank: dist.send(empty(2), dst=1 - rank),
        "npusim.torch.distributed: ranks must come to each collective and message together, but "
        "rank 0 waits in send to rank 1, rank 1 waits in send to rank 0; let each of them call it",
    ),
    "a message of another shape": (
        lambda rank: dist.recv(empty(3), src=0) if rank else dist.send(empty(2), dst=1),
        "recv: the tensor of rank 1 must be float32 (2,), as rank 0 sends, not float32 (3,); make "
        "them alike",
    ),
    "a tensor of the host": (
        lambda _: dist.all_reduce(torch.ones(2)),
        "No backend type associated with device type cpu\nall_reduce: its tensors must lie on the "
        "npu, not on the cpu; move them with .npu()",
    ),
    "a view with gaps": (
        lambda _: dist.all_reduce(empty(2, 3).t()),
        "Tensors must be contiguous\nall_reduce: its tensors must lie row after row, not with "
        "strides (1, 3); call .contiguous() on them",
    ),
    "an operation of bits": (
        lambda _: dist.all_reduce(empty(2), op=dist.ReduceOp.BOR),
        "Cannot use this ReduceOp with HCCL\nall_reduce: the operation must be SUM, AVG, PRODUCT, "
        "MAX or MIN, not BOR; use one of these",
    ),
    "a type that is not reduced": (
        lambda _: dist.all_reduce(torch.empty(2, dtype=torch.float64, device="npu")),
        f"all_reduce: the type must be one that HCCL reduces, of {TYPES}, not float64; convert the "
        f"tensor",
    ),
    "a mean of whole numbers": (
        lambda _: dist.all_reduce(torch.ones(2).int().npu(), op=dist.ReduceOp.AVG),
        "all_reduce: AVG must be of floating numbers, which a card divides, not of int32; take "
        "SUM, and divide yourself",
    ),
    "no room": (
        lambda _: dist.all_gather_single(empty(3), empty(2)),
        "all_gather: output must be 2 times input, float32 (2,), not float32 (3,); make it so",
    ),
    "too few tensors": (
        lambda _: dist.all_gather([empty(2)], empty(2)),
        "all_gather: the list of outputs must have a tensor for each of 2 ranks, not 1; pass as "
        "many",
    ),
    "rows that do not divide": (
        lambda _: dist.all_to_all_single(empty(3), empty(3)),
        "Tensor's dim 0 does not divide equally across group size\nall_to_all: the first dimension "
        "of output must be a multiple of 2 ranks, not 3; pass output_split_sizes",
    ),
    "splits of another sum": (
        lambda _: dist.all_to_all_single(empty(3), empty(3), [1, 1], [1, 2]),
        "Split sizes doesn't match total dim 0 size\nall_to_all: output_split_sizes must be 2 "
        "numbers that add up to 3, not [1, 1]; correct them",
    ),
    "splits that do not agree": (
        lambda _: dist.all_to_all_single(empty(3), empty(3), [1, 2], [1, 2]),
        "all_to_all: rank 1 must have room for the 8 bytes that rank 0 gives it, not for 4; make "
        "their split sizes agree",
    ),
    "a run within a run": (
        lambda _: distributed.run(lambda _: None, 2),
        "npusim.torch.distributed: run must be called outside of the ranks of another run, not "
        "within one; call it before or after",
    ),
    "another backend": (
        lambda _: dist.new_group([0, 1], backend="gloo"),
        "npusim.torch.distributed: groups of ranks that are threads must have the backend hccl "
        "alone, not gloo, which would wait for the others for ever; leave gloo out, or start "
        "processes with torchrun",
    ),
    "a device beyond": (
        lambda _: torch.npu.set_device(2),
        "NPU function error: aclrtSetDevice, error code is 107001\nnpusim.torch: the device must "
        "be npu:0, the one simulated card, not npu:2; use npu:0",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_on_every_rank(case: str) -> None:
    call, message = REFUSED[case]
    with pytest.raises((RuntimeError, ValueError), match=f"^{re.escape(message)}$"):
        two(call)
    # Nothing of the run is left.
    assert two(lambda rank: rank) == [0, 1]


def test_ranks_beyond_the_links_are_refused() -> None:
    message = (
        "collectives: all_reduce: cards must be as many in each server, up to 8 on ascend910b2, "
        "not 9 in 2; take a multiple of the servers, or more of them"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        on_ranks(9, lambda _: None)


def test_a_process_that_is_gone_is_said_with_what_gloo_says() -> None:
    message = (
        "all_reduce: every rank must come to it, but a process is gone or has not come before the "
        "group's timeout; look for the one that failed, or does not call it\nreset by peer"
    )
    right = pytest.raises(RuntimeError, match=f"^{re.escape(message)}$")
    with right, transport.all_there("all_reduce"):
        raise RuntimeError("reset by peer")
