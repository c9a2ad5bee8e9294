"""Errors in two parts: the first line as a user of a card would see it, then what to do."""

from __future__ import annotations

__all__ = ["invalid_device", "mixed_devices", "not_modelled"]


def invalid_device(device: object) -> RuntimeError:
    """A device beyond the one card, as the runtime reports it (code 107001)."""
    return RuntimeError(
        "NPU function error: aclrtSetDevice, error code is 107001\n"
        f"npusim.torch: the device must be npu:0, the one simulated card, not {device}; use npu:0"
    )


def mixed_devices(op: str) -> RuntimeError:
    """Tensors of the host and of the card in one operation."""
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"npu:0 and cpu!\n{op}: its tensors must all be on npu:0, not on the host too; "
        "move them with .npu()"
    )


def not_modelled(who: str, what: str) -> NotImplementedError:
    """Something that a card does and npusim does not."""
    return NotImplementedError(f"npusim.torch: {who} must not {what}; move its tensors with .cpu()")
