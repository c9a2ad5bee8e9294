"""npu_fusion_attention_grad: the gradients of npu_fusion_attention.

.. code-block:: text

    s = fp32(query @ key.T) * scale_value            masked scores: -FLT_MAX
    p = exp(s - softmax_max) / softmax_sum;          delta = rowsum(dy * attention_in)
    ds = T((fp32(dy @ value.T) - delta) * p)         T: ties away from zero
    output = T((ds @ key) * scale_value)             the gradient of the query
    dkey = T((ds.T @ query) * scale_value);          dvalue = T(T(p).T @ dy)

for each request and head, all in fp32 except the factors of products; gradients of keys are summed
over the query heads that share them. exp rounds to nearest (assumed).

* softmax_max, softmax_sum and attention_in are the results of forward; softmax_in, seed, offset and
  numels are ignored. Layouts, masks, modes, pse and dropout are those of npu_fusion_attention:
  T(p) and dy @ value.T are multiplied by kept / keep_prob. The gradient of pse is not computed.
* Cores add their results to sums in global memory, in no fixed order on a card; here the cores add
  in ascending order.

The kernel is the vendor's with tiles of 512 tokens and keys, SameAB, which runs if a request has
1024 tokens or keys; if its choice says so, scores and the matrices derived from them are stored as
fractals. Assumed: the kernels for shorter requests and for TND take the same time; gradients in
fp32 are always stored as rows; dropout_mask is loaded once for weights and slopes; distances of
pse_type 2 and 3 are stored for the largest loop. Not simulated are the deterministic mode, and what
the forward kernel leaves out: :mod:`npusim.torch` composes these from several operators.

Sources: ops-transformer@c29bc10 attention/flash_attention_score_grad; op-plugin@517f2e7,
op_plugin_functions.yaml. Atlas A2; Atlas A3 by the document of aclnn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from warnings import catch_warnings, simplefilter

import numpy as np

from npusim import devices
from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, UINT8, Array, DType
from npusim.data.errors import Code, DocumentWarning
from npusim.data.few_rows import few_rows_product
from npusim.devices.schema import DeviceSpec
from npusim.kernel.launch import CoreSteps, launch_mixed
from npusim.kernel.program import Binding, Block
from npusim.kernel.vector_core import VectorCore
from npusim.ops import _vocabulary as ops
from npusim.ops import npu_fusion_attention as forward
from npusim.ops._attention import CHIP, is_small
from npusim.ops._attention.check import Problem
from npusim.ops._attention.problem import Choice
from npusim.ops._matmul_oracle import cube_product
from npusim.ops._support import Entries
from npusim.ops._torch import Result
from npusim.ops.npu_fusion_attention_grad.cube import Cube
from npusim.ops.npu_fusion_attention_grad.ends import Ends
from npusim.ops.npu_fusion_attention_grad.oracle import gradients
from npusim.ops.npu_fusion_attention_grad.tiles import Places
from npusim.ops.npu_fusion_attention_grad.vector import Vector

TENSORS = ("query", "key", "value", "dy", "attention_in")
STATE = ("softmax_max", "softmax_sum")
NAMES = {"scale": "scale_value"}
"""Forward's name of a parameter -> the name here."""


def _row(half: DType, *, has_slopes: bool) -> ops.Row:
    entries: Entries = dict.fromkeys(TENSORS, ops.required(half))
    entries |= dict.fromkeys(STATE, ops.required(FLOAT32))
    entries |= {"pse": (half, FLOAT32) if has_slopes else half, "dropout_mask": UINT8}
    return ops.Row(on=ops.A2_A3, atten_mask=UINT8, softmax_in=half, **entries)


SUPPORT, SUPPORT_V2 = (
    tuple(_row(half, has_slopes=has_slopes) for half in (FLOAT16, BFLOAT16))
    for has_slopes in (False, True)
)
EXTRAS = "Tensor? dropout_mask=None"
"""The bits of dropout. torch_npu draws them again from seed and offset."""


def check(contract: ops.Contract, names: Mapping[str, str] = NAMES) -> Problem:
    """Check a call against what forward accepts and returns; raises OpError."""
    ours = {other: name for name, other in names.items()}
    given = {ours.get(name, name): value for name, value in contract.arguments.items()}
    contract = replace(contract, names=names, arguments=given)
    for name in forward.ROPES:
        contract.require(
            given.get(name) is None,
            f"{name} must be None: the gradient of rotated parts apart is not simulated in this "
            f"kernel; join the parts",
            Code.UNSUPPORTED,
        )
    asked = forward.asked_of(contract)
    call, a = asked.call, asked.attention
    if a.dropout is not None:
        a = replace(a, dropout=replace(a.dropout, in_bytes=a.dropout.places.splits_bytes))
    output, sums = forward.shapes_of(call.query.shape, call.layout, call.heads, call.value_size)
    contract.optional("softmax_in")
    dy, y, largest, total = map(contract.operand, ("dy", "attention_in", *STATE))
    for each in (dy, y):
        contract.require_shape(each, output, remedy="pass that of npu_fusion_attention's output")
    for each in (largest, total):
        contract.require_shape(each, sums, remedy="pass what npu_fusion_attention gave")
    has_scores = any(map(min, zip(a.query_lengths, a.kv_lengths, strict=True)))
    contract.require(
        has_scores,
        "a request must have tokens and keys, not none: such calls are not simulated; leave the "
        "call out",
        Code.UNSUPPORTED,
    )
    found = {"output": call.query, "dkey": call.key, "dvalue": call.value}
    return Problem(
        inputs=(*asked.inputs, dy, y, largest, total),
        outputs={name: each.spec for name, each in found.items()},
        attention=a,
        choice=Choice("FIA", "there is one kernel"),
    )


def tile(spec: DeviceSpec, p: Problem) -> ops.Plan:
    """All cores start, whatever the size of the call."""
    cores = spec.cores["aic"].count
    workspaces = Places(p.attention, cores).workspaces
    return ops.Plan(block_dim=cores, is_mix=True, workspaces=workspaces)


def build(spec: DeviceSpec, p: Problem, plan: ops.Plan) -> tuple[Block, ...]:
    """Build three blocks for each group of cores."""
    places = Places(p.attention, plan.block_dim)
    cube, core = Cube(spec, places), VectorCore("npu_fusion_attention_grad", spec, "aiv")
    ends = Ends(spec, places, core)
    core.reset_buffers()
    vector = Vector(places, core)
    ends.claim_last()
    bound = {name: Binding(name) for name in (*(each.name for each in p.inputs), *p.outputs)}
    return launch_mixed(
        plan.block_dim,
        CoreSteps(cube.core, cube.steps()),
        CoreSteps(core, (*ends.before(), vector.step(), *ends.behind())),
        lambda group: bound | places.of_core(group),
    )


def oracle(given: ops.Given) -> tuple[Array, ...]:
    """The gradients of query, key and value."""
    return oracle_of(OPERATOR, given)


def oracle_of(operator: ops.Operator, given: ops.Given) -> tuple[Array, ...]:
    """The same for *operator*."""
    spec = given.spec or devices.load(CHIP)
    arguments = {each.name: getattr(given, each.name) for each in operator.parameters}
    with catch_warnings():
        # The call itself has warned already.
        simplefilter("ignore", DocumentWarning)
        problem = operator.check(spec, **arguments)
    assert isinstance(problem, Problem)
    arrays = {each.name: np.asarray(each.array) for each in problem.inputs}
    multiply = partial(cube_product, order=given.cube_order)
    return gradients(problem.attention, arrays, spec, multiply)


def at_once(given: ops.Given, p: Problem, _: ops.Plan) -> tuple[Array, ...] | None:
    """The same for small calls, without a NaN."""
    if given.spec is None or not is_small(p.attention):
        return None
    arrays = {each.name: np.asarray(given.arguments.get(each.name)) for each in p.inputs}
    multiply = partial(few_rows_product, order=given.cube_order)
    found = gradients(p.attention, arrays, given.spec, multiply)
    return None if any(np.isnan(each).any() for each in found) else found


# ---- torch ----


def outputs(given: ops.TorchArguments, _: object) -> tuple[Result, ...]:
    return tuple((given[name].shape, given[name].dtype) for name in ("query", "key", "value"))


def behind(given: ops.TorchArguments) -> tuple[Result | int, ...]:
    """The gradients of pse, which the kernel does not compute, and of sink."""
    return of_pse(given), ((0,), "float32")


def of_pse(given: ops.TorchArguments) -> Result:
    """A tensor like pse if it is given, else an empty one."""
    pse, query = given["pse"], given["query"]
    return ((0,), query.dtype) if pse is None else (pse.shape, pse.dtype)


def aclnn(given: ops.TorchArguments) -> str:
    if given["actual_seq_qlen"] and given["actual_seq_kvlen"]:
        return "aclnnFlashAttentionUnpaddingScoreGrad"
    return "aclnnFlashAttentionScoreGrad"


OPERATOR = ops.Operator(
    kernel_type="FlashAttentionScoreGrad",
    document=__doc__,
    support=SUPPORT,
    extras=EXTRAS,
    elsewhere="run it on Atlas A2 or A3",
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    at_once=at_once,
    torch=(
        ops.TorchFunction(
            schema="npu_fusion_attention_grad(Tensor query, Tensor key, Tensor value, Tensor dy, "
            "int head_num, str input_layout, *, Tensor? pse=None, Tensor? padding_mask=None, "
            "Tensor? atten_mask=None, Tensor? softmax_max=None, Tensor? softmax_sum=None, "
            "Tensor? softmax_in=None, Tensor? attention_in=None, float scale_value=1., "
            "float keep_prob=1., int pre_tockens=2147483647, int next_tockens=2147483647, "
            "int inner_precise=0, int seed=0, int offset=0, int numels=0, int[]? prefix=None, "
            "int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None, int sparse_mode=0, "
            'bool gen_mask_parallel=True, bool sync=False, str softmax_layout="", '
            "Tensor? sink=None) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
            aclnn=aclnn,
            outputs=outputs,
            behind=behind,
        ),
    ),
)
