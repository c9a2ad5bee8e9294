"""npu_moe_token_permute: rows of all tokens sorted by their experts.

.. code-block:: text

    order                          = the choices, sorted by index, of equal ones the first
    output[i]                      = tokens[order[i] / K]
    expanded_row_idx[order[i]]     = i

for *indices* `(tokens, K)`, or one for each token. The second result, which torch_npu's document
calls sorted_indices, is the destination of each choice; npu_moe_token_unpermute takes it.

Its kernel sorts the choices, and sorts that order again; here the first sort is followed by a pass
that computes the destinations of choices, like in npu_moe_init_routing_v2, whose kernel stands in
for it: that both take the same time is assumed, and that indices of int64 are converted to int32 on
the way. Fewer rows than choices (num_out_tokens) are not simulated: :mod:`npusim.torch` composes
these from several operators.

Sources: hicann/ops-transformer moe/moe_token_permute, op_kernel and op_host, and its document.
Atlas A2 and A3. Without values of *indices* the choices are assigned round-robin to as many experts
as there are tokens.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT32, INT64, Array
from npusim.data.errors import Code
from npusim.data.tensor import Operand, TensorSpec
from npusim.ops import _vocabulary as ops
from npusim.ops.npu_moe_init_routing_v2 import build
from npusim.ops.npu_moe_init_routing_v2.check import Problem, tile

SUPPORT = (
    ops.Row(
        on=ops.A2_A3,
        tokens=ops.Operands((FLOAT16, BFLOAT16, FLOAT32), ranks=(2, 2)),
        indices=ops.Operands((INT32, INT64), ranks=(1, 2)),
    ),
)
MOST_CHOICES, MOST_INDEX = 512, 16_777_215
"""Most columns of indices; indices and their count stay below the second (SORT_LIMIT_LENGTH)."""


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    tokens, indices = contract.operand("tokens"), contract.operand("indices")
    contract.require(
        not contract.boolean("padded_mode"),
        "padded_mode must be False, not True: the kernel takes no padding; leave it out",
    )
    (count, width), k = tokens.shape, indices.shape[1] if len(indices.shape) > 1 else 1
    contract.require(
        indices.shape[0] == count,
        f"indices must have an entry for each of {count} tokens, not shape {indices.shape}; pass "
        f"the experts of each",
    )
    contract.require(
        1 <= k <= MOST_CHOICES and width > 0,
        f"indices must have 1 to {MOST_CHOICES} columns and tokens some, not {indices.shape} and "
        f"{tokens.shape}; split the call",
    )
    rows = count * k
    contract.require(
        rows < MOST_INDEX,
        f"indices must have fewer than {MOST_INDEX} elements, not {rows}; split the call",
    )
    given = contract.value("num_out_tokens") or 0
    contract.require(
        given == 0 or given >= rows,
        f"num_out_tokens must be 0 or the {rows} choices, not {given}: fewer rows are not "
        f"simulated in this kernel; leave it out",
        Code.UNSUPPORTED,
    )
    chosen, experts = _chosen(contract, indices, max(1, count))
    narrow = None if chosen is None else np.array(chosen, np.int32).reshape(indices.shape)
    return Problem(
        inputs=(
            replace(tokens, name="x"),
            Operand("expert_idx", TensorSpec(indices.shape, "int32"), narrow),
        ),
        outputs={
            "output": TensorSpec((rows, width), tokens.spec.dtype),
            "expanded_row_idx": TensorSpec((rows,), "int32"),
        },
        element=tokens.element,
        tokens=count,
        k=k,
        width=width,
        experts=experts,
        active=range(experts),
        scale=None,
        quantises=False,
        capacity=None,
        counts=1,
        has_counts=False,
        by_source=True,
        chosen=chosen,
    )


def _chosen(
    contract: ops.Contract, indices: Operand, tokens: int
) -> tuple[tuple[int, ...] | None, int]:
    """The index of each choice, None without values, and a bound above all of them."""
    found = indices.array
    if found is None or not found.size:
        return (None if found is None else ()), tokens
    least, largest = int(found.min()), int(found.max())
    contract.require(
        0 <= least <= largest < MOST_INDEX,
        f"indices must lie in [0, {MOST_INDEX}), not reach from {least} to {largest}; number the "
        f"experts from 0 on",
    )
    return tuple(found.reshape(-1).tolist()), largest + 1


def oracle(given: ops.Given) -> tuple[Array, Array]:
    """Whole arrays in plain numpy."""
    order = np.argsort(given.indices.reshape(-1), kind="stable")
    places = np.argsort(order, kind="stable").astype(np.int32)
    k = max(1, order.size // max(1, len(given.tokens)))
    return given.tokens[order // k], places


def _outputs(given: ops.TorchArguments, _: object) -> tuple[tuple[tuple[int, ...], str], ...]:
    tokens, indices, number = given["tokens"], given["indices"], given["num_out_tokens"] or 0
    rows = indices.shape[0] * (indices.shape[1] if len(indices.shape) > 1 else 1)
    left = min(rows, number if number > 0 else max(0, number + rows))
    return ((left, tokens.shape[1]), tokens.dtype), ((rows,), "int32")


OPERATOR = ops.Operator(
    kernel_type="MoeTokenPermute",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    value_dependent_inputs=("indices",),
    torch=(
        ops.TorchFunction(
            schema="npu_moe_token_permute(Tensor tokens, Tensor indices, int? num_out_tokens=None, "
            "bool padded_mode=False) -> (Tensor, Tensor)",
            aclnn=lambda _: "aclnnMoeTokenPermute",
            outputs=_outputs,
            gradient=ops.Gradient(
                "tokens: npu_moe_token_permute_grad(tokens, grad, indices, result1, padded_mode)"
            ),
        ),
    ),
)
