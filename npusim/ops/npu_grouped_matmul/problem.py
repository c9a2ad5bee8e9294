"""What the kernel of npu_grouped_matmul receives."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.data.dtypes import INT4
from npusim.data.tensor import Operand, TensorSpec
from npusim.ops import _protocol
from npusim.ops._lists import starts
from npusim.ops._matrix import logical_shape
from npusim.ops.npu_grouped_matmul.groups import Group, Listed, listed
from npusim.ops.npu_grouped_matmul.support import Types

__all__ = ["Problem"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call.

    Programs know each list of tensors by the one name of its parameter: several tensors lie behind
    each other, `x_starts` and `weight_starts` say where. Outputs have a name each.
    """

    types: Types
    x: tuple[Operand, ...]
    weight: tuple[Operand, ...]
    bias: tuple[Operand, ...]
    scale: tuple[Operand, ...]
    offset: tuple[Operand, ...]
    per_token_scale: tuple[Operand, ...]
    antiquant_scale: tuple[Operand, ...]
    antiquant_offset: tuple[Operand, ...]
    """Empty where they are left out."""
    group_list: Operand | None
    group_type: int
    group_list_type: int
    act_type: int
    tuning: tuple[int, ...]
    """tuning_config: the rows that an expert is expected to have, and more."""
    asked: str | None = None
    """The kernel that the caller names, of those that its types have."""

    @property
    def is_empty(self) -> bool:
        """Whether all outputs are; some groups may have no rows."""
        return not any(spec.size for spec in self.outputs.values())

    @property
    def experts(self) -> int:
        """How many weights there are; along k, how many groups."""
        if self.group_type == 2:
            return len(self.weight) if self.group_list is None else self.group_list.shape[0]
        first = self.weight[0].shape
        return first[0] if len(first) == 3 else len(self.weight)

    @property
    def rows(self) -> int:
        """Of all tensors of x together."""
        return sum(self.x_shape(place)[0] for place in range(len(self.x)))

    @property
    def trans_x(self) -> bool:
        return self.x[0].spec.transposed

    @property
    def trans_weight(self) -> bool:
        return self.weight[0].spec.transposed

    @property
    def is_nz(self) -> bool:
        return self.weight[0].spec.layout != "ND"

    @property
    def x_starts(self) -> tuple[int, ...]:
        """Bytes from the first tensor of x to each."""
        return starts(self.x)

    @property
    def weight_starts(self) -> tuple[int, ...]:
        return starts(self.weight)

    def x_shape(self, place: int) -> tuple[int, int]:
        """Rows and k, in elements, of tensor number *place*."""
        *rows, k = logical_shape(self.x[place], self.types.x is INT4)
        count = 1
        for size in rows:
            count *= size
        return count, k

    def weight_shape(self, place: int) -> tuple[int, int]:
        """k and n, in elements, of tensor number *place*, or of each of its matrices."""
        k, n = logical_shape(self.weight[place], self.types.weight is INT4)[-2:]
        return k, n

    @property
    def listed(self) -> tuple[Listed, ...]:
        """What the cores read in group_list; nothing without one."""
        if self.group_list is None:
            return ()
        total = self.x_shape(0)[1] if self.group_type == 2 else self.rows
        return listed(self.group_list, self.group_list_type, total)

    @property
    def groups(self) -> tuple[Group, ...]:
        """The products, in the order of the list; those without rows too."""
        if self.group_type == 2:
            return tuple(_along_k(self))
        return tuple(_along_m(self))

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(self.outputs)

    def output_spec(self, place: int) -> TensorSpec:
        return self.outputs[self.output_names[place]]


def _along_m(p: Problem) -> list[Group]:
    """Rows of x in runs, or a tensor of x each."""
    several_x, several_y = len(p.x) > 1, len(p.outputs) > 1
    single_weight = len(p.weight) == 1
    entries = p.listed
    if several_x or not entries:
        # The tensors say it themselves; a list beside them must agree.
        entries = tuple(Listed(place, p.x_shape(place)[0]) for place in range(len(p.x)))
    found, row = [], 0
    for index, (expert, count) in enumerate(entries):
        weight = 0 if single_weight else expert
        k, n = p.weight_shape(weight)
        found.append(
            Group(
                *(index, expert, max(count, 0), k, n),
                x=index if several_x else 0,
                x_row=0 if several_x else row,
                x_k=0,
                weight=weight,
                matrix=expert if single_weight else 0,
                weight_k=0,
                output=index if several_y else 0,
                output_row=0 if several_y else row,
                row=row,
            )
        )
        row += max(count, 0)
    return found


def _along_k(p: Problem) -> list[Group]:
    """Numbers along k in runs."""
    m, _ = p.x_shape(0)
    single_weight = len(p.weight) == 1
    entries = p.listed
    if not entries:
        entries = tuple(Listed(place, p.weight_shape(place)[0]) for place in range(len(p.weight)))
    found, first = [], 0
    for index, (expert, count) in enumerate(entries):
        weight = 0 if single_weight else expert
        found.append(
            Group(
                *(index, expert, m, max(count, 0), p.weight_shape(weight)[1]),
                x=0,
                x_row=0,
                x_k=first,
                weight=weight,
                matrix=0,
                weight_k=first if single_weight else 0,
                output=0 if single_weight else index,
                output_row=index * m if single_weight else 0,
                row=0,
            )
        )
        first += max(count, 0)
    return found
