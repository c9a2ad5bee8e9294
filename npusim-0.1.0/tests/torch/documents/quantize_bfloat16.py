"""torch_npu-npu_quantize.md: bfloat16 on Atlas A2."""

import torch
import torch_npu

x = torch.randn(1, 1, 12).bfloat16().npu()
scale = torch.tensor([0.1] * 12).bfloat16().npu()
output = torch_npu.npu_quantize(x, scale, None, torch.qint8, -1, False)
