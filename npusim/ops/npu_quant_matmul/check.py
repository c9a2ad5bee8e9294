"""What npu_quant_matmul accepts on each product line, and the arguments of its kernels.

Apart from int8 times int8, and int4 times int4 with column scales, these are the calls of
quant_batch_matmul_v4 (ops-nn@e5c3fa9 matmul/quant_batch_matmul_v4/op_host/op_api,
aclnn_quant_matmul_v5.cpp).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Literal

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT4, INT8, INT32, INT64, UINT64, DType
from npusim.data.errors import Code, shown
from npusim.data.tensor import LAYOUTS, Operand, TensorSpec
from npusim.isa.matrix import QuantMode
from npusim.kernel import Product
from npusim.ops import _vocabulary as ops
from npusim.ops import npu_trans_quant_param
from npusim.ops._int4_matmul import MAX_ROW
from npusim.ops._kernel_choice import require_named
from npusim.ops._operands import (
    INT4_PER_INT32,
    as_fractals,
    fixpipe_words,
    product_of,
    unpacked_remedy,
)
from npusim.ops._support import Entries
from npusim.ops._vocabulary import A2_A3, ATLAS_INFERENCE, Operands, Row, required

LARGEST_INNER = 65535
"""Limit of k and of the last dimension in memory (torch_npu-npu_quant_matmul.md). It also keeps
k x 128 x 128 below 2^31, so that a sum without bias never overflows."""
GROUP_K = 256
"""k of a group; no other is supported."""
PACKED_K, PACKED_N = 1024, 256
"""k and n are multiples of these with groups of int4."""

Template = Literal["basic", "tbe", "tbe_opt", "pp", "coupled", "msd", "pergroup"]
"""The vendor's kernels. The choice follows from the tiles, see `tiling`; a name overrides it, but
not the requirements of a kernel.

basic     blocks by load and reuse, a ring of two for the vector cores
tbe       the older library's tiles; vector cores start the cube cores by messages
tbe_opt   those tiles with a slot for each block of a row of them
pp        310P's kernel of powers of two
coupled   310P's other kernel, whose rules are closed
msd       int8 times int4, each element of x1 split into two int4
pergroup  int4 times int4, with scales and offsets for groups of k"""

Form = Literal["plain", "msd", "pergroup"]
"""Selects between the kernels of version 3, plain, and those of version 4."""
OF_FORM: dict[Form, tuple[Template, ...]] = {
    "plain": ("basic", "tbe", "tbe_opt"),
    "msd": ("msd",),
    "pergroup": ("pergroup",),
}
COUPLED: tuple[Template, ...] = ("pp", "coupled")
WORDS: dict[Form, str] = {
    "plain": "",
    "msd": " with int8 times packed int4",
    "pergroup": " with groups of int4",
}


# ---- support ----


def _matrix(dtype: DType, layouts: tuple[str, ...] = ("ND",)) -> Operands:
    return Operands((dtype,), layouts, ranks=(2, 6))


PACKED = (INT64, UINT64)
"""The words of npu_trans_quant_param."""
UNGROUPED, GROUPED = (0, 0, 0), (0, 0, GROUP_K)
INT8S: Entries = {"x1": _matrix(INT8), "x2": _matrix(INT8, LAYOUTS)}
INT4S: Entries = {"x1": _matrix(INT32), "x2": _matrix(INT32)}
OF_FIXPIPE: Entries = {"scale": (FLOAT32, *PACKED), "bias": INT32}
TO_INT8: Entries = {"output_dtype": ("int8",), "offset": FLOAT32, **OF_FIXPIPE}
TO_FLOAT16: Entries = {"output_dtype": ("float16",), **OF_FIXPIPE}
TO_FLOAT16_BY_TOKEN: Entries = {
    "output_dtype": ("float16",),
    "scale": FLOAT32,
    "pertoken_scale": required(FLOAT32),
    "bias": (INT32, FLOAT16, FLOAT32),
}
TO_BFLOAT16: Entries = {
    "output_dtype": ("bfloat16",),
    "scale": (FLOAT32, BFLOAT16),
    "pertoken_scale": FLOAT32,
    "bias": (INT32, BFLOAT16, FLOAT32),
}
TO_INT32 = {"output_dtype": ("int32",), "scale": (FLOAT32, BFLOAT16), "bias": INT32}
TO_FLOATS = (TO_FLOAT16, TO_FLOAT16_BY_TOKEN, TO_BFLOAT16)
OF_VERSION_4: Entries = {
    "output_dtype": ("float16", "bfloat16"),
    "pertoken_scale": required(FLOAT32),
}
SUPPORT = (
    *(
        Row(on=A2_A3, **INT8S, **to, group_sizes=(UNGROUPED,))
        for to in (TO_INT8, *TO_FLOATS, TO_INT32)
    ),
    *(Row(on=A2_A3, **INT4S, **to, group_sizes=(UNGROUPED,)) for to in TO_FLOATS),
    *(
        Row(on=ATLAS_INFERENCE, **INT8S, **to, group_sizes=(UNGROUPED,))
        for to in (TO_INT8, TO_FLOAT16)
    ),
    Row(
        on=A2_A3,
        template="msd",
        x1=_matrix(INT8),
        x2=_matrix(INT32, LAYOUTS),
        scale=PACKED,
        offset=required(FLOAT32),
        group_sizes=(UNGROUPED, GROUPED),
        **OF_VERSION_4,
    ),
    Row(
        on=A2_A3,
        template="pergroup",
        **INT4S,
        scale=FLOAT32,
        offset=required(FLOAT16),
        group_sizes=(GROUPED,),
        **OF_VERSION_4,
    ),
)


# ---- the checked call ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call, and where its epilogue runs."""

    scale: Operand | None
    """uint64 words for the fixpipe, or floats for the vector pipe; None if nothing reads it."""
    bias: Operand | None = None
    pertoken_scale: Operand | None
    product: Product
    epilogue: Literal["fixpipe", "vector"] = "vector"
    """The unit that converts int32 to the output; on 310P "fixpipe" is the copy out of L0C."""
    mode: QuantMode = "none"
    """The conversion of the sums on their way out of L0C."""
    asked: Template | None
    """The kernel that the caller selects."""
    form: Form = "plain"
    offset: Operand | None = None
    """msd: added to each column. pergroup: `(groups, n)` of x2."""
    group_k: int = 0
    """k that shares a scale, with the kernels of version 4."""
    packs_scale: bool = False
    """Whether torch_npu packs a float32 scale into words, by a launch of npu_trans_quant_param
    (op-plugin@517f2e7, QuantMatmulKernelNpuOpApi.cpp)."""

    @property
    def start(self) -> Operand | None:
        """An int32 bias, from which the accumulator starts; the epilogue adds other biases."""
        return self.bias if self.bias is not None and self.bias.element is INT32 else None

    @property
    def has_one_scale(self) -> bool:
        """Whether all columns have the same scale."""
        return self.scale is not None and self.scale.spec.size == 1

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors of all of its kernels, by the names that programs use."""
        return (*(operand.name for operand in self.inputs), "output")


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    a, b = _matrices(contract)
    name = contract.value("output_dtype")
    target = contract.one_of("output_dtype", "int8" if name is None else name)
    groups = _group_sizes(contract, a.element, b.element)
    match contract.rows[0].template:
        case "msd" | "pergroup" as form:
            return _check_version_4(contract, a, b, form, groups)
    return _check_plain(contract, a, b, target)


def _matrices(contract: ops.Contract) -> tuple[Operand, Operand]:
    a, b = contract.matrix("x1"), contract.matrix("x2")
    if a.element is INT32:
        if 1 in a.shape[-2:]:
            # The bytes are the same either way, and x1 can only be packed along k.
            a = replace(a, spec=replace(a.spec, transposed=False))
        contract.require(
            not a.spec.transposed,
            "x1 must not be transposed if it holds packed int4; make it contiguous",
        )
    contract.require(
        contract.spec.series != "Atlas inference" or b.spec.layout == "ND" or b.spec.transposed,
        f"x2 in FRACTAL_NZ must be the transposed view of an (n, k) matrix on "
        f"{contract.spec.series}, not of (k, n); cast the contiguous (n, k) matrix with "
        f"npu_format_cast(..., 29), and pass that one's .T",
    )
    return a, b


def _group_sizes(contract: ops.Contract, x1: DType, x2: DType) -> tuple[int, int, int]:
    """Rows, columns and k of a group with one scale, in the form of the rows of support."""
    value = contract.value("group_sizes")
    if value is None:
        value = UNGROUPED
    contract.require(
        len(value) == 3,
        f"group_sizes must be three integers (m, n, k), not {shown(value)}; pass [0, 0, 0]",
    )
    sizes = list(value)
    for i, size in enumerate(sizes):
        contract.require(
            0 <= size <= 65535,
            f"group_sizes[{i}] must lie in [0, 65535], not {size}; pass 0 for no groups",
        )
    contract.require(
        x2 is INT32 or not any(sizes),
        f"group_sizes must be None or all 0 with int8 matrices, not {sizes}, since their kernel "
        f"with blocks (quant_batch_matmul_v4) is not simulated; leave it out",
        Code.UNSUPPORTED,
    )
    # A group of one row or column is one element, like a group of none.
    m, n, k = sizes
    own = (0, 0, k) if max(m, n) <= 1 and (k or x1 is INT8) else (m, n, k)
    found: tuple[int, int, int] = contract.one_of("group_sizes", own)
    return found


def _asked_for(contract: ops.Contract, epilogue: str, form: Form) -> Template | None:
    """Check the template against the product line, the types, and the *epilogue* they need."""
    template, arch = contract.value("template"), contract.spec.arch
    own = COUPLED if arch == "2002" else OF_FORM[form]
    require_named(contract.op, template, own, arch=arch, when=WORDS[form])
    contract.require(
        template != "tbe_opt" or epilogue == "vector",
        f"template {template!r} can run only if vector cores make the output; pass a "
        f"pertoken_scale or output_dtype='bfloat16', or leave it out to get the vendor's choice",
    )
    return next((name for name in own if name == template), None)


# ---- version 3 ----


def _check_plain(contract: ops.Contract, a: Operand, b: Operand, target: str) -> Problem:
    is_packed = a.element is INT32
    tokens, scale = contract.optional("pertoken_scale"), contract.operand("scale")
    contract.require(
        not is_packed or tokens is None or len(scale.shape) == 1,
        f"scale must have one dimension with packed int4 matrices and without group_sizes, "
        f"not shape {scale.shape}; pass one number, or one a column, or group_sizes=[0, 0, 256]",
    )
    offset, bias = contract.optional("offset"), contract.optional("bias")
    product = product_of(contract, a, b, INT4 if is_packed else INT8, is_packed)
    _check_product(contract, product)
    _check_vectors(contract, product, scale, offset, bias, tokens)
    is_vector = target == "bfloat16" or tokens is not None
    words, mode = _kernel_scale(contract, scale, offset, target, is_vector)
    epilogue: Literal["fixpipe", "vector"] = "vector" if is_vector else "fixpipe"
    output = TensorSpec((*product.batch, product.m, product.n), target)
    if contract.spec.arch == "2002":
        b, product = as_fractals(b), replace(product, transposed_b=True, fractal_b=True)
    return Problem(
        inputs=ops.present(a, b, words, bias, tokens),
        outputs={"output": output},
        scale=words,
        bias=bias,
        pertoken_scale=tokens,
        product=product,
        epilogue=epilogue,
        mode=mode,
        asked=_asked_for(contract, epilogue, "plain"),
        packs_scale=scale.element is FLOAT32 and mode != "none",
    )


def _check_product(contract: ops.Contract, product: Product) -> None:
    inner_a = product.m if product.transposed_a else product.k
    inner_b = product.k if product.transposed_b else product.n
    for name, size in (("k", product.k), ("x1", inner_a), ("x2", inner_b)):
        who = "k" if name == "k" else f"the dimension of {name} that lies inside"
        contract.require(
            size <= LARGEST_INNER,
            f"{who} must be at most {LARGEST_INNER}, not {size}; split the call",
        )
    contract.require(
        product.element is INT8 or product.n % 2 == 0,
        f"n must be even with packed int4 matrices, not {product.n}; pad x2 by a column, and "
        f"what has a number for each",
    )


def _check_vectors(
    contract: ops.Contract,
    product: Product,
    scale: Operand,
    offset: Operand | None,
    bias: Operand | None,
    tokens: Operand | None,
) -> None:
    """The values for columns and rows: one for all, or one for each."""
    one_or_n = tuple(dict.fromkeys(((1,), (product.n,))))
    scales: tuple[tuple[int, ...], ...] = one_or_n
    if scale.element in PACKED:
        scales = (*one_or_n, (1, product.n))
    biases: tuple[tuple[int, ...], ...] = ((product.n,),)
    if len(product.batch) == 1:
        biases = (*biases, (product.batch[0], 1, product.n))
    wanted = (
        (scale, scales, "pass one number, or one a column"),
        (offset, one_or_n, "pass one number, or one a column"),
        (bias, biases, "pass a number a column"),
        (tokens, ((product.m,),), "pass a number a row of x1"),
    )
    for operand, shapes, remedy in wanted:
        if operand is not None:
            if product.element is INT4 and operand.shape[-1:] == (product.n // INT4_PER_INT32,):
                remedy = unpacked_remedy("x2")
            what = f" for a product of {product.m} rows and {product.n} columns"
            contract.require_shape(operand, *shapes, when=what, remedy=remedy)


def _kernel_scale(
    contract: ops.Contract, scale: Operand, offset: Operand | None, target: str, is_vector: bool
) -> tuple[Operand | None, QuantMode]:
    """The scale as the kernel reads it, None if it reads none, and the conversion out of L0C."""
    if target == "int32":
        return None, "none"
    if is_vector:
        return scale, "none"
    mode: QuantMode = "req8" if target == "int8" else "deqf16"
    if scale.element in PACKED:
        return fixpipe_words(contract, scale, INT8 if target == "int8" else FLOAT16), mode
    shape = scale.shape if offset is None or scale.spec.size > 1 else offset.shape
    spec = TensorSpec(shape, "uint64")
    if scale.array is None or (offset is not None and offset.array is None):
        return Operand("scale", spec), mode
    points = None if offset is None else offset.array
    packed = npu_trans_quant_param.OPERATOR.reference(scale.array, points)
    return Operand("scale", spec, packed.view(np.uint64)), mode


# ---- version 4 ----


def _check_version_4(
    contract: ops.Contract, a: Operand, b: Operand, form: Form, groups: tuple[int, int, int]
) -> Problem:
    contract.optional("bias")
    product = product_of(contract, a, b, INT4, packed=a.element is INT32, packed_x2=True)
    group_k = _check_sizes(contract, product, form, groups)
    m, n, of_groups = product.m, product.n, (product.k // group_k, product.n)
    tokens, scale, offset = (
        contract.operand(name) for name in ("pertoken_scale", "scale", "offset")
    )
    wanted: tuple[tuple[Operand, tuple[int, ...]], ...] = (
        (tokens, (m, 1) if groups[2] else (m,)),
        (scale, of_groups if groups[2] else (n,)),
        (offset, (n,) if form == "msd" else of_groups),
    )
    for operand, shape in wanted:
        remedy = "reshape it" if operand.spec.size == prod(shape) else "pass as many elements"
        contract.require_shape(operand, shape, remedy=remedy)
    output = TensorSpec((m, n), str(contract.value("output_dtype")))
    if form == "msd":
        scale = fixpipe_words(contract, scale, output.element)
    return Problem(
        inputs=ops.present(a, b, scale, offset, tokens),
        outputs={"output": output},
        scale=scale,
        pertoken_scale=tokens,
        product=product,
        asked=_asked_for(contract, "vector", form),
        form=form,
        offset=offset,
        group_k=group_k,
    )


def _check_sizes(
    contract: ops.Contract, product: Product, form: Form, groups: tuple[int, int, int]
) -> int:
    """The k of a scale: that of a group, or all."""
    what, (k, n) = WORDS[form], (product.k, product.n)
    contract.require(
        product.batch == (), f"x1 and x2 must have two dimensions{what}; pass matrix by matrix"
    )
    contract.require(
        not product.transposed_a, f"x1 must not be transposed{what}; make it contiguous"
    )
    inner = k if product.transposed_b else n
    contract.require(
        inner <= LARGEST_INNER,
        f"the dimension of x2 that lies inside must be at most {LARGEST_INNER}, not {inner}; split "
        f"the call",
    )
    if form == "pergroup":
        contract.require(
            k % PACKED_K == 0 and n % PACKED_N == 0,
            f"k must be a multiple of {PACKED_K} and n of {PACKED_N}{what}, not {k} and {n}; pad "
            f"both matrices",
        )
        contract.require(
            product.transposed_b,
            f"x2 must be the transposed view of (n, k / 8){what}, not contiguous; turn it",
        )
        return GROUP_K
    contract.require(
        k % 2 == 0 and k <= MAX_ROW and n % 2 == 0,
        f"k and n must be even and k at most {MAX_ROW}{what}, not {k} and {n}; pad the matrices, "
        f"or split them",
    )
    if not groups[2]:
        return k
    contract.require(
        k % GROUP_K == 0,
        f"k must be a multiple of {GROUP_K}{what} and scales of groups, not {k}; pad both matrices",
    )
    contract.require(
        not product.transposed_b and not product.fractal_b,
        f"x2 must be (k, n / 8) in ND{what} and scales of groups, not "
        f"{'in FRACTAL_NZ' if product.fractal_b else 'transposed'}; make it so",
    )
    return GROUP_K
