"""Errors in two parts: the first line as on a card, then what to do."""

from __future__ import annotations

import torch

from npusim.data.errors import Code, OpError
from npusim.ops._contract import listed
from npusim.torch import numbering

__all__ = [
    "as_on_card",
    "device_number",
    "invalid_device",
    "mixed_devices",
    "not_modelled",
    "require_choice",
    "require_option",
]


def invalid_device(device: object) -> RuntimeError:
    """The error for a device that does not exist, as reported by the runtime (code 107001)."""
    own = f"npu:{numbering.current()}"
    return RuntimeError(
        "NPU function error: aclrtSetDevice, error code is 107001\n"
        f"npusim.torch: the device must be {own}, the one simulated card, not {device}; use {own}"
    )


def device_number(device: object) -> int:
    """The number of *device*: None, a number, or an argument of `torch.device`.

    Only the card of this process exists.
    """
    if device is None:
        return numbering.current()
    if isinstance(device, int):
        index: int | None = device
    else:
        named = torch.device(device)
        if named.type != "npu":
            raise ValueError(
                f"Expected a npu device, but got: {named}\n"
                f"npusim.torch: a device must be of npu here, not {named}; name npu:0"
            )
        index = named.index
    if not numbering.is_current(index):
        raise invalid_device(f"npu:{index}")
    return numbering.current()


def mixed_devices(op: str) -> RuntimeError:
    """The error for tensors on the host and on the card in one operation."""
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"npu:0 and cpu!\n{op}: its tensors must all be on npu:0, not on the host too; "
        "move them with .npu()"
    )


def not_modelled(
    who: str, what: str, remedy: str = "move its tensors with .cpu()"
) -> NotImplementedError:
    """The error for something that a card supports and npusim does not."""
    return NotImplementedError(f"npusim.torch: {who} must not {what}; {remedy}")


def require_option(function: str, name: str, found: object, *simulated: object) -> None:
    """Raise NotImplementedError unless option *name* of *function* is one of *simulated*.

    With another value a card gives other results, so it is never ignored.
    """
    if found not in simulated:
        known = " or ".join(map(repr, simulated))
        raise NotImplementedError(
            f"{function}: {name} must be {known}, not {found!r}, which is not simulated; pass "
            f"{simulated[-1]!r}"
        )


def require_choice(function: str, name: str, found: object, *choices: str) -> None:
    """Raise ValueError unless argument *name* of *function* is one of *choices*."""
    if found not in choices:
        raise ValueError(
            f"{function}: {name} must be {listed(choices)}, not {found!r}; choose one of these"
        )


def as_on_card(error: OpError, op: str, acl: str, refused: str | None = None) -> OpError:
    """*error* with the first line that it has on a card: *refused*, or that of *acl*."""
    code = error.code
    first = f"{op}: NPU function error: call {acl} failed, error code is {code.value}"
    if refused is not None:
        first = refused
    elif code is Code.AICORE_EXCEPTION:
        first = f"ACL stream synchronize failed, error code:{code.value}"
    elif code is Code.OUT_OF_MEMORY:
        first = "NPU out of memory."
    return OpError(code, f"{first}\n{str(error).removesuffix(f' [{code.value}]')}")
