"""Scripts written for CUDA run on the card once they import `transfer_to_npu`."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch._C", reason="PyTorch is not installed: pip install 'npusim[torch]'")

SCRIPT = """
    import torch
    import torch_npu
    from torch_npu.contrib import transfer_to_npu

    x = torch.ones(2, 3, device="cuda", dtype=torch.bfloat16)
    print(x.device, x.is_cuda, torch.cuda.is_available(), torch.cuda.device_count())
    layer = torch.nn.Linear(3, 4)
    print(layer.cuda().weight.device, layer.to("cuda:0").bias.device)
    print(torch.zeros(3).to(torch.device("cuda")).device, torch.ones(2).cuda().device)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        print(torch.nn.Linear(3, 4).cuda()(x).dtype)
    torch.manual_seed(1)
    first = torch.randn(2, generator=torch.Generator(device="cuda").manual_seed(1), device="cuda")
    print(torch.equal(first, torch.randn(2, device="cuda")))
    start = torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(torch.cuda.Stream()):
        start.record()
    torch.cuda.synchronize()
    print(torch.cuda.get_device_name(0), torch.cuda.memory_allocated("cuda:0") > 0)
    print(torch.cuda.CUDAGraph is torch.npu.NPUGraph, torch.cuda.DoubleTensor([1]).dtype)
    try:
        torch.cuda.nccl
    except AttributeError as error:
        print(str(error).partition(";")[0])
"""

PRINTED = """\
npu:0 True True 1
npu:0 npu:0
npu:0 npu:0
torch.bfloat16
True
Ascend910B2 True
True torch.float32
module 'torch_npu.npu' has no attribute 'nccl'
npusim.torch: torch_npu.npu.nccl must be a name of torch_npu 2.14 or older, but is none
"""


def test_a_script_for_cuda_runs_on_the_card() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "npusim.torch", "-q", "-c", textwrap.dedent(SCRIPT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == (PRINTED, 0), done.stderr
