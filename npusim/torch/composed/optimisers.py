"""Optimizer steps: each is one kernel, whose values torch computes on the host.

Sources: op-plugin@517f2e7 ApplyAdamWKernelNpuOpApi.cpp and ApplyAdamKernelNpu.cpp. The powers of
both betas are those of the previous step: the kernel multiplies them by beta once more.
"""

from __future__ import annotations

import torch

from npusim.torch import card
from npusim.torch.fallback import on_host
from npusim.torch.works.call import bits_of
from npusim.torch.works.streams import Stream
from npusim.torch.works.training import ADAM

__all__ = ["apply_adam", "apply_adam_w"]

Moments = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def apply_adam_w(
    beta1_power: float,
    beta2_power: float,
    lr: float,
    weight_decay: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: torch.Tensor,
    max_grad_norm: torch.Tensor | None,
    amsgrad: bool | None,
    maximize: bool | None,
    *,
    out: Moments,
) -> Moments:
    """A step of AdamW, which updates the parameter and both moments in place."""
    first, second = 1 - beta1_power * beta1, 1 - beta2_power * beta2

    @on_host
    def step(var: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> None:
        g = -grad.float() if maximize else grad.float()
        m.copy_(m.float() * beta1 + g * (1 - beta1))
        v.copy_(v.float() * beta2 + g * g * (1 - beta2))
        largest = v.float()
        if amsgrad and max_grad_norm is not None:
            largest = torch.maximum(max_grad_norm.float(), largest)
            max_grad_norm.copy_(largest)
        below = (largest / second).sqrt() + epsilon
        var.copy_(var.float() * (1 - lr * weight_decay) - lr / first * m.float() / below)

    step(*out)
    _play("ApplyAdamW", grad, out)
    return out


def apply_adam(
    beta1_power: float,
    beta2_power: float,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: torch.Tensor,
    use_locking: bool | None,  # noqa: ARG001
    use_nesterov: bool | None,
    *,
    out: Moments,
) -> Moments:
    """A step of Adam, which updates the parameter and both moments in place."""
    # Before the first step both powers are 0, so the kernel divides by 0.
    rate = torch.tensor(lr * (1 - beta2_power) ** 0.5) / (1 - beta1_power)

    @on_host
    def step(var: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> None:
        g = grad.float()
        m.copy_(m.float() + (g - m.float()) * (1 - beta1))
        v.copy_(v.float() + (g * g - v.float()) * (1 - beta2))
        ahead = m.float() * beta1 + g * (1 - beta1) if use_nesterov else m.float()
        var.copy_(var.float() - rate * ahead / (v.float().sqrt() + epsilon))

    step(*out)
    _play("ApplyAdamD", grad, out)
    return out


def _play(kernel: str, grad: torch.Tensor, out: Moments) -> None:
    """Advance the clock by the time of the kernel."""
    stores = tuple(map(bits_of, out))
    loads = (*stores, bits_of(grad))
    card.play(Stream(kernel=kernel, elements=grad.numel(), loads=loads, stores=stores, steps=ADAM))
