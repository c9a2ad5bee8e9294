"""npu_moe_distribute_dispatch and npu_moe_distribute_combine, and their second versions.

:mod:`npusim.collectives.experts` computes values and times.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from npusim.collectives import experts
from npusim.data.dtypes import Array
from npusim.torch import card
from npusim.torch.distributed.declared import TRIPLE_ROOM, local_experts, most_rows
from npusim.torch.distributed.fused import Contract
from npusim.torch.distributed.group import HcclGroup
from npusim.torch.distributed.tensors import array_of, bytes_of, described, fill
from npusim.torch.distributed.transport import Call

__all__ = ["combine", "dispatch"]

FLOATS = torch.float16, torch.bfloat16
COLUMNS = {"Atlas A2": (1, 7168), "Atlas A3": (1024, 8192)}
COLUMN_UNIT = 32
TOKENS = {"Atlas A2": 256, "Atlas A3": 512}
CHOSEN = 16
"""Most experts for a token that the full mesh accepts (torch_npu's documents)."""
SOURCE = 3
"""Numbers of a source: rank, token and place, assumed to be stored in this order."""
INT32_BYTES = 4
NOT_SIMULATED: dict[str, tuple[Any, ...]] = {
    "x_active_mask": (None,),
    "elastic_info": (None,),
    "performance_info": (None,),
    "activation_scale": (None,),
    "weight_scale": (None,),
    "group_list": (None,),
    "ori_x": (None,),
    "const_expert_alpha_1": (None,),
    "const_expert_alpha_2": (None,),
    "const_expert_v": (None,),
    "tp_world_size": (0, 1),
    "shared_expert_rank_num": (0,),
    "comm_quant_mode": (0,),
    "comm_alg": ("", "fullmesh_v1"),
    "zero_expert_num": (0,),
    "copy_expert_num": (0,),
    "const_expert_num": (0,),
    "y_dtype": (None,),
    "x_dtype": (None,),
    "scales_dtype": (None,),
    "out_dtype": (0,),
}
"""Parameter -> its supported values."""


def dispatch(contract: Contract) -> tuple[torch.Tensor, ...]:
    """Send tokens to their experts."""
    given, group = contract.given, _group(contract)
    contract.only(**NOT_SIMULATED, quant_mode=(0, 2))
    x, ids = contract.tensor("x", 2, *FLOATS), contract.tensor("expert_ids", 2, torch.int32)
    _check(contract, x, ids)
    smooth, size, is_int8 = given["scales"], group.size(), given["quant_mode"] == 2
    if smooth is not None:
        contract.tensor("scales", 2, torch.float32)
        wanted = given["moe_expert_num"], x.shape[1]
        contract.require(
            is_int8 and tuple(smooth.shape) == wanted,
            lambda: (
                f"scales must go with quant_mode 2 and have shape {wanted}, not "
                f"{tuple(smooth.shape)} with {given['quant_mode']}; leave them out or make them so"
            ),
        )
    whole = torch.cat([bytes_of(x), bytes_of(ids)])
    begin_us, calls, parts = group.share(contract.op, _alike(contract, x, ids), whole)
    outputs = _room(contract, x, ids)
    row_bytes = experts.row_bytes(
        x.shape[1], 1 if is_int8 else x.element_size(), has_scale=is_int8, has_source=True
    )
    most = ids.numel()
    if card.computes_values():
        xs, chosen = _tokens(parts, x, ids)
        of_rank = _loads(chosen, given["moe_expert_num"], size)
        most = max(*of_rank.tolist(), *(each.size for each in chosen))
        arrived = experts.dispatched(
            *(xs, chosen, group.rank(), given["moe_expert_num"]),
            None if smooth is None else array_of(bytes_of(smooth), smooth).reshape(smooth.shape),
            quantises=is_int8,
        )
        contract.require(
            len(arrived.rows) <= len(outputs[0]),
            lambda: (
                f"global_bs must make room for the {len(arrived.rows)} rows that come, not for "
                f"{len(outputs[0])}; pass the most tokens of a rank times the ranks"
            ),
        )
        _put(outputs, arrived, array_of(bytes_of(ids), ids), given)
    time_us = _time_us("dispatch", most * row_bytes, group, calls)
    group.spend(_kernel(contract, "MoeDistributeDispatch"), begin_us, time_us, described(x))
    return outputs


def combine(contract: Contract) -> torch.Tensor:
    """Send the rows of experts back to their tokens, and combine them."""
    given, group = contract.given, _group(contract)
    contract.only(**NOT_SIMULATED)
    rows = contract.tensor("expand_x", 2, *FLOATS)
    ids = contract.tensor("expert_ids", 2, torch.int32)
    _check(contract, rows, ids)
    weights = contract.tensor("expert_scales", 2, torch.float32)
    sums = contract.tensor("ep_send_counts", 1, torch.int32)
    wanted = local_experts(given) * group.size()
    contract.require(
        len(sums) >= wanted and weights.shape == ids.shape,
        lambda: (
            f"ep_send_counts must have {wanted} numbers and expert_scales the shape "
            f"{tuple(ids.shape)} of expert_ids, not {len(sums)} and {tuple(weights.shape)}; pass "
            f"what dispatch and gating give"
        ),
    )
    output = torch.empty((len(ids), rows.shape[1]), dtype=rows.dtype, device="npu")
    come = int(_array(sums)[wanted - 1]) if card.computes_values() else ids.numel()
    sources = given.get("assist_info_for_combine")
    index = bytes_of(sums)[: wanted * INT32_BYTES]
    if sources is not None:
        index = bytes_of(sources)[: come * SOURCE * INT32_BYTES]
    whole = torch.cat([bytes_of(rows)[: come * rows.shape[1] * rows.element_size()], index])
    begin_us, calls, parts = group.share(contract.op, _alike(contract, rows, ids), whole)
    most = come
    if card.computes_values():
        finder = _by_source if sources is not None else _by_count
        found, most = finder(contract, group.rank(), parts, rows.shape[1])
        shared = given["shared_expert_x"]
        of_shared = None if shared is None else _array(shared)
        total = experts.combined(found, _array(weights).reshape(weights.shape), of_shared)
        fill(output, total)
    size_bytes = experts.row_bytes(
        rows.shape[1], rows.element_size(), has_scale=False, has_source=False
    )
    time_us = _time_us("combine", most * size_bytes, group, calls)
    group.spend(_kernel(contract, "MoeDistributeCombine"), begin_us, time_us, described(rows))
    return output


# ---- checks of a call ----


def _group(contract: Contract) -> HcclGroup:
    given = contract.given
    contract.require(
        contract.series in COLUMNS,
        f"the chip must be of Atlas A2 or Atlas A3, not of {contract.series}; use all_to_all",
    )
    group = contract.group("group_ep")
    for name, right in (("ep_world_size", group.size()), ("ep_rank_id", group.rank())):
        contract.require(
            given[name] == right,
            f"{name} must be {right}, as the group has it, not {given[name]}; pass that",
        )
    contract.require(
        given["moe_expert_num"] > 0 and given["moe_expert_num"] % group.size() == 0,
        lambda: (
            f"moe_expert_num must be a multiple of {group.size()} ranks, not "
            f"{given['moe_expert_num']}; pad the experts"
        ),
    )
    return group


def _check(contract: Contract, rows: torch.Tensor, ids: torch.Tensor) -> None:
    (least, most), (tokens, chosen) = COLUMNS[contract.series], ids.shape
    columns = rows.shape[1]
    contract.require(
        least <= columns <= most and columns % COLUMN_UNIT == 0,
        lambda: (
            f"tokens must have {least} to {most} elements on {contract.series}, a multiple of "
            f"{COLUMN_UNIT}, not {columns}; pad them"
        ),
    )
    most_tokens = TOKENS[contract.series]
    contract.require(
        0 < tokens <= most_tokens and 0 < chosen <= CHOSEN,
        lambda: (
            f"expert_ids must have up to {most_tokens} tokens and {CHOSEN} experts of each on "
            f"{contract.series}, not shape {tuple(ids.shape)}; cut the batch"
        ),
    )
    if card.computes_values():
        numbers = _array(ids)
        contract.require(
            bool(((numbers >= 0) & (numbers < contract.given["moe_expert_num"])).all()),
            lambda: (
                f"expert_ids must be 0 to {contract.given['moe_expert_num'] - 1}, not "
                f"{int(numbers.min())} to {int(numbers.max())}; correct them"
            ),
        )


def _alike(contract: Contract, rows: torch.Tensor, ids: torch.Tensor) -> str:
    """The description that must be equal on all ranks; the number of tokens may differ."""
    given = contract.given
    dtype = str(rows.dtype).removeprefix("torch.")
    return (
        f"{dtype} of {rows.shape[1]}, {ids.shape[1]} of {given['moe_expert_num']} experts, "
        f"mode {given.get('quant_mode', 0)}, {given['global_bs']} tokens"
    )


def _kernel(contract: Contract, name: str) -> str:
    return f"{name}V2" if contract.op.endswith("_v2") else name


def _time_us(step: Any, size_bytes: int, group: HcclGroup, calls: list[Call]) -> float:
    return experts.routing_us(step, size_bytes, len(calls), card.spec(), group.servers)


# ---- values ----


def _array(tensor: torch.Tensor) -> Array:
    return array_of(bytes_of(tensor.contiguous()), tensor)


def _tokens(
    parts: list[torch.Tensor], x: torch.Tensor, ids: torch.Tensor
) -> tuple[list[Array], list[Array]]:
    """The tokens of each rank, and their experts."""
    columns, chosen = x.shape[1], ids.shape[1]
    row, choice = columns * x.element_size(), chosen * INT32_BYTES
    xs, numbers = [], []
    for part in parts:
        count = len(part) // (row + choice)
        xs.append(array_of(part[: count * row], x).reshape(count, columns))
        numbers.append(array_of(part[count * row :].clone(), ids).reshape(count, chosen))
    return xs, numbers


def _loads(chosen: list[Array], count: int, ranks: int) -> Array:
    """The number of rows that each rank receives."""
    every = np.concatenate([each.reshape(-1) for each in chosen])
    return np.bincount(every // (count // ranks), minlength=ranks)


def _room(contract: Contract, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The outputs of dispatch. Unused rows are zero here, and undefined on a card."""
    given = contract.given
    rows, local = most_rows(given, *ids.shape), local_experts(given)
    is_v2 = contract.op.endswith("_v2")
    shapes: list[tuple[tuple[int, ...], torch.dtype]] = [
        ((rows, x.shape[1]), torch.int8 if given["quant_mode"] == 2 else x.dtype),
        ((rows,), torch.float32),
        ((rows * TRIPLE_ROOM if is_v2 else ids.numel(),), torch.int32),
        ((local,), torch.int64),
        ((local * given["ep_world_size"],), torch.int32),
        ((given["tp_world_size"],), torch.int32),
        ((0,), torch.float32),
    ]
    return tuple(torch.empty(shape, dtype=dtype, device="npu") for shape, dtype in shapes)


def _put(
    outputs: tuple[torch.Tensor, ...], arrived: experts.Arrived, ids: Array, given: Any
) -> None:
    rows, scales, index, tokens, sums, *rest = outputs
    is_v2 = "comm_alg" in given
    counts = arrived.tokens
    if given["expert_token_nums_type"] == 0:
        counts = np.cumsum(counts)
    found = arrived.sources if is_v2 else experts.earlier(ids)
    for output, values in (
        *((rows, arrived.rows), (scales, arrived.scales), (index, found)),
        *((tokens, counts), (sums, arrived.sums), *((each, np.empty(0)) for each in rest)),
    ):
        padded = np.zeros(output.numel() * output.element_size(), np.uint8)
        flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        padded[: len(flat)] = flat
        fill(output, padded)


def _by_source(
    contract: Contract, rank: int, parts: list[torch.Tensor], columns: int
) -> tuple[Array, int]:
    """The rows of each token, by the source that each row carries, and the most rows of a rank."""
    rows, ids = contract.given["expand_x"], contract.given["expert_ids"]
    row, source = columns * rows.element_size(), SOURCE * INT32_BYTES
    found, is_there = _empty(rows, ids)
    most = ids.numel()
    for part in parts:
        count = len(part) // (row + source)
        own = array_of(part[: count * row], rows).reshape(count, columns)
        of = part[count * row :].clone().numpy().view(np.int32).reshape(count, SOURCE)
        mine = of[:, 0] == rank
        tokens, places = of[mine, 1], of[mine, 2]
        contract.require(
            bool((tokens < len(ids)).all() and (places < ids.shape[1]).all()),
            "assist_info_for_combine must be what dispatch gave, not name tokens that there are "
            "not; pass that",
        )
        found[tokens, places], is_there[tokens, places] = own[mine], True
        most = max(most, count)
    contract.require(
        bool(is_there.all()),
        "assist_info_for_combine must be what dispatch gave, not lack rows of some token; pass "
        "that on every rank",
    )
    return found, most


def _by_count(
    contract: Contract, rank: int, parts: list[torch.Tensor], columns: int
) -> tuple[Array, int]:
    """:func:`_by_source` from counts: rows are sorted by expert and rank, in the order of
    `expand_idx`."""
    given = contract.given
    rows, ids, size = given["expand_x"], given["expert_ids"], len(parts)
    local = local_experts(given)
    index = _array(given["expand_idx"]).reshape(ids.shape)
    found, _ = _empty(rows, ids)
    most, behind = ids.numel(), local * size * INT32_BYTES
    chosen = _array(ids).reshape(ids.shape)
    for owner, part in enumerate(parts):
        own = array_of(part[: len(part) - behind], rows).reshape(-1, columns)
        sums = part[len(part) - behind :].clone().numpy().view(np.int32)
        begins = np.concatenate([[0], sums[:-1]]).reshape(local, size)[:, rank]
        tokens, places = np.nonzero(chosen // local == owner)
        wanted = begins[chosen[tokens, places] % local] + index[tokens, places]
        contract.require(
            bool((wanted < len(own)).all()),
            "ep_send_counts and expand_idx must be what dispatch gave, not name rows that there "
            "are not; pass these",
        )
        found[tokens, places] = own[wanted]
        most = max(most, len(own))
    return found, most


def _empty(rows: torch.Tensor, ids: torch.Tensor) -> tuple[Array, Array]:
    """Empty arrays for the rows of each token, and for whether a row exists."""
    dtype = array_of(torch.empty(0, dtype=torch.uint8), rows).dtype
    shape = tuple(ids.shape)
    return np.zeros((*shape, rows.shape[1]), dtype), np.zeros(shape, np.bool_)
