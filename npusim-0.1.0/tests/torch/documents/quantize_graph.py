"""torch_npu-npu_quantize.md: a graph, with the default axis."""

import torch
import torch_npu
import torchair as tng
from torchair.configs.compiler_config import CompilerConfig
from torchair.ge_concrete_graph import ge_apis as ge  # noqa: F401

x = torch.randn((2, 3, 12), dtype=torch.float16).npu()
scale = torch.tensor(([3] * 12), dtype=torch.float16).npu()
div_mode = False


class Quantized(torch.nn.Module):
    def forward(self, x, scale, zero_points, dst_type, div_mode):
        return torch_npu.npu_quantize(
            x, scale, zero_points=zero_points, dtype=dst_type, div_mode=div_mode
        )


eager = Quantized()
config = CompilerConfig()
npu_backend = tng.get_npu_backend(compiler_config=config)
config.debug.graph_dump.type = "pbtxt"
model = torch.compile(eager, fullgraph=True, backend=npu_backend, dynamic=True)
output = model(x, scale, None, dst_type=torch.qint8, div_mode=div_mode)
print("x:", x.shape, x)
print("output:", output.shape, output)
