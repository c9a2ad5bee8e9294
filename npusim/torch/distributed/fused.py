"""The group and the checks that operators with communication between cards share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.distributed import distributed_c10d

from npusim.data.arguments import Arguments
from npusim.data.errors import Code, OpError, shown
from npusim.torch import card
from npusim.torch.distributed.group import HcclGroup
from npusim.torch.errors import as_on_card

__all__ = ["Contract"]


class Contract:
    """A call of an operator, and the checks of its arguments."""

    def __init__(self, op: str, acl: str, given: Arguments) -> None:
        self.op, self._acl, self.given = op, acl, given
        self.series = card.spec().series

    def refuse(self, text: str, code: Code = Code.INVALID_PARAMETER) -> NoReturn:
        """Raise the error that a card would raise, with *text*."""
        raise as_on_card(OpError(code, f"{self.op}: {text}"), self.op, self._acl) from None

    def require(self, holds: bool, text: Callable[[], str] | str) -> None:
        """Raise the error with *text* unless the condition *holds*."""
        if not holds:
            self.refuse(text if isinstance(text, str) else text())

    def tensor(self, name: str, dims: int, *dtypes: torch.dtype) -> torch.Tensor:
        """The tensor *name*, which must have *dims* dimensions and one of *dtypes*."""
        found = self.given[name]
        names = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        self.require(
            isinstance(found, torch.Tensor) and found.is_npu,
            f"{name} must lie on the npu, not be {_kind(found)}; move it with .npu()",
        )
        self.require(
            found.dim() == dims and found.dtype in dtypes,
            lambda: (
                f"{name} must have {dims} dimensions of {names}, not shape {tuple(found.shape)} of "
                f"{str(found.dtype).removeprefix('torch.')}; make it so"
            ),
        )
        tensor: torch.Tensor = found
        return tensor

    def only(self, **values: tuple[Any, ...]) -> None:
        """Raise an error if a parameter is not one of the *values* that are simulated."""
        for name, known in values.items():
            value = self.given.get(name, known[0])
            if not any(value is each or value == each for each in known):
                words = " or ".join(map(str, known))
                self.refuse(
                    f"{name} must be {words}, which is what npusim simulates, not {shown(value)}; "
                    f"leave it out",
                    Code.UNSUPPORTED,
                )

    def group(self, parameter: str) -> HcclGroup:
        """The group that *parameter* names."""
        name = self.given[parameter]
        known = {
            group.get_hccl_comm_name(group.rank()): group
            for group in distributed_c10d._world.pg_map
            if isinstance(group, HcclGroup)
        }
        if name not in known:
            names = ", ".join(map(repr, known)) or "of which there is none"
            self.refuse(
                f"{parameter} must be the name of a group of hccl, {names}, not {name!r}; pass "
                f"what group._get_backend(torch.device('npu')).get_hccl_comm_name(rank) gives"
            )
        return known[name]


def _kind(value: object) -> str:
    return f"on the {value.device.type}" if isinstance(value, torch.Tensor) else shown(value)
