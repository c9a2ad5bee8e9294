"""The combinations of types that npu_grouped_matmul takes, each with the kernel that serves it.

The table is that of the vendor (ops-transformer@c29bc10 gmm/grouped_matmul,
op_host/grouped_matmul_def.cpp and op_host/op_api/aclnn_grouped_matmul.cpp). A row names a module of
`templates`, which splits the call and writes its programs, and one of `references`, which computes
a group of rows in plain numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from npusim.data.dtypes import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    INT4,
    INT8,
    INT32,
    INT64,
    UINT64,
    DType,
)
from npusim.ops._contract import Contract
from npusim.ops.npu_grouped_matmul.antiquant import antiquant_limits
from npusim.ops.npu_grouped_matmul.int4 import a4w4_limits, a8w4_limits

__all__ = ["CASES", "PACKED", "TEMPLATES", "Case", "Presence", "case_named", "cases_of"]

Presence = Literal["none", "optional", "required"]
ND, NZ = "ND", "FRACTAL_NZ"
PACKED = (INT64, UINT64)
"""The words of npu_trans_quant_param."""


def _no_limits(_: Contract, __: Any) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One combination of types, and what else belongs to it."""

    name: str
    x: DType
    weight: DType
    """What the numbers are: those of int4 come eight to an int32."""
    output: DType
    layouts: tuple[str, ...] = (ND,)
    """Of the weight."""
    bias: tuple[DType, ...] = ()
    """Types of a bias; none: it must be left out."""
    needs_bias: bool = False
    scale: tuple[DType, ...] = ()
    """Types of the scale; none: it must be left out, otherwise it must be given."""
    scale_of_groups: bool = False
    """Whether a scale may have numbers for groups of k; `limits` holds its shape then."""
    one_scale: bool = False
    """Whether a scale may be one number an expert, for all of its columns."""
    offset: tuple[DType, ...] = ()
    """Types of the offset; none: it must be left out."""
    per_token: Presence = "none"
    has_antiquant: bool = False
    """Whether antiquant_scale and antiquant_offset must be given, both of x's type."""
    group_types: tuple[int, ...] = (0,)
    takes_pairs: bool = False
    """Whether group_list may list pairs of an expert and its rows."""
    only_single: bool = False
    """Whether x, weight and output must be one tensor each."""
    has_activation: bool = False
    template: str
    """The module of `templates` that has `tile` and `build`."""
    kernels: tuple[str, ...] = ()
    """The names of its kernels, if it has several: a caller may ask for one."""
    reference: str
    """The module of `references` that has `rows`."""
    limits: Callable[[Contract, Any], None] = _no_limits
    """Refuses a :class:`~.problem.Problem` that this combination alone does not take."""

    @property
    def stored(self) -> tuple[DType, DType]:
        """The types of the tensors x and weight."""
        x, weight = (INT32 if kind is INT4 else kind for kind in (self.x, self.weight))
        return x, weight

    def __str__(self) -> str:
        """The types as errors name them."""
        x, weight = self.stored
        return f"{x} x, {weight} weight and {self.output} output"


ALL = (-1, 0, 2)

CASES: tuple[Case, ...] = (
    # ---- floats of one type ----
    Case(
        name="fp16",
        x=FLOAT16,
        weight=FLOAT16,
        output=FLOAT16,
        layouts=(ND, NZ),
        bias=(FLOAT16,),
        group_types=ALL,
        template="plain",
        reference="plain",
    ),
    Case(
        name="bf16",
        x=BFLOAT16,
        weight=BFLOAT16,
        output=BFLOAT16,
        layouts=(ND, NZ),
        bias=(FLOAT32,),
        group_types=ALL,
        template="plain",
        reference="plain",
    ),
    Case(
        name="fp32",
        x=FLOAT32,
        weight=FLOAT32,
        output=FLOAT32,
        bias=(FLOAT32,),
        group_types=ALL,
        template="plain",
        reference="plain",
    ),
    # ---- int8 by int8 ----
    Case(
        name="a8w8_int8",
        x=INT8,
        weight=INT8,
        output=INT8,
        bias=(INT32,),
        scale=PACKED,
        one_scale=True,
        # torch_npu-npu_grouped_matmul.md has -1 here, the vendor's other document only 0.
        group_types=(-1, 0),
        takes_pairs=True,
        template="fixpipe",
        reference="a8w8",
    ),
    Case(
        name="a8w8_int32",
        x=INT8,
        weight=INT8,
        output=INT32,
        layouts=(ND, NZ),
        bias=(INT32,),
        takes_pairs=True,
        template="fixpipe",
        reference="a8w8",
    ),
    Case(
        name="a8w8_bf16",
        x=INT8,
        weight=INT8,
        output=BFLOAT16,
        layouts=(ND, NZ),
        bias=(INT32,),
        scale=(BFLOAT16,),
        per_token="optional",
        takes_pairs=True,
        has_activation=True,
        template="dequantise",
        reference="a8w8",
    ),
    Case(
        name="a8w8_fp16",
        x=INT8,
        weight=INT8,
        output=FLOAT16,
        layouts=(ND, NZ),
        bias=(INT32,),
        scale=(FLOAT32,),
        per_token="optional",
        takes_pairs=True,
        has_activation=True,
        template="dequantise",
        reference="a8w8",
    ),
    # In the kernel and its definition, in none of the documents.
    Case(
        name="a8w8_bf16_bias",
        x=INT8,
        weight=INT8,
        output=BFLOAT16,
        layouts=(NZ,),
        bias=(BFLOAT16,),
        needs_bias=True,
        scale=(BFLOAT16, FLOAT32),
        per_token="required",
        takes_pairs=True,
        has_activation=True,
        template="dequantise",
        reference="a8w8",
    ),
    # ---- weights of int8 and int4 by floats ----
    *(
        Case(
            name=f"a16w{weight.bits}_{name}",
            x=kind,
            weight=weight,
            output=kind,
            bias=(bias,),
            has_antiquant=True,
            group_types=(-1, 0),
            template="antiquant",
            kernels=("antiquant", "antiquant_performance", *(("msd",) if weight is INT8 else ())),
            reference="antiquant",
            limits=antiquant_limits,
        )
        for weight in (INT8, INT4)
        for name, kind, bias in (("fp16", FLOAT16, FLOAT16), ("bf16", BFLOAT16, FLOAT32))
    ),
    # ---- weights of int4 ----
    *(
        Case(
            name=f"a4w4_{name}",
            x=INT4,
            weight=INT4,
            output=output,
            layouts=(ND, NZ),
            scale=PACKED,
            scale_of_groups=True,
            per_token="required",
            only_single=True,
            template="a4w4",
            reference="int4",
            limits=a4w4_limits,
        )
        for name, output in (("fp16", FLOAT16), ("bf16", BFLOAT16))
    ),
    *(
        Case(
            name=f"a8w4_{name}",
            x=INT8,
            weight=INT4,
            output=output,
            layouts=(ND, NZ),
            bias=(FLOAT32,),
            offset=(FLOAT32,) if output is FLOAT16 else (),
            needs_bias=True,
            scale=PACKED,
            scale_of_groups=True,
            per_token="required",
            only_single=True,
            template="a8w4",
            reference="int4",
            limits=a8w4_limits,
        )
        for name, output in (("fp16", FLOAT16), ("bf16", BFLOAT16))
    ),
)

KERNELS = tuple(dict.fromkeys(name for case in CASES for name in case.kernels or (case.template,)))
"""What a caller may ask for, whatever the types."""
"""In the order in which they are tried: of several for the same types of x, weight and output the
first that takes the type of bias that is given."""


def cases_of(x: DType, weight: DType) -> tuple[Case, ...]:
    """Those whose tensors x and weight are of these types."""
    return tuple(case for case in CASES if case.stored == (x, weight))


TEMPLATES = tuple(
    dict.fromkeys(name for case in CASES for name in case.kernels or (case.template,))
)
"""The names of all kernels that a caller may ask for."""


def case_named(name: str) -> Case:
    """The one called *name*."""
    return next(case for case in CASES if case.name == name)
