"""310P: the one combination of types that its kernel takes, and what it asks of a call.

ops-transformer@c29bc10 gmm/grouped_matmul/README.md and op_host/grouped_matmul_def.cpp; torch_npu
2.14.0, the text of npu_grouped_matmul.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npusim.ops._contract import Contract

if TYPE_CHECKING:
    from npusim.ops.npu_grouped_matmul.problem import Problem

__all__ = ["CASE_NAMES", "INFERENCE", "TEMPLATE", "inference_limits", "require_tensor"]

INFERENCE = "Atlas inference"
CASE_NAMES = ("fp16",)
TEMPLATE = "coupled"
UNIT_N = 16


def require_tensor(contract: Contract, group_list: object, group_type: object) -> None:
    """Refuse the forms that 310P does not have: x by a list, and groups along k."""
    contract.require(
        not isinstance(group_list, list | tuple),
        f"group_list must be a tensor on {INFERENCE}, not a list of integers; pass one",
    )
    contract.require(
        group_type == 0,
        f"group_type must be 0 on {INFERENCE}, not {group_type}; multiply each x with matmul",
    )


def inference_limits(contract: Contract, p: Problem) -> None:
    """One tensor each, of whole blocks of columns."""
    contract.require(
        (len(p.x), len(p.weight)) == (1, 1),
        f"x and weight must be one tensor each on {INFERENCE}, not {len(p.x)} and "
        f"{len(p.weight)}; stack them",
    )
    n = p.weight_shape(0)[1]
    contract.require(
        n % UNIT_N == 0,
        f"n must be a multiple of {UNIT_N} on {INFERENCE}, not {n}; pad weight",
    )
