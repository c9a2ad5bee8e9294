"""torch_npu-npu_trans_quant_param.md: one operator at a time."""

import torch
import torch_npu

scale = torch.randn(16, dtype=torch.float32)
offset = torch.randn(16, dtype=torch.float32)
output = torch_npu.npu_trans_quant_param(scale.npu(), offset.npu())
