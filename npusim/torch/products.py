"""Products of torch on npu tensors: `mm`, `bmm`, `addmm` and others as the card runs them.

torch decomposes `matmul`, `linear`, `einsum` and attention into these. A product is one launch of
the operator `matmul`, together with the launches that aclnn adds (ops-nn,
matmul/mat_mul_v3/op_api and matmul/common/op_host/op_api):

* an operand that is a plain transposed view is read in place, any other view is copied first;
* float32 is multiplied as float32, since allow_hf32 is not set, and matrices of two types are cast
  to it first. Atlas inference multiplies only float16: it casts float32 to it and the result back;
* k = 1 runs as Mul and not on the cube, except on Atlas inference, with a bias or FRACTAL_NZ, and
  with bfloat16 of more than 4000 columns or fewer than 10000 elements;
* an added row with one number for each column is a bias; bfloat16 is cast to float32 first;
* a whole matrix is added by a separate kernel, Axpy if there is an `alpha`: to the product in
  float32, for which the matrix is cast to float32 and the sum is cast back; or to the rounded
  product on Atlas inference, and if the weight is FRACTAL_NZ. `baddbmm` is assumed to do the same.

If the types of the matrices differ, the result is assumed to have the type of the first one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from npusim.torch import card, formats
from npusim.torch.fallback import HostOp, is_on_host
from npusim.torch.kernels import Given, launch, launched, takes
from npusim.torch.repeats import Repeats
from npusim.torch.views import cast, contiguous, is_plain

__all__ = ["kernels"]

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
ONE_OUTPUT, BY_ROWS, ALONG_K = 3, 0, 2
"""split_item, and two of group_type, of npu_grouped_matmul."""
MOST_MUL_COLUMNS = 4000
"""Most columns of a bfloat16 product with k = 1 that runs as Mul (matmul_util.cpp)."""
LEAST_MUL_ELEMENTS = 10000
"""Least elements of the result of a bfloat16 product with k = 1 that runs as Mul (the same)."""


class ProductOp:
    """A product of torch: on the card if *compute* finds kernels for it, else on the host."""

    __slots__ = ("_again", "_compute", "_host")

    def __init__(
        self, op: torch._ops.OpOverload, compute: Callable[..., torch.Tensor | None]
    ) -> None:
        self._host, self._compute = HostOp(op), compute
        self._again = Repeats()

    def __call__(self, *args: object, **kwargs: object) -> object:
        found = None
        if not is_on_host():
            run = self._compute
            found = run(*args, **kwargs) if kwargs else self._again.run(run, args)
        return self._host(*args, **kwargs) if found is None else found


def kernels() -> dict[str, ProductOp]:
    """Operation of aten -> its kernel for the card."""
    aten = torch.ops.aten
    return {
        "mm": ProductOp(aten.mm.default, _product),
        "bmm": ProductOp(aten.bmm.default, _product),
        "mv": ProductOp(aten.mv.default, _mv),
        "addmm": ProductOp(aten.addmm.default, _sum),
        "baddbmm": ProductOp(aten.baddbmm.default, _sum),
        "_grouped_mm": ProductOp(aten._grouped_mm.default, _grouped),
    }


def _mv(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
    found = _product(a, x[:, None])
    return None if found is None else found[:, 0]


def _sum(
    x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor | None:
    """`beta * x + alpha * (a @ b)`."""
    columns = b.shape[-1]
    if beta == 0 and alpha != 0:
        found = _product(a, b)
        scaled = {"x": found, "other": float(alpha)}
        return found if found is None or alpha == 1 else launch("mul", scaled)
    if not is_plain(x) or alpha == 0:
        return None
    if alpha == beta == 1 and tuple(x.shape) in ((columns,), (1, columns)):
        return _product(a, b, x)
    is_wide = not _is_inference() and formats.get(b) == formats.ND
    known = FLOATS if is_wide else (torch.float16,)
    if not x.dtype == a.dtype == b.dtype or x.dtype not in known:
        return None
    found = _product(a, b, is_wide=is_wide)
    if found is None:
        return None
    x = contiguous(x)
    if beta != 1:
        x = launch("mul", {"x": x, "other": float(beta)})
    if x.dtype != found.dtype:
        x = launch("cast", {"x": x, "dtype": "float32"})
    if not takes("add", {"x": found, "other": x}):
        x = contiguous(x.expand(found.shape))
    if alpha == 1:
        found = launch("add", {"x": found, "other": x})
    else:
        found = launch("axpy", {"x": x, "other": found, "alpha": float(alpha)})
    return found if found.dtype == a.dtype else cast(found, a.dtype)


def _grouped(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor | None:
    """Multiply groups of rows of *a* by the matrices of *b*, with one npu_grouped_matmul.

    If both are matrices, groups of columns of *a* are multiplied by groups of rows of *b*. The ends
    of groups are cast to int64, which the kernel requires.
    """
    if offs is None or a.dim() != 2 or not (is_plain(a) and is_plain(b)):
        return None
    ends = offs if offs.dtype == torch.int64 else offs.long()
    x, weight = (each if each.is_contiguous() or each.mT.is_contiguous() else contiguous(each)
                 for each in (a, b))  # fmt: skip
    call: Given = {
        "x": [x],
        "weight": [weight],
        "group_list": ends,
        "split_item": ONE_OUTPUT,
        "group_type": BY_ROWS if b.dim() == 3 else ALONG_K,
    }
    found = launched("npu_grouped_matmul", call) if out_dtype in (None, a.dtype) else None
    return found if found is None or bias is None else found + bias


def _is_inference() -> bool:
    return card.spec().series == "Atlas inference"


# ---- one product ----


def _product(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None, *, is_wide: bool = False
) -> torch.Tensor | None:
    """`a @ b + bias`, in the type of *a*, or in float32 if *is_wide*; None if no kernel fits."""
    given = [x for x in (a, b, bias) if x is not None]
    if not all(x.is_npu and x.numel() and x.dtype in FLOATS for x in given):
        return None
    if a.dim() != b.dim() or a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        return None
    if bias is None and not is_wide and _is_mul(a, b):
        return launch("mul", {"x": contiguous(a), "other": contiguous(b)})
    precision = _precision(a.dtype, b.dtype)
    x1, x2 = _factor(a, precision), _factor(b, precision)
    if x1 is None or x2 is None:
        return None
    call: Given = {"x1": x1, "x2": x2, "bias": _bias(bias, precision)}
    if is_wide:
        call["output_dtype"] = "float32"
    found = launched("matmul", call)
    if found is None or is_wide or found.dtype == a.dtype:
        return found
    return cast(found, a.dtype)


def _precision(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """The type in which the matrices are multiplied."""
    if _is_inference():
        return torch.float16
    return a if a == b else torch.float32


def _factor(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """*x* as *dtype*, contiguous or transposed; other views are copied."""
    if formats.get(x) != formats.ND:
        # The operator checks which views of FRACTAL_NZ it accepts.
        return x if x.dtype == dtype else None
    if not is_plain(x):
        return None
    if not x.mT.is_contiguous():
        x = contiguous(x)
    return x if x.dtype == dtype else cast(x, dtype)


def _bias(bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """*bias* in the type that the bias table needs for matrices of *dtype*."""
    if bias is None:
        return None
    is_taken = bias.dtype == torch.float32 or bias.dtype == dtype == torch.float16
    return contiguous(bias) if is_taken else cast(bias, torch.float32)


def _is_mul(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether a product with k = 1 runs as Mul."""
    rows, columns = a.shape[-2], b.shape[-1]
    if a.shape[-1] != 1 or _is_inference() or not (is_plain(a) and is_plain(b)):
        return False
    is_large = columns > MOST_MUL_COLUMNS or rows * columns < LEAST_MUL_ELEMENTS
    return not (a.dtype == torch.bfloat16 and is_large) and takes("mul", {"x": a, "other": b})
