"""torch.distributed with the backend hccl, on two processes that torchrun starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import simulated_card  # noqa: F401

from npusim import collectives

SCRIPT = """
import json, os, sys
import torch, torch_npu
import torch.distributed as dist
from npusim.torch.clock import clock

dist.init_process_group(backend="hccl")
rank, other = dist.get_rank(), 1 - dist.get_rank()
torch.npu.set_device(rank)
found = {"device": torch.npu.current_device()}

x = torch.full((1 << 18,), rank + 1.0, device=f"npu:{rank}")
began_us = clock.now_us
dist.all_reduce(x)
found["sum"], found["us"] = x[-1].item(), clock.now_us - began_us

taken = torch.empty(3, dtype=torch.bfloat16).npu()
asked = [
    dist.P2POp(dist.isend, torch.full((3,), rank, dtype=torch.bfloat16).npu(), other),
    dist.P2POp(dist.irecv, taken, other),
]
for work in dist.batch_isend_irecv(asked):
    work.wait()
found["message"] = taken.tolist()

gathered = [None, None]
dist.all_gather_object(gathered, "rank " + "x" * 5000 * rank)
found["objects"] = [len(text) for text in gathered]
parts = torch.empty(2 + rank, dtype=torch.int64).npu()
given = torch.arange(3 - rank).npu() + 10 * rank
dist.all_to_all_single(parts, given, [1 + rank, 1], [1, 2 - rank])
found["parts"] = parts.tolist()
y = torch.tensor([rank]).npu()
dist.broadcast(y, src=1)
found["from 1"] = y.item()
work = dist.all_reduce(x, async_op=True)
work.wait()
of_both = dist.new_group(backend="cpu:gloo,npu:hccl")
on_host, on_card = torch.tensor([rank + 1.0]), torch.tensor([rank + 1.0]).npu()
before_us = clock.now_us
dist.all_reduce(on_host, group=of_both)
assert clock.now_us == before_us
dist.all_reduce(on_card, group=of_both)
found["of both"] = [on_host.item(), on_card.item()]
by_gloo = dist.new_group(backend="gloo")
dist.all_reduce(on_host, group=by_gloo)
found["by gloo"] = on_host.item()
try:
    dist.all_reduce(torch.ones(2 + rank).npu())
except RuntimeError as error:
    found["refused"] = str(error)
dist.destroy_process_group()
with open(f"{sys.argv[1]}/{rank}.json", "w") as file:
    json.dump(found, file)
"""
LIMIT_S = 240


def test_two_processes_have_bits_time_and_refusals_in_common(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ours = ["--nproc-per-node", "2", "-m", "npusim.torch", "-q", str(script), str(tmp_path)]
    ran = subprocess.run(
        [*launcher, *ours],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    first, second = (
        json.loads((tmp_path / f"{rank}.json").read_text("utf-8")) for rank in range(2)
    )
    took_us = collectives.time_us("all_reduce", 4 << 18, 2, "ascend910b2")
    for rank, found in enumerate((first, second)):
        assert found["device"] == rank
        assert found["sum"] == 3.0
        assert found["us"] == pytest.approx(took_us)
        assert found["objects"] == [5, 5005]
        assert found["from 1"] == 1
        assert found["of both"] == [3.0, 3.0]
        assert found["by gloo"] == 6.0
        assert found["refused"] == (
            "all_reduce: all ranks must call it alike, as rank 0 calls all_reduce float32 (2,) sum "
            "on ascend910b2, but rank 1 calls all_reduce float32 (3,) sum on ascend910b2; make the "
            "calls alike"
        )
    assert (first["message"], second["message"]) == ([1.0] * 3, [0.0] * 3)
    assert (first["parts"], second["parts"]) == ([0, 10], [1, 2, 11])
