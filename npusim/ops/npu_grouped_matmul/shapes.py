"""Matching shapes in npu_grouped_matmul, the limits of templates, and the shapes of outputs.

ops-transformer@c29bc10 gmm/grouped_matmul/README.md and op_host/op_api/aclnn_grouped_matmul.cpp,
torch_npu-npu_grouped_matmul.md.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from npusim.data.dtypes import INT4
from npusim.data.errors import Code
from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.data.tensor import Operand, TensorSpec
from npusim.ops._contract import Contract, listed
from npusim.ops._torch import Sizes, TorchArguments, columns_of
from npusim.ops.npu_grouped_matmul.choice import GROUP_K, UNIT, fits_msd, group_k, groups_of_k
from npusim.ops.npu_grouped_matmul.choice import LONGEST_K as LONGEST_K_OF_DIGITS
from npusim.ops.npu_grouped_matmul.problem import ROWS, Problem

LARGEST_INNER = 65535
"""Limit of the last dimension of each x and weight (aclnn_grouped_matmul.cpp)."""
MAX_RANK = 6
UNIT_K, LONGEST_K = 64, 18432
"""k with int8 x is a multiple of the former, and at most the latter."""
UNIT_N = 8
UNIT_N_COUPLED = 16
"""n on Atlas inference is a multiple of this."""
OF_OFFSETS = ((7168, 4096), (2048, 7168))
"""(k, n) of the weights that may have offsets."""


def outputs_of(contract: Contract, p: Problem, is_split: bool) -> dict[str, TensorSpec]:
    """The outputs, after checking that the shapes of x and weight match; raises OpError."""
    for operand in (*p.x, *p.weight):
        contract.require_filled(operand)
        contract.require(
            operand.shape[-1] <= LARGEST_INNER,
            f"the last dimension of {operand.name} must be at most {LARGEST_INNER}, not "
            f"{operand.shape[-1]}; split the call",
        )
    _check_ranks(contract, p)
    _check_turned(contract, p)
    if p.group_type == 2:
        _check_along_k(contract, p)
    else:
        _check_along_m(contract, p)
    if p.is_nz:
        _check_fractals(contract, p)
    return _outputs(p, is_split)


def _check_turned(contract: Contract, p: Problem) -> None:
    """Check that x is a transposed view along k, and only there."""
    is_line = 1 in p.x[0].shape[-2:]
    if p.group_type == 2:
        contract.require(
            p.trans_x or is_line,
            "x must be the transposed view of a (k, m) matrix with group_type=2, not contiguous; "
            "pass the .T of one",
        )
    else:
        contract.require(
            not p.trans_x or is_line,
            f"x must be contiguous with group_type={p.group_type}, not a transposed view; make it "
            f"contiguous",
        )


def _check_ranks(contract: Contract, p: Problem) -> None:
    rank = len(p.x[0].shape)
    ranks, words = range(2, 3), "two dimensions"
    if p.group_type == -1:
        ranks, words = range(2, MAX_RANK + 1), "two to six dimensions, all as many,"
    for operand in p.x:
        contract.require(
            len(operand.shape) == rank and rank in ranks,
            f"{operand.name} must have {words} with group_type={p.group_type}, not shape "
            f"{operand.shape}; reshape it",
        )
    is_stack = p.group_type == 0 and len(p.weight) == 1 and len(p.x) == 1
    for operand in p.weight:
        contract.require(
            len(operand.shape) == 2 or (is_stack and len(operand.shape) == 3),
            f"{operand.name} must have {'the shape (e, k, n)' if is_stack else 'two dimensions'}, "
            f"not shape {operand.shape}; reshape it",
        )


def _check_along_m(contract: Contract, p: Problem) -> None:
    """Check that k of each x is that of its weight; n is equal for a single output."""
    places = range(len(p.weight))
    for place in places:
        x = place if len(p.x) > 1 else 0
        k, wanted = p.weight_shape(place)[0], p.x_shape(x)[1]
        contract.require(
            k == wanted,
            f"{p.weight[place].name} must have as many rows as {p.x[x].name} has columns, "
            f"{wanted}, not {k}; pass x as (m, k) and weight as (k, n)",
        )
    n = p.weight_shape(0)[1]
    for place in places:
        contract.require(
            p.group_type == -1 or p.weight_shape(place)[1] == n,
            f"{p.weight[place].name} must have as many columns as {p.weight[0].name}, {n}, not "
            f"{p.weight_shape(place)[1]}; pad it",
        )


def _check_along_k(contract: Contract, p: Problem) -> None:
    k, rows = p.x_shape(0)[1], sum(p.weight_shape(place)[0] for place in range(len(p.weight)))
    contract.require(
        not p.trans_weight,
        "weight must be contiguous with group_type=2, not a transposed view; make it contiguous",
    )
    is_one = len(p.weight) == 1
    many = "as many" if is_one else "at most as many"
    contract.require(
        rows == k if is_one else rows <= k,
        f"weight must have {many} rows as x has columns, {k}, not {rows}; pass x as (m, k) and "
        f"weight as (k, n)",
    )
    contract.require(not p.bias, "bias must be None with group_type=2; leave it out")


def _check_fractals(contract: Contract, p: Problem) -> None:
    """Check that FRACTAL_NZ holds whole fractals only."""
    inner, outer = c0(p.types.weight), FRACTAL_ROWS
    units = (inner, outer) if p.trans_weight else (outer, inner)
    for place, operand in enumerate(p.weight):
        sizes = p.weight_shape(place)
        contract.require(
            sizes[0] % units[0] == 0 and sizes[1] % units[1] == 0,
            f"{operand.name} in FRACTAL_NZ must have k and n that are multiples of {units[0]} and "
            f"{units[1]}, not {sizes[0]} and {sizes[1]}; pad it",
        )


def _outputs(p: Problem, is_split: bool) -> dict[str, TensorSpec]:
    dtype = p.types.output.name
    shapes: list[tuple[int, ...]]
    if p.group_type == 2 and len(p.weight) == 1:
        shapes = [(p.experts, p.x_shape(0)[0], p.weight_shape(0)[1])]
    elif p.group_type == 2:
        shapes = [(p.x_shape(0)[0], p.weight_shape(i)[1]) for i in range(len(p.weight))]
    elif p.group_type == -1:
        shapes = [(*x.shape[:-1], p.weight_shape(i)[1]) for i, x in enumerate(p.x)]
    elif is_split:
        shapes = [(count, p.weight_shape(i)[1]) for i, (_, count) in enumerate(p.listed.tolist())]
    else:
        shapes = [(p.rows, p.weight_shape(0)[1])]
    names = ["output", *(f"output{place}" for place in range(1, len(shapes)))]
    return {name: TensorSpec(shape, dtype) for name, shape in zip(names, shapes, strict=True)}


# ---- scales and biases ----


def check_parameters(contract: Contract, p: Problem) -> None:
    """Check bias, scale and per_token_scale; their template checks scales of groups of k."""
    _per_weight(contract, p, "bias", p.bias)
    if not p.types.scale_of_groups:
        _per_weight(contract, p, "scale", p.scale, p.types.one_scale)
    _per_row(contract, p)
    if p.tuning:
        contract.require(
            0 <= p.tuning[0] <= p.rows,
            f"tuning_config[0] must lie in [0, {p.rows}], the rows of x, not {p.tuning[0]}; pass "
            f"the rows that an expert is expected to have",
        )


def _per_weight(
    contract: Contract, p: Problem, name: str, found: tuple[Operand, ...], one: bool = False
) -> None:
    """Check one value per column for each weight: `(e, n)` for a single weight, else `(n,)` each.

    With *one* also a single value for all columns: `(e,)` or `(e, 1)`.
    """
    if not found:
        return
    _as_many(contract, name, found, p.weight)
    for place, operand in enumerate(found):
        n = p.weight_shape(place)[1]
        shapes: tuple[tuple[int, ...], ...] = ((n,),)
        if len(p.weight[place].shape) == 3:
            shapes = ((p.experts, n), (p.experts,), (p.experts, 1)) if one else ((p.experts, n),)
        contract.require_shape(
            operand, *shapes, when=_like(p.weight[place]), remedy="pass a number a column"
        )


def _as_many(
    contract: Contract, name: str, found: tuple[Operand, ...], like: tuple[Operand, ...]
) -> None:
    """Check that the list *name* has as many tensors as *like*."""
    wanted = like[0].name.partition("[")[0]
    contract.require(
        len(found) == len(like),
        f"{name} must have as many tensors as {wanted}, {len(like)}, not {len(found)}; pass one "
        f"for each",
    )


def _like(operand: Operand) -> str:
    """What requires a shape: *operand*, for error messages."""
    return f" for {operand.name} of shape {operand.shape}"


def _per_row(contract: Contract, p: Problem) -> None:
    """Check one value for each row of x."""
    if not p.per_token_scale:
        return
    _as_many(contract, "per_token_scale", p.per_token_scale, p.x)
    for place, operand in enumerate(p.per_token_scale):
        rows, when = p.x_shape(place)[0], _like(p.x[place])
        contract.require_shape(operand, (rows,), when=when, remedy="pass a number a row")


# ---- limits of templates ----


def check_limits(contract: Contract, p: Problem) -> None:
    """Refuse what the template for the types of *p* does not accept."""
    limits = LIMITS.get(p.types.template)
    if limits is not None:
        limits(contract, p)


def _coupled(contract: Contract, p: Problem) -> None:
    """Check for whole blocks of columns."""
    n = p.weight_shape(0)[1]
    contract.require(
        n % UNIT_N_COUPLED == 0,
        f"n must be a multiple of {UNIT_N_COUPLED} on {contract.spec.series}, not {n}; pad weight",
    )


def _a4w4(contract: Contract, p: Problem) -> None:
    """Check int4 by int4."""
    what = f" with {p.types}"
    _check_scale(contract, p, what)
    k, n = p.weight_shape(0)
    contract.require(
        k % groups_of_k(p) == 0 and k // groups_of_k(p) % 2 == 0,
        f"k of a group must be a whole, even number{what}, not {k} / {groups_of_k(p)}; change the "
        f"groups of scale",
    )
    contract.require(
        p.is_nz or n % UNIT_N == 0, f"n must be a multiple of {UNIT_N}{what}, not {n}; pad weight"
    )


def _a8w4(contract: Contract, p: Problem) -> None:
    """Check int8 by int4."""
    what = f" with {p.types}"
    _check_scale(contract, p, what)
    k, n = p.weight_shape(0)
    contract.require(
        p.group_list_type == ROWS,
        f"group_list_type must be 1{what}, not {p.group_list_type}; list the rows of each group",
    )
    contract.require(
        not p.trans_weight, f"weight must be contiguous{what}, not a transposed view; turn it"
    )
    contract.require(
        k % UNIT_K == 0 and k <= LONGEST_K and n % UNIT_N == 0,
        f"k must be a multiple of {UNIT_K} up to {LONGEST_K} and n one of {UNIT_N}{what}, not {k} "
        f"and {n}; pad weight, or split the call",
    )
    _check_offset(contract, p, what)
    counts = tuple(str(count) for count in dict.fromkeys((1, k // GROUP_K)) if count)
    contract.require(
        groups_of_k(p) == 1 or groups_of_k(p) * GROUP_K == k,
        f"scale must have {listed(counts)} groups of k{what} and k = {k}, not {groups_of_k(p)}; "
        f"pass a scale for each {GROUP_K} of k",
    )
    contract.require(
        len(p.tuning) < 2,
        f"tuning_config must have at most one number{what}, not {len(p.tuning)}, which ask for a "
        f"kernel that is not simulated; pass the first one",
        Code.UNSUPPORTED,
    )


def _check_offset(contract: Contract, p: Problem, what: str) -> None:
    """Check one value for each column and expert; only weights of two shapes may have offsets."""
    if not p.offset:
        return
    k, n = p.weight_shape(0)
    contract.require(
        (k, n) in OF_OFFSETS,
        f"offset must be None for weights that are not of {listed(tuple(map(str, OF_OFFSETS)))}"
        f"{what}, not given for {(k, n)}; leave it out",
    )
    shapes = tuple(operand.shape for operand in p.offset)
    contract.require(
        shapes == ((p.experts, 1, n),),
        f"offset must be one tensor of shape {(p.experts, 1, n)}{what}, not {list(shapes)}; pass "
        f"a number a column",
    )


def _check_scale(contract: Contract, p: Problem, what: str) -> None:
    """Check one value for each column and expert, or for each group of k, column and expert."""
    (scale,) = p.scale
    n = p.weight_shape(0)[1]
    shape = scale.shape
    fits = shape == (p.experts, n) or (
        len(shape) == 3 and (shape[0], shape[2]) == (p.experts, n) and shape[1] > 0
    )
    contract.require(
        len(p.weight[0].shape) == 3,
        f"weight must have the shape (e, k, n){what}, not shape {p.weight[0].shape}; reshape it",
    )
    contract.require(
        fits,
        f"scale must have shape ({p.experts}, {n}) or ({p.experts}, groups of k, {n}){what}, not "
        f"{shape}; pass a number a column",
    )


def _antiquant(contract: Contract, p: Problem) -> None:
    """Check the shapes of scales and offsets, and whether the call is simulated."""
    what = f" with {p.types}"
    for name, found in (
        ("antiquant_scale", p.antiquant_scale),
        ("antiquant_offset", p.antiquant_offset),
    ):
        _as_many(contract, name, found, p.weight)
        for place, operand in enumerate(found):
            _check_shape(contract, p, place, operand, what)
    for scale, offset in zip(p.antiquant_scale, p.antiquant_offset, strict=True):
        contract.require(
            scale.shape == offset.shape,
            f"{offset.name} must have the shape of {scale.name}, {scale.shape}, not "
            f"{offset.shape}; pass an offset for each scale",
        )
    sizes = {group_k(p, place) for place in range(len(p.weight))}
    has_groups = len(p.antiquant_scale[0].shape) == len(p.weight[0].shape)
    contract.require(
        not has_groups or len(sizes) == 1,
        f"groups of k must be equally long in all weights{what}, not {sorted(sizes)}; split the "
        f"call",
    )
    contract.require(
        not has_groups or not p.trans_weight,
        f"weight must be contiguous{what} and scales of groups, not a transposed view, whose "
        f"kernel is not simulated; make it contiguous",
        Code.UNSUPPORTED,
    )
    _check_asked(contract, p)


def _check_asked(contract: Contract, p: Problem) -> None:
    """Refuse a kernel that cannot run the call."""
    k, n = p.weight_shape(0)
    needs = {
        "antiquant_performance": (not p.trans_weight, "weight is contiguous"),
        "msd": (
            p.is_single and p.group_type == 0 and fits_msd(k, n),
            f"weight is one tensor (e, k, n), group_type 0, and k and n are multiples of {UNIT}, k "
            f"up to {LONGEST_K_OF_DIGITS}",
        ),
    }
    for name, (holds, what) in needs.items():
        contract.require(
            p.asked != name or holds,
            f"template {name!r} can run only if {what}; leave it out to get the vendor's choice",
        )


def _check_shape(contract: Contract, p: Problem, place: int, operand: Operand, what: str) -> None:
    """Check one value per column, `(e, n)` or `(n,)`; with int4 also `([e,] groups, n)`."""
    k, n = p.weight_shape(place)
    first = (p.experts,) if len(p.weight[place].shape) == 3 else ()
    shape = operand.shape
    in_groups = len(shape) == len(first) + 2 and shape[:-2] == first and shape[-1] == n
    fits = p.types.weight is INT4 and in_groups and shape[-2] > 0 and k % shape[-2] == 0
    known = str((*first, n))
    if p.types.weight is INT4:
        known += f" or ({', '.join([*map(str, first), 'groups of k', str(n)])})"
    contract.require(
        shape == (*first, n) or fits,
        f"{operand.name} must have shape {known}{what}, not {shape}; pass a number a column",
    )


LIMITS = {"antiquant": _antiquant, "a4w4": _a4w4, "a8w4": _a8w4, "coupled": _coupled}
"""Template -> its function that refuses calls."""


# ---- outputs of torch ----


def torch_outputs_of(given: TorchArguments, _: Sizes) -> tuple[tuple[tuple[Any, ...], str], ...]:
    """One output, or one for each group."""
    dtype = given["output_dtype"]
    dtype = given["x"][0].dtype if dtype is None else dtype
    shapes = _torch_along_k(given) if given["group_type"] == 2 else _torch_along_m(given)
    return tuple((shape, dtype) for shape in shapes)


def _torch_along_m(given: TorchArguments) -> list[tuple[Any, ...]]:
    xs, weights = given["x"], given["weight"]
    if given["split_item"] > 1:
        return [(sum(x.shape[0] for x in xs), columns_of(weights[0]))]
    if len(xs) == len(weights):
        return [(*x.shape[:-1], columns_of(weight)) for x, weight in zip(xs, weights, strict=True)]
    rows = [end - start for start, end in pairwise((0, *(given["group_list"] or ())))]
    return [(count, columns_of(weight)) for count, weight in zip(rows, weights, strict=False)]


def _torch_along_k(given: TorchArguments) -> list[tuple[Any, ...]]:
    (x, *_), weights = given["x"], given["weight"]
    if given["split_item"] > 1:
        return [(given["group_list"].shape[0], x.shape[0], columns_of(weights[0]))]
    return [(x.shape[0], columns_of(weight)) for weight in weights]
