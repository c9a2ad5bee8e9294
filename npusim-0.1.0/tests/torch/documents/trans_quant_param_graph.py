"""torch_npu-npu_trans_quant_param.md: a graph that also multiplies."""

import logging
import os

import numpy as np  # noqa: F401
import torch
import torch_npu
import torchair as tng
from torchair.configs.compiler_config import CompilerConfig
from torchair.core.utils import logger
from torchair.ge_concrete_graph import ge_apis as ge  # noqa: F401

logger.setLevel(logging.DEBUG)
os.environ["ENABLE_ACLNN"] = "true"
config = CompilerConfig()
npu_backend = tng.get_npu_backend(compiler_config=config)


class Multiplied(torch.nn.Module):
    def forward(self, x1, x2, scale, offset, bias):
        packed = torch_npu.npu_trans_quant_param(scale, offset)
        return torch_npu.npu_quant_matmul(x1, x2, packed, offset=offset, bias=bias)


cpu_model = Multiplied()
model = cpu_model.npu()
x1 = torch.randint(-1, 1, (15, 1, 512), dtype=torch.int8)
x2 = torch.randint(-1, 1, (15, 512, 128), dtype=torch.int8)
scale = torch.randn(1, dtype=torch.float32)
offset = torch.randn(1, dtype=torch.float32)
bias = torch.randint(-1, 1, (15, 1, 128), dtype=torch.int32)
model = torch.compile(cpu_model, backend=npu_backend, dynamic=True)
inputs = x1.npu(), x2.npu(), scale.npu(), offset.npu(), bias.npu()
output = model(*inputs)
print(output.shape)
print(output)
