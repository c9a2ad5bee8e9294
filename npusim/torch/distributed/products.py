"""Matrix products fused with collectives: npu_mm_all_reduce_base and similar operators.

Rows are split into the tiles of :mod:`npusim.collectives.pipelined`. Each tile is multiplied like a
separate product in npusim, with the same bits, and reduced or gathered separately. The launch is
paid once for all tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import torch

from npusim import collectives
from npusim.collectives.pipelined import Fused, gathered_us, move, reduced_us, tiles
from npusim.collectives.times import Estimate
from npusim.data.errors import OpError
from npusim.torch import card
from npusim.torch.clock import clock
from npusim.torch.distributed.fused import Contract
from npusim.torch.distributed.group import HcclGroup
from npusim.torch.distributed.tensors import array_of, bytes_of, described, fill, fill_bytes
from npusim.torch.kernels import launch
from npusim.torch.relabel import overwrite, to_host, to_npu
from npusim.torch.views import cast, contiguous

__all__ = ["all_gather_base_mm", "mm_all_reduce_base", "mm_reduce_scatter_base"]

FLOATS = torch.float16, torch.bfloat16
LEAST_K, MOST_K = 256, 65_534
"""Limits of k for all_gather and reduce_scatter (torch_npu's documents)."""
RANKS = {"Atlas A2": (2, 4, 8), "Atlas A3": (2, 4, 8, 16, 32), "Atlas inference": (2, 4)}


@dataclass
class Product:
    """The products of a call, tile by tile, and their times."""

    contract: Contract
    times_us: list[float] = field(default_factory=list)
    """The time of each tile, without its launch."""
    launch_us: float = 0.0

    def __call__(self, rows: torch.Tensor, begin: int = 0) -> torch.Tensor:
        """Multiply *rows*, whose first has the index *begin*, by x2."""
        with clock.apart() as events:
            try:
                found = self._multiplied(rows, slice(begin, begin + len(rows)))
            except OpError as error:
                self.contract.refuse(str(error).removesuffix(f" [{error.code.value}]"), error.code)
        self.launch_us = max([self.launch_us, *(event.launch_us for event in events)])
        self.times_us.append(sum(event.time_us - event.launch_us for event in events))
        return found

    def _multiplied(self, rows: torch.Tensor, of: slice) -> torch.Tensor:
        given: Any = self.contract.given
        x2, bias, npu = given["x2"], given["bias"], torch.ops.npu
        if given.get("dequant_scale") is not None:
            scale, pertoken = given["dequant_scale"], given["pertoken_scale"]
            is_whole = scale.dtype == torch.bfloat16
            found = npu.npu_quant_matmul(
                *(rows, x2, scale),
                pertoken_scale=None if pertoken is None else pertoken.reshape(-1)[of],
                bias=bias,
                output_dtype=torch.bfloat16 if is_whole else torch.float16,
            )
        elif given.get("antiquant_scale") is not None:
            found = npu.npu_weight_quant_batchmatmul(
                *(rows, x2, given["antiquant_scale"], given["antiquant_offset"]),
                bias=bias,
                antiquant_group_size=given["antiquant_group_size"],
            )
        else:
            operands = {"x1": rows, "x2": x2}
            if bias is not None:
                wide = cast(bias, torch.float32) if bias.dtype == torch.bfloat16 else None
                operands["bias"] = bias if wide is None else wide
            found = launch("matmul", operands)
        if given.get("x3") is not None:
            found = found + given["x3"].reshape(-1, x2.shape[-1])[of]
        return found


def mm_all_reduce_base(contract: Contract) -> torch.Tensor:
    """The sum of x1 @ x2 over all ranks."""
    given, group = contract.given, contract.group("hcom")
    x1 = given["x1"]
    contract.only(
        reduce_op=("sum",),
        comm_quant_scale_1=(None,),
        comm_quant_scale_2=(None,),
        group_sizes=(None,),
        y_dtype=(None,),
        x1_dtype=(None,),
        x2_dtype=(None,),
        dequant_scale_dtype=(None,),
        pertoken_scale_dtype=(None,),
        comm_quant_mode=(0,),
    )
    is_quantised = given["dequant_scale"] is not None
    contract.require(
        x1.dim() in (2, 3),
        lambda: f"x1 must have 2 or 3 dimensions, not shape {tuple(x1.shape)}; reshape it",
    )
    contract.tensor("x1", x1.dim(), *((torch.int8,) if is_quantised else FLOATS))
    weights = FLOATS if given["antiquant_scale"] is None else (torch.int8,)
    x2 = contract.tensor("x2", 2, *((torch.int8,) if is_quantised else weights))
    _check(contract, group, x1, x2)
    (k, n), product = x2.shape, Product(contract)
    rows = contiguous(x1).reshape(-1, k)
    cut = tiles("all_reduce", len(rows), n, k, group.size(), x1.element_size(), card.spec())
    begins = list(accumulate(cut, initial=0))
    parts = [product(rows[begin:end], begin) for begin, end in pairwise(begins)]
    output = torch.empty((*x1.shape[:-1], n), dtype=parts[0].dtype, device="npu")
    moves = [_move("all_reduce", part.nbytes, group) for part in parts]

    def finish(found: list[torch.Tensor]) -> None:
        whole = [array_of(each, output).reshape(-1, n) for each in found]
        for part, (begin, end) in zip(parts, pairwise(begins), strict=True):
            of_tile = [each[begin:end] for each in whole]
            fill(part, collectives.all_reduce(of_tile, "sum", card.spec(), group.servers))
        fill_bytes(output, torch.cat([bytes_of(part) for part in parts]))

    time_us = product.launch_us + reduced_us(product.times_us, moves)
    _together(contract, group, "MatmulAllReduce", parts, time_us, finish)
    return output


def _operands(contract: Contract) -> tuple[torch.Tensor, torch.Tensor, HcclGroup]:
    """The matrices and the group of all_gather and reduce_scatter."""
    given, group = contract.given, contract.group("hcom")
    x, x2 = contract.tensor("input", 2, *FLOATS), contract.tensor("x2", 2, *FLOATS)
    contract.require(
        given["world_size"] == group.size(),
        lambda: (
            f"world_size must be {group.size()}, the ranks of the group, not "
            f"{given['world_size']}; pass that"
        ),
    )
    contract.require(
        LEAST_K <= x.shape[1] <= MOST_K,
        lambda: (
            f"input must have {LEAST_K} to {MOST_K} columns, not {x.shape[1]}; use a product and a "
            f"collective"
        ),
    )
    contract.require(
        contract.series != "Atlas inference",
        "the chip must be of Atlas A2 or Atlas A3, not of Atlas inference; use a product and a "
        "collective",
    )
    _check(contract, group, x, x2)
    return contiguous(x), x2, group


def _check(contract: Contract, group: HcclGroup, x1: torch.Tensor, x2: torch.Tensor) -> None:
    sizes = RANKS[contract.series]
    contract.require(
        group.size() in sizes,
        lambda: (
            f"the group must have {', '.join(map(str, sizes[:-1]))} or {sizes[-1]} ranks on "
            f"{contract.series}, not {group.size()}; use a product and a collective"
        ),
    )
    contract.require(
        x1.shape[-1] == x2.shape[0],
        lambda: (
            f"x2 must have {x1.shape[-1]} rows, as many as columns go before, not {x2.shape[0]}; "
            f"transpose or cut it"
        ),
    )
    is_whole = contract.given.get("antiquant_scale") is None
    contract.require(
        not is_whole or x1.dtype == x2.dtype,
        lambda: f"x2 must be of {x1.dtype}, as the other matrix, not of {x2.dtype}; convert one",
    )


def _alike(x1: torch.Tensor, x2: torch.Tensor) -> str:
    return f"{described(x1)} x {tuple(x2.shape)}"


def _move(kind: Fused, size_bytes: int, group: HcclGroup) -> Estimate:
    """The collective of a tile, over the links of the group."""
    return move(kind, size_bytes, group.size(), card.spec(), group.servers)


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    """*parts* concatenated in zero time, since the kernel reads them in place."""
    if not card.computes_values():
        rows = sum(len(part) for part in parts)
        return torch.empty((rows, *parts[0].shape[1:]), dtype=parts[0].dtype, device="npu")
    return to_npu(torch.cat([to_host(part) for part in parts]))


def _together(
    contract: Contract,
    group: HcclGroup,
    kernel: str,
    parts: list[torch.Tensor],
    time_us: float,
    finish: Callable[[list[torch.Tensor]], None],
) -> None:
    """Exchange *parts* with the other ranks, let *finish* reduce them, and record the time."""
    whole = torch.cat([bytes_of(part) for part in parts])
    what = _alike(parts[0], contract.given["x2"])
    begin_us, _, found = group.share(contract.op, what, whole)
    if card.computes_values():
        finish(found)
    group.spend(kernel, begin_us, time_us, what)


def all_gather_base_mm(contract: Contract) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of all ranks times x2, and these rows."""
    contract.only(gather_index=(0,), x1_scale=(None,), x2_scale=(None,), output_dtype=(None,))
    x, x2, group = _operands(contract)
    size, rank, product = group.size(), group.rank(), Product(contract)
    (m, k), n = x.shape, x2.shape[1]
    gathered = torch.empty((m * size, k), dtype=x.dtype, device="npu")
    cut = tiles("all_gather", m, n, k, size, x.element_size(), card.spec())
    moves = [_move("all_gather", rows * k * x.element_size(), group) for rows in cut]
    begin_us, _, parts = group.share(contract.op, _alike(x, x2), bytes_of(x))
    if card.computes_values():
        fill_bytes(gathered, torch.cat(parts))
    output = torch.empty((m * size, n), dtype=x.dtype, device="npu")
    of_ranks, found = gathered.view(size, m, k), output.view(size, m, n)
    others = [other for other in range(size) if other != rank]
    overwrite(found[rank], product(x))
    for begin, end in pairwise(accumulate(cut, initial=0)):
        rows = _joined([of_ranks[other, begin:end] for other in others])
        tile = product(rows).view(len(others), end - begin, n)
        for place, other in enumerate(others):
            overwrite(found[other, begin:end], tile[place])
    local_us, *times_us = product.times_us
    time_us = product.launch_us + gathered_us(local_us, times_us, moves)
    group.spend("AllGatherMatmul", begin_us, time_us, described(x))
    return output, gathered if contract.given["gather_output"] else gathered[:0]


def mm_reduce_scatter_base(contract: Contract) -> torch.Tensor:
    """This rank's share of the rows of the sum of input @ x2 over all ranks."""
    contract.only(reduce_op=("sum",), x1_scale=(None,), x2_scale=(None,), output_dtype=(None,))
    x, x2, group = _operands(contract)
    size, rank, product = group.size(), group.rank(), Product(contract)
    contract.require(
        len(x) % size == 0,
        lambda: f"input must have a multiple of {size} rows, of ranks, not {len(x)}; pad it",
    )
    (m, k), n = (len(x) // size, x.shape[1]), x2.shape[1]
    cut = tiles("reduce_scatter", m, n, k, size, x.element_size(), card.spec())
    begins = list(accumulate(cut, initial=0))
    of_ranks = x.view(size, m, k)
    parts = []
    for begin, end in pairwise(begins):
        parts.append(product(_joined([each[begin:end] for each in of_ranks])))
    moves = [_move("reduce_scatter", part.nbytes // size, group) for part in parts]
    output = torch.empty((m, n), dtype=x.dtype, device="npu")

    def finish(found: list[torch.Tensor]) -> None:
        whole = [array_of(each, output).reshape(-1, n) for each in found]
        for begin, end in pairwise(begins):
            of_tile = [each[begin * size : end * size] for each in whole]
            sums = collectives.reduce_scatter(of_tile, "sum", card.spec(), group.servers)
            fill(output[begin:end], sums[rank])

    time_us = product.launch_us + reduced_us(product.times_us, moves)
    _together(contract, group, "MatmulReduceScatter", parts, time_us, finish)
    return output
