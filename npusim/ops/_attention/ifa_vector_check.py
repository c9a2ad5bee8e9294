"""The calls of npu_incre_flash_attention that IFA on vector cores accepts; see `ifa_vector`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.data.dtypes import FLOAT16
from npusim.data.errors import Code
from npusim.data.integers import ceil_div
from npusim.data.tensor import Operand, TensorSpec
from npusim.ops import _protocol
from npusim.ops._contract import Contract

LAYOUTS = ("BSH", "BSND", "BNSD")
WIDTH_UNIT, WIDEST = 32, 512
"""Head widths other than multiples are not simulated; EnableAllVec accepts no wider ones."""
USE_FIA = "call npu_fused_infer_attention_score"
LARGEST_SCALE = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorProblem(_protocol.Problem):
    """A checked call."""

    requests: int
    heads: int
    width: int
    keys: int
    """Keys of each request in the tensor."""
    lengths: tuple[int, ...]
    """Keys of each request that are used."""
    given_lengths: int
    """Number of lengths that the kernel reads: none, one for all, or one per request."""
    scale: float
    keys_lie_apart: bool
    """Whether the heads of a key are adjacent, so that the keys of a head are apart."""


def check(contract: Contract) -> VectorProblem:
    """Check a call without scales against what the kernel accepts; raises OpError."""
    q = contract.operand("query")
    _require_kernel(contract, q)
    k, v = contract.operand("key"), contract.operand("value")
    layout = contract.choice("input_layout", LAYOUTS)
    heads = contract.integer("num_heads")
    requests, keys, width = _sizes(contract, q, k, heads, layout)
    contract.require(
        k.shape == v.shape,
        f"value must have shape {k.shape} like key, not {v.shape}; pass one of that shape",
    )
    _require_simulated(contract, requests * heads, width)
    scale, precise = float(contract.value("scale_value")), contract.integer("inner_precise")
    contract.require(
        abs(scale) <= LARGEST_SCALE,
        f"scale_value must be a finite number of fp32, not {scale}; pass 1 / sqrt(columns of a "
        f"head), say",
    )
    contract.require(
        precise in (0, 1),
        f"inner_precise must be 0 or 1, not {precise}; pass 0",
        Code.TILING_ERROR,
    )
    lengths = _lengths(contract, requests, keys)
    given = contract.value("actual_seq_lengths")
    count = 0 if given is None else len(given)
    array = np.array(lengths[:count], np.int64)
    read = Operand("actual_seq_lengths", TensorSpec(array.shape, "int64"), array)
    return VectorProblem(
        inputs=(q, k, v, read) if count else (q, k, v),
        outputs={"output": TensorSpec(q.shape, "float16")},
        requests=requests,
        heads=heads,
        width=width,
        keys=keys,
        lengths=lengths,
        given_lengths=min(count, requests),
        scale=float(np.float32(scale)),
        keys_lie_apart=layout != "BNSD",
    )


def _require_kernel(contract: Contract, query: Operand) -> None:
    """Refuse calls that other templates of the vendor run: they are not simulated."""
    own, heads = contract.value("num_key_value_heads"), contract.value("num_heads")
    given = next((x for x in ("atten_mask", "block_table") if contract.value(x) is not None), "")
    for holds, must, came in (
        (query.element is FLOAT16, "query must be float16", query.element.name),
        (own in (0, heads), f"num_key_value_heads must be 0 or the {heads} num_heads", str(own)),
        (not given, f"{given} must be None", "given"),
    ):
        contract.require(
            holds,
            f"{must} where keys are not of int8, not {came}: the kernel for others is not "
            f"simulated; {USE_FIA}",
            Code.UNSUPPORTED,
        )


def _require_simulated(contract: Contract, pairs: int, width: int) -> None:
    cores = len(contract.spec.vector_cores)
    contract.require(
        width % WIDTH_UNIT == 0 < width <= WIDEST,
        f"query must have heads of a multiple of {WIDTH_UNIT} elements, at most {WIDEST}, not "
        f"{width}: others are not simulated; {USE_FIA}",
        Code.UNSUPPORTED,
    )
    contract.require(
        2 * pairs >= cores,
        f"query must have at least {ceil_div(cores, 2)} heads of all requests, half of the vector "
        f"cores, not {pairs}: that keys are dealt out to cores is not simulated; {USE_FIA}",
        Code.UNSUPPORTED,
    )


def _sizes(
    contract: Contract, q: Operand, k: Operand, heads: int, layout: str
) -> tuple[int, int, int]:
    """Requests, keys of each, and the width of a head."""
    rank = len(layout)
    contract.require(
        len(q.shape) == len(k.shape) == rank and heads > 0 and 0 not in (*q.shape, *k.shape),
        f"query and key must have {rank} dimensions in {layout}, and elements, and num_heads be "
        f"positive, not shapes {q.shape} and {k.shape} and {heads}; reshape them",
    )
    sizes = zip(q.shape, k.shape, strict=True)
    at = dict(zip(layout, sizes, strict=True))
    if "H" in at:
        contract.require(
            at["H"][0] % heads == 0,
            f"query must have columns for all {heads} heads, not {at['H'][0]}; correct num_heads",
        )
        query, key = at["H"]
        at |= {"N": (heads, heads), "D": (query // heads, key // heads)}
    fits = at["B"][0] == at["B"][1] and at["N"] == (heads, heads) and at["D"][0] == at["D"][1]
    contract.require(
        fits and at["S"][0] == 1,
        f"query must have one token of each request and key the heads of query, not shapes "
        f"{q.shape} and {k.shape} for num_heads={heads}; reshape them",
    )
    return at["B"][0], at["S"][1], at["D"][0]


def _lengths(contract: Contract, requests: int, keys: int) -> tuple[int, ...]:
    given = contract.value("actual_seq_lengths")
    lengths = tuple(int(each) for each in given) if given is not None and len(given) else (keys,)
    if len(lengths) == 1:
        lengths *= requests
    contract.require(
        len(lengths) >= requests and all(1 <= each <= keys for each in lengths),
        f"actual_seq_lengths must have a length from 1 to {keys} for each of {requests} requests, "
        f"not {list(lengths)}; correct it",
    )
    return lengths[:requests]
