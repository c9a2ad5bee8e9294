"""LinearWeightQuant: a graph, with the weight in FRACTAL_NZ."""

import torch
import torch_npu  # noqa: F401
import torchair as tng
from torch_npu.contrib.module import LinearWeightQuant
from torchair.configs.compiler_config import CompilerConfig

config = CompilerConfig()
config.debug.graph_dump.type = "pbtxt"
npu_backend = tng.get_npu_backend(compiler_config=config)
x = torch.randn((8192, 320), device="npu", dtype=torch.bfloat16)
weight = torch.randn((320, 256), device="npu", dtype=torch.int8)
antiquantscale = torch.randn((1, 256), device="npu", dtype=torch.bfloat16)
antiquantoffset = torch.randn((1, 256), device="npu", dtype=torch.bfloat16)
quantscale = torch.randn((1, 256), device="npu", dtype=torch.float)
quantoffset = torch.randn((1, 256), device="npu", dtype=torch.float)
model = LinearWeightQuant(
    in_features=320,
    out_features=256,
    bias=False,
    dtype=torch.bfloat16,
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
model.quant_scale.data = quantscale
model.quant_offset.data = quantoffset
tng.experimental.inference.use_internal_format_weight(model)
eager = model
model = torch.compile(model, backend=npu_backend, dynamic=False)
output = model(x)
