"""The functions that run for operators of torch_npu that communicate with other cards."""

from __future__ import annotations

from collections.abc import Callable

import torch

from npusim.ops import TorchFunction
from npusim.torch.distributed.declared import FUSED
from npusim.torch.schemas import bind

__all__ = ["kernels"]

Kernel = Callable[..., object]


def kernels() -> list[tuple[TorchFunction, Kernel]]:
    """Each function of torch_npu, and the kernel that runs for it."""
    return [(function, _kernel(function)) for function in FUSED.values()]


def _kernel(function: TorchFunction) -> Kernel:
    schema = torch._C.parse_schema(f"npu::{function.schema}")

    def real(*args: object, **kwargs: object) -> object:
        # Imported here because groups are slow to import and most scripts do not use them.
        from npusim.torch.distributed import experts, products
        from npusim.torch.distributed.fused import Contract

        run = {
            "npu_mm_all_reduce_base": products.mm_all_reduce_base,
            "npu_all_gather_base_mm": products.all_gather_base_mm,
            "npu_mm_reduce_scatter_base": products.mm_reduce_scatter_base,
            "npu_moe_distribute_dispatch": experts.dispatch,
            "npu_moe_distribute_dispatch_v2": experts.dispatch,
            "npu_moe_distribute_combine": experts.combine,
            "npu_moe_distribute_combine_v2": experts.combine,
        }[function.name]
        given = bind(schema, args, kwargs)
        return run(Contract(function.name, function.aclnn({}), given))

    return real
