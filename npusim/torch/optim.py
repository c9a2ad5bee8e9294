"""`torch_npu.optim`: optimizers that a card runs on parameters fused into one contiguous tensor.

Here a step is that of torch's optimizer, on lists of tensors: its kernels process all parameters at
once, like those of a card on the fused tensor (the times are assumed to be equal). Source:
op-plugin@517f2e7, the documents torch_npu-optim-NpuFused*.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from npusim.torch.refusals import others_of

__all__ = ["NpuFusedAdadelta", "NpuFusedAdam", "NpuFusedAdamW", "NpuFusedRMSprop", "NpuFusedSGD"]


class _Fused(torch.optim.Optimizer):
    """The methods that all fused optimizers add to torch's optimizer."""

    def __init__(self, params: Iterable[Any], **given: Any) -> None:
        super().__init__(params, **given, foreach=True)

    def clip_grad_norm_fused_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Scale all gradients so that their norm is at most *max_norm*; returns the old norm."""
        parameters = [each for group in self.param_groups for each in group["params"]]
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, foreach=True)


class NpuFusedAdam(_Fused, torch.optim.Adam):
    """torch.optim.Adam."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad
        )


class NpuFusedAdamW(_Fused, torch.optim.AdamW):
    """torch.optim.AdamW."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad
        )


class NpuFusedAdadelta(_Fused, torch.optim.Adadelta):
    """torch.optim.Adadelta."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
    ) -> None:
        super().__init__(params, lr=lr, rho=rho, eps=eps, weight_decay=weight_decay)


class NpuFusedRMSprop(_Fused, torch.optim.RMSprop):
    """torch.optim.RMSprop."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum,
            centered=centered,
        )  # fmt: skip


class NpuFusedSGD(_Fused, torch.optim.SGD):
    """torch.optim.SGD."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay,
            nesterov=nesterov,
        )  # fmt: skip


__getattr__ = others_of("torch_npu.optim")
