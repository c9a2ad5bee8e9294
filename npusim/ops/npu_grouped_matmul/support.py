"""What npu_grouped_matmul supports: combinations of types, layouts and lists, and their kernels.

The rows are those of the vendor (ops-transformer@c29bc10 gmm/grouped_matmul, README.md,
op_host/grouped_matmul_def.cpp and op_host/op_api/aclnn_grouped_matmul.cpp; torch_npu 2.14.0, the
text of npu_grouped_matmul). Each has a module of `templates`, which splits the call and writes its
programs, and a function of `oracle`, which computes a group of rows in plain numpy.

A new combination of types is a row of `SUPPORT`, which names its template, and an entry of
`oracle.ROWS`. A module of `templates` has `tile(spec, p)`, which returns a `tiling.Plan` or a
subclass of it, and `build(spec, p, plan)`. A shape limit that rows cannot express is a function of
`shapes.LIMITS`. `parts.Parts` assigns the blocks to the cores and locates the operands of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
from npusim.ops._support import A2_A3, ATLAS_INFERENCE, Operands, Row, required

NONE, RELU, GELU_TANH, FAST_GELU, SILU = 0, 1, 2, 4, 5
"""act_type; 3, the exact gelu, is refused (aclnn_grouped_matmul.cpp)."""
PACKED = (INT64, UINT64)
"""The words of npu_trans_quant_param."""
EITHER_LAYOUT = ("ND", "FRACTAL_NZ")


EACH, ROWS, ALONG_K = -1, 0, 2
"""group_type."""


@dataclass(frozen=True, slots=True)
class Types:
    """The types of x, weight and output of a row, and the kernels that compute it."""

    x: DType
    weight: DType
    """The type of the elements: int4 come eight to an int32."""
    output: DType
    template: str
    """The kernel, or the first of several; see `templates`."""
    kernels: tuple[str, ...] = ()
    """The names of its kernels, if it has several: a caller may select one."""
    one_scale: bool = False
    """Whether a scale may be one value for each expert, for all of its columns."""
    scale_of_groups: bool = False
    """Whether a scale may have a value for each group of k."""

    @property
    def stored(self) -> tuple[DType, DType]:
        """The types of the tensors x and weight."""
        x, weight = (INT32 if kind is INT4 else kind for kind in (self.x, self.weight))
        return x, weight

    @property
    def names(self) -> tuple[str, ...]:
        """The kernels that a caller may select."""
        return self.kernels or (self.template,)

    def __str__(self) -> str:
        """The types as errors name them."""
        x, weight = self.stored
        return f"{x} x, {weight} weight and {self.output} output"


def _row(
    types: Types,
    *,
    on: tuple[str, ...] = A2_A3,
    layouts: tuple[str, ...] = ("ND",),
    most: int = 128,
    group_types: tuple[int, ...] = (ROWS,),
    pairs: bool = False,
    activations: bool = False,
    **lists: Any,
) -> Row:
    """A row of *types*; *lists* are the tensors other than x, weight and group_list."""
    x, weight = types.stored
    return Row(
        on=on,
        facts=types,
        x=Operands((x,), most=most),
        weight=Operands((weight,), layouts, most=most),
        output_dtype=(types.output.name,),
        group_list=INT64,
        group_type=group_types,
        group_list_type=(0, 1, 2) if pairs else (0, 1),
        act_type=(NONE, RELU, GELU_TANH, FAST_GELU, SILU) if activations else (NONE,),
        **lists,
    )


def _dequantised(output: DType, **lists: Any) -> Row:
    """int8 by int8 to floats, with scales for the rows."""
    types = Types(INT8, INT8, output, "dequantise")
    return _row(types, pairs=True, activations=True, **lists)


def _float_by_integer(x: DType, weight: DType, bias: DType) -> Row:
    kernels = "antiquant", "antiquant_performance", *(("msd",) if weight is INT8 else ())
    parameters = required(x)
    return _row(
        Types(x, weight, x, "antiquant", kernels),
        group_types=(EACH, ROWS),
        bias=bias,
        antiquant_scale=parameters,
        antiquant_offset=parameters,
    )


def _int4(x: DType, output: DType, **lists: Any) -> Row:
    """int4 weights with rows of int4 or int8."""
    return _row(
        Types(x, INT4, output, f"a{x.bits}w4", scale_of_groups=True),
        layouts=EITHER_LAYOUT,
        most=1,
        scale=required(*PACKED),
        per_token_scale=required(FLOAT32),
        **lists,
    )


SUPPORT = (
    *(
        _row(
            Types(dtype, dtype, dtype, "plain"),
            layouts=layouts,
            group_types=(EACH, ROWS, ALONG_K),
            bias=bias,
        )
        for dtype, bias, layouts in (
            (FLOAT16, FLOAT16, EITHER_LAYOUT),
            (BFLOAT16, FLOAT32, EITHER_LAYOUT),
            (FLOAT32, FLOAT32, ("ND",)),
        )
    ),
    # torch_npu-npu_grouped_matmul.md has group_type=-1 here, the vendor's other document only 0.
    _row(
        Types(INT8, INT8, INT8, "fixpipe", one_scale=True),
        group_types=(EACH, ROWS),
        pairs=True,
        bias=INT32,
        scale=required(*PACKED),
    ),
    _row(Types(INT8, INT8, INT32, "fixpipe"), layouts=EITHER_LAYOUT, pairs=True, bias=INT32),
    *(
        _dequantised(
            output,
            layouts=EITHER_LAYOUT,
            bias=INT32,
            scale=required(scale),
            per_token_scale=FLOAT32,
        )
        for output, scale in ((BFLOAT16, BFLOAT16), (FLOAT16, FLOAT32))
    ),
    # In the kernel and its definition, but in none of the documents.
    _dequantised(
        BFLOAT16,
        layouts=("FRACTAL_NZ",),
        bias=required(BFLOAT16),
        scale=required(BFLOAT16, FLOAT32),
        per_token_scale=required(FLOAT32),
    ),
    *(
        _float_by_integer(x, weight, bias)
        for weight in (INT8, INT4)
        for x, bias in ((FLOAT16, FLOAT16), (BFLOAT16, FLOAT32))
    ),
    *(_int4(INT4, output) for output in (FLOAT16, BFLOAT16)),
    _int4(INT8, FLOAT16, bias=required(FLOAT32), offset=FLOAT32),
    _int4(INT8, BFLOAT16, bias=required(FLOAT32)),
    _row(
        Types(FLOAT16, FLOAT16, FLOAT16, "coupled"),
        on=ATLAS_INFERENCE,
        layouts=EITHER_LAYOUT,
        most=1,
        bias=FLOAT16,
    ),
)

TEMPLATES = tuple(
    dict.fromkeys(name for row in SUPPORT if row.on == A2_A3 for name in row.facts.names)
)
"""The names of all kernels of Atlas A2 and A3, of which a caller may select one."""
