"""LinearWeightQuant: one operator at a time."""

import torch
import torch_npu
from torch_npu.contrib.module import LinearWeightQuant

x = torch.randn((8192, 320), device="npu", dtype=torch.float16)
weight = torch.randn((320, 256), device="npu", dtype=torch.int8)
antiquantscale = torch.randn((1, 256), device="npu", dtype=torch.float16)
antiquantoffset = torch.randn((1, 256), device="npu", dtype=torch.float16)
quantscale = torch.randn((1, 256), device="npu", dtype=torch.float)
quantoffset = torch.randn((1, 256), device="npu", dtype=torch.float)
model = LinearWeightQuant(
    in_features=320,
    out_features=256,
    bias=False,
    dtype=torch.float16,
    antiquant_offset=True,
    quant_scale=True,
    quant_offset=True,
    antiquant_group_size=0,
    device=torch.device("npu:0"),
)
model.npu()
model.weight.data = weight.transpose(-1, -2)
model.antiquant_scale.data = antiquantscale.transpose(-1, -2)
model.antiquant_offset.data = antiquantoffset.transpose(-1, -2)
model.quant_scale.data = torch_npu.npu_trans_quant_param(quantscale, quantoffset)
model.quant_offset.data = quantoffset
output = model(x)
