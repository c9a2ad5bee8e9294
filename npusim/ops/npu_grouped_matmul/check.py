"""What npu_grouped_matmul accepts: types first, then how a call is grouped, then shapes.

ops-transformer@c29bc10 gmm/grouped_matmul/README.md, torch_npu-npu_grouped_matmul.md, and
op-plugin@517f2e7, GroupedMatmulKernelNpuOpApi.cpp.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npusim.data.errors import shown
from npusim.data.tensor import Operand
from npusim.ops._contract import Contract, listed
from npusim.ops._operands import fixpipe_words
from npusim.ops._protocol import present
from npusim.ops._support import ATLAS_INFERENCE
from npusim.ops.npu_grouped_matmul.problem import ENDS, PAIRS, ROWS, Problem, joined
from npusim.ops.npu_grouped_matmul.shapes import check_limits, check_parameters, outputs_of
from npusim.ops.npu_grouped_matmul.support import PACKED, Types

MOST_GROUPS = 1024
MOST_OF_LISTS = 128
"""The most groups with one weight tensor, and with several (torch_npu-npu_grouped_matmul.md)."""
KNOWN: dict[tuple[int, bool], tuple[str, ...]] = {
    (-1, True): ("n/n/n",),
    (0, False): ("1/1/1", "1/n/1", "n/n/1"),
    (2, False): ("1/1/1",),
    (2, True): ("1/n/n",),
}
"""group_type, whether each group has an output -> tensors of x, of weight and of the output."""
KNOWN_OF_INTS: dict[tuple[int, bool], tuple[str, ...]] = {
    (-1, True): ("n/n/n",),
    (0, True): ("1/n/n",),
    (0, False): ("1/n/1", "n/n/1"),
}
"""The same if group_list is a list of integers, which is a different function of aclnn."""
SPLITS = {True: "0 or 1", False: "2 or 3"}
LISTS = "bias", "scale", "offset", "per_token_scale", "antiquant_scale", "antiquant_offset"
Operands = tuple[Operand, ...]


def check(contract: Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    xs, weights = _matrices(contract)
    output = contract.value("output_dtype")
    contract.one_of("output_dtype", xs[0].element.name if output is None else output)
    groups = _group_list(contract)
    group_type, is_split = _grouping(contract, xs, weights)
    lists = {name: contract.optional_operands(name) for name in LISTS}
    act_type = contract.integer("act_type")
    types: Types = contract.rows[0].facts
    if any(scale.element in PACKED for scale in lists["scale"]):
        lists["scale"] = tuple(
            fixpipe_words(contract, scale, types.output) for scale in lists["scale"]
        )
    p = Problem(
        inputs=(),
        outputs={},
        types=types,
        x=xs,
        weight=weights,
        **lists,
        group_list=groups,
        group_type=group_type,
        group_list_type=contract.whole("group_list_type", contract.value("group_list_type")),
        act_type=act_type,
        tuning=_tuning(contract),
        asked=_asked(contract, types),
    )
    lists = {"x": xs, "weight": weights} | lists
    operands = [joined(name, parts) for name, parts in lists.items() if parts]
    outputs = outputs_of(contract, p, is_split)
    p = replace(p, inputs=present(*operands, groups), outputs=outputs)
    _check_groups(contract, p)
    check_parameters(contract, p)
    check_limits(contract, p)
    return p


def _matrices(contract: Contract) -> tuple[Operands, Operands]:
    """Both lists, each with one layout, all transposed or none."""
    xs, weights = contract.matrices("x"), contract.matrices("weight")
    for name, (first, *others) in (("x", xs), ("weight", weights)):
        for each in others:
            contract.require(
                each.spec.layout == first.spec.layout,
                f"{each.name} must be in {first.spec.layout} like {first.name}, not in "
                f"{each.spec.layout}; make all tensors of {name} alike",
            )
            contract.require(
                each.spec.transposed == first.spec.transposed or 1 in each.shape[-2:],
                f"{each.name} must be {_turned(first)} like {first.name}, not {_turned(each)}; "
                f"make all tensors of {name} alike",
            )
    return xs, weights


def _turned(operand: Operand) -> str:
    return "a transposed view" if operand.spec.transposed else "contiguous"


def _asked(contract: Contract, types: Types) -> str | None:
    """The kernel that the caller selects."""
    template = contract.value("template")
    if template is None:
        return None
    contract.require(
        isinstance(template, str) and template in types.names,
        f"template must be {listed(types.names)} with {types}, not {shown(template)}; leave it out "
        f"to get the vendor's choice",
    )
    return str(template)


def _tuning(contract: Contract) -> tuple[int, ...]:
    return tuple(contract.value("tuning_config") or ())


# ---- lists, group_type and split_item ----


def _grouping(contract: Contract, xs: Operands, weights: Operands) -> tuple[int, bool]:
    """The group_type, and whether each group has an output; checks the lists against both.

    -1: each x by its weight; 0: rows of x; 2: along k.
    """
    split_item, groups = contract.integer("split_item"), contract.value("group_list")
    contract.require(
        split_item in range(4),
        f"split_item must be 0, 1, 2 or 3, not {split_item}; pass 0 or 1 for an output for each "
        f"group, 2 or 3 for one",
    )
    is_split = split_item < 2
    is_of_ints = isinstance(groups, list | tuple)
    kind = _group_type(contract, is_each=len(xs) > 1 and is_split)
    contract.require(
        kind != -1 or groups is None or is_of_ints,
        "group_list must be None with group_type=-1; leave it out",
    )
    contract.require(
        not is_of_ints or len(weights[0].shape) == 2,
        f"weight must be a list of (k, n) matrices if group_list is a list of integers, not of "
        f"shape {weights[0].shape}; unbind it, or pass group_list as a tensor",
    )
    known = (KNOWN_OF_INTS if is_of_ints else KNOWN).get((kind, is_split), ())
    if not known:
        splits = tuple(SPLITS[s] for k, s in (KNOWN_OF_INTS if is_of_ints else KNOWN) if k == kind)
        contract.fail(
            f"split_item must be {listed(splits)} with group_type={kind}, not {split_item}; "
            f"change it"
        )
    contract.require(
        any(_fits(form, xs, weights) for form in known),
        f"x and weight must be {listed(tuple(map(_words, known)))} with group_type={kind} and "
        f"split_item={split_item}, not {len(xs)} and {len(weights)} tensors; change the lists",
    )
    return kind, is_split


def _fits(form: str, xs: Operands, weights: Operands) -> bool:
    """Whether the lengths of the lists match *form*; a single tensor is a list, too."""
    x, weight, _ = form.split("/")
    x_fits = len(xs) == (len(weights) if x == "n" else 1)
    return x_fits and (weight == "n" or len(weights) == 1)


def _words(form: str) -> str:
    """The lengths of x and weight of *form*, as errors name them."""
    x, weight, _ = form.split("/")
    if (x, weight) == ("n", "n"):
        return "as many tensors"
    return "one tensor and several" if weight == "n" else "one tensor each"


def _group_type(contract: Contract, *, is_each: bool) -> int:
    """group_type; if it is None with a list of integers, it follows from the lists."""
    value, groups = contract.value("group_type"), contract.value("group_list")
    is_of_ints = isinstance(groups, list | tuple)
    on_inference = contract.spec.series in ATLAS_INFERENCE
    contract.require(
        not (is_of_ints and on_inference),
        f"group_list must be a tensor on {contract.spec.series}, not a list of integers; pass one",
    )
    if value is None:
        contract.require(
            is_of_ints,
            "group_type must be given unless group_list is a list of integers, not None; pass -1, "
            "0 or 2",
        )
        return int(contract.one_of("group_type", -1 if is_each else 0))
    return contract.integer("group_type")


# ---- group_list ----


def _group_list(contract: Contract) -> Operand | None:
    """group_list as the kernel reads it; a list of integers becomes a tensor."""
    value = contract.value("group_list")
    kind = contract.whole("group_list_type", contract.value("group_list_type"))
    contract.require(
        kind in (ENDS, ROWS, PAIRS),
        f"group_list_type must be 0, 1 or 2, not {kind}; pass 0 for ends, 1 for rows, 2 for pairs "
        f"of an expert and its rows",
    )
    if value is None:
        return None
    if isinstance(value, list | tuple):
        contract.require(
            kind == ENDS,
            f"group_list_type must be 0 if group_list is a list of integers, not {kind}; pass the "
            f"end of each group",
        )
        ends = [contract.whole(f"group_list[{place}]", one) for place, one in enumerate(value)]
        value = np.array(ends, np.int64)
    groups = contract.operand("group_list", value)
    contract.one_of("group_list_type", kind)
    wanted = "(e, 2)" if kind == PAIRS else "(e,)"
    is_pairs = len(groups.shape) == 2 and groups.shape[1] == 2
    contract.require(
        (is_pairs if kind == PAIRS else len(groups.shape) == 1) and groups.shape[0] > 0,
        f"group_list must have shape {wanted} with group_list_type={kind}, not {groups.shape}; "
        f"{'pass an expert and its rows each' if kind == PAIRS else 'pass a number a group'}",
    )
    return groups


def _check_groups(contract: Contract, p: Problem) -> None:
    """Check the length of group_list, and its values if there are any, against the tensors."""
    groups = p.group_list
    several = len(p.x) > 1
    if groups is None:
        contract.require(
            p.group_type == -1 or several or (len(p.weight) > 1 and p.group_type == 2),
            f"group_list must be given with group_type={p.group_type} and one x, not None; pass "
            f"the end of each group",
        )
        return
    contract.require(
        p.group_type != 2 or len(p.weight) == 1,
        "group_list must be None with group_type=2 and several weights; leave it out",
    )
    most = MOST_GROUPS if len(p.weight) == 1 else MOST_OF_LISTS
    held = "one tensor" if len(p.weight) == 1 else "several tensors"
    contract.require(
        groups.shape[0] <= most,
        f"group_list must have at most {most} groups with {held} of weight, not "
        f"{groups.shape[0]}; split the call",
    )
    contract.require(
        p.group_type == 2 or groups.shape[0] == p.experts,
        f"group_list must have as many groups as there are weights, {p.experts}, not "
        f"{groups.shape[0]}; pass one for each",
    )
    if groups.array is not None:
        _check_values(contract, p)


def _check_values(contract: Contract, p: Problem) -> None:
    """Refuse values that would read beyond x; the card does not check them."""
    experts, sizes = p.listed[:, 0], p.listed[:, 1]
    total = p.x_shape(0)[1] if p.group_type == 2 else p.rows
    what = "columns" if p.group_type == 2 else "rows"
    must = "not decrease" if p.group_list_type == ENDS else "have no negative numbers"
    # A pair without rows ends the list, whatever its expert is.
    lowest = 0 if p.group_list_type == PAIRS else int(sizes.min())
    contract.require(
        lowest >= 0,
        f"group_list must {must}, but a group has {lowest} {what}; pass the groups in order",
    )
    found = sum(max(size, 0) for size in sizes.tolist())
    contract.require(
        found <= total,
        f"group_list must list at most the {total} {what} of x, not {found}; pass the groups of "
        f"this x",
    )
    for expert in experts.tolist():
        contract.require(
            0 <= expert < p.experts,
            f"group_list must name experts from 0 to {p.experts - 1}, not {expert}; pass the "
            f"number of a weight",
        )
    if len(p.x) > 1:
        for place, count in enumerate(sizes.tolist()):
            rows = p.x_shape(place)[0]
            contract.require(
                count == rows,
                f"group_list must give {p.x[place].name} its {rows} rows, not {count}; leave it "
                f"out",
            )
