"""torch_npu-npu_quantize.md: float32 on Atlas inference."""

import torch
import torch_npu

x = torch.randn((2, 3, 12), dtype=torch.float).npu()
scale = torch.tensor(([3] * 12), dtype=torch.float).npu()
output = torch_npu.npu_quantize(x, scale, None, torch.qint8, -1, False)
