"""npu_moe_init_routing: token rows sorted by expert, with numbered choices.

.. code-block:: text

    order               = the choices, sorted stably by expert_idx
    expanded_expert_idx = expert_idx[order]
    expanded_row_idx[row_idx[order[i]]] = i
    output[i]           = x[row_idx[order[i]] % tokens]         of min(tokens, active_num) * k rows

for x `(tokens, width)` and row_idx and expert_idx `(tokens, k)`. row_idx numbers the choices:
choice j of a token is j * tokens + token.

Each core sorts all choices in its buffer, by expert and then by number, and copies the rows of its
share of the tokens, or of its share of the choices if there are fewer tokens than cores and choices
per token; core 0 stores both lists.

Sources: ops-transformer@c29bc10 moe/moe_init_routing, op_kernel (fullload) and op_host; the
operator's document. Atlas A2 and A3. Not simulated are other values of
row_idx, and the kernels for more choices, or longer rows, than the buffer holds:
:mod:`npusim.torch` composes these from several operators. Without values the choices are taken to
be sorted. Assumed: the padding of the last 32 keys is written before the keys, and row_idx is
copied to the buffer of the sort.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT32, Array, DType
from npusim.data.errors import Code
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES
from npusim.kernel import Binding, Block, GmView, Step, VectorCore
from npusim.kernel.rows import whole_blocks
from npusim.kernel.sequences import count_up
from npusim.ops import _vocabulary as ops
from npusim.ops._sorting import Sorter, padded

SUPPORT = tuple(
    ops.Row(
        on=ops.A2_A3,
        x=ops.Operands((dtype,), shape="tokens width"),
        row_idx=ops.Operands((INT32,), shape="tokens k"),
        expert_idx=ops.Operands((INT32,), shape="tokens k"),
    )
    for dtype in (FLOAT16, BFLOAT16, FLOAT32)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call."""

    element: DType
    tokens: int
    k: int
    width: int
    places: tuple[int, ...]
    """The output row of each choice, by its number."""

    @property
    def active(self) -> int:
        """Rows of the output."""
        return self.output.shape[0]


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments match; raises OpError."""
    x, rows, experts = map(contract.operand, ("x", "row_idx", "expert_idx"))
    active = contract.integer("active_num")
    contract.require(
        active >= 0, f"active_num must not be negative, not {active}; pass how many tokens count"
    )
    contract.require_filled(experts)
    tokens, k = experts.shape
    width, choices = x.shape[1], tokens * k
    contract.require(
        width > 0 and active > 0,
        f"x must have columns, and active_num be positive, not {width} and {active}; leave the "
        f"call out",
    )
    return Problem(
        inputs=(x, rows, experts),
        outputs={
            "output": TensorSpec((min(tokens, active) * k, width), x.spec.dtype),
            "expanded_row_idx": TensorSpec((choices,), "int32"),
            "expanded_expert_idx": TensorSpec((choices,), "int32"),
        },
        element=x.element,
        tokens=tokens,
        k=k,
        width=width,
        places=_places(contract, rows, experts),
    )


def _places(contract: ops.Contract, rows: Operand, experts: Operand) -> tuple[int, ...]:
    """The output row of each choice, by its number."""
    tokens, k = experts.shape
    numbers = np.arange(tokens * k).reshape(k, tokens).T
    if rows.array is not None:
        contract.require(
            bool((rows.array == numbers).all()),
            f"row_idx must be {tokens} * j + token for choice j of each token, as "
            f"npu_moe_gating_top_k_softmax has it, not other numbers, which are not simulated; "
            f"make it so",
            Code.UNSUPPORTED,
        )
    if experts.array is None:
        return tuple(range(tokens * k))
    order = np.argsort(experts.array.reshape(-1), kind="stable")
    found = np.empty(tokens * k, np.int64)
    found[numbers.reshape(-1)[order]] = np.arange(tokens * k)
    return tuple(found.tolist())


# ---- tiling: op_host/moe_init_routing_tiling.cpp (IsFullLoad) ----

LONGEST = 16376
"""Most columns of a row that is loaded in one piece (MAX_COLS_ONE_LOOP)."""
SORT_BUFFERS, SORT_WORDS = 6, 2
"""Buffers of the sort, and words per choice of each (ONE_CORE_SORT_BUFFER, KV_FACTOR)."""
ALIGNED = 32
"""The number of sorted choices is padded to a multiple of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """The share of a core."""

    rows: int
    """Tokens of a core."""
    choices: int
    """Choices of each of its tokens; if not all of them, each core has all tokens."""


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Divide the tokens among the cores, or the choices if there are more of these."""
    cores = len(spec.vector_cores)
    if p.tokens < min(cores, p.k):
        each = ceil_div(p.k, cores)
        return Plan(block_dim=ceil_div(p.k, each), rows=p.tokens, choices=each)
    each = ceil_div(p.tokens, cores)
    return Plan(block_dim=ceil_div(p.tokens, each), rows=each, choices=p.k)


def _require_room(contract: ops.Contract, p: Problem) -> None:
    """Refuse a call that does not fit into the buffer."""
    spec = contract.spec
    cores, ub_bytes = len(spec.vector_cores), spec.cores["aiv"].usable_bytes("ub")
    count = p.tokens * p.k
    most = align_down((ub_bytes - cores * BLOCK_BYTES) // ALIGNED, ALIGNED)
    sort_bytes = INT32.nbytes(align_up(count, ALIGNED) * SORT_WORDS * SORT_BUFFERS)
    row_bytes = p.element.nbytes(whole_blocks(p.width, p.element))
    room_bytes = ub_bytes - sort_bytes - row_bytes * tile(spec, p).rows
    contract.require(
        count <= most and p.width <= LONGEST and room_bytes > 0,
        f"x and expert_idx must fit the buffer of each core, not be of {count} choices and rows of "
        f"{p.width} columns: kernels of more are not simulated; use npu_moe_init_routing_v2",
        Code.UNSUPPORTED,
    )


def checked(contract: ops.Contract) -> Problem:
    """Check a call, and that it fits into the buffer."""
    p = check(contract)
    _require_room(contract, p)
    return p


# ---- kernel: op_kernel/moe_init_routing_fullload.h ----

LOWEST = -3.4e38
"""The key of the padding (MIN_FP32)."""
PLACE = "place"
"""The scalar register with the output row of a choice."""


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Each core sorts, then copies its rows one by one."""
    kernel = Routing(VectorCore("npu_moe_init_routing", spec), p, plan)
    splits_rows = plan.choices == p.k
    x = GmView.of("x", p.element, p.tokens, p.width)
    output = GmView.of("output", p.element, p.active, p.width)
    cores = np.arange(plan.block_dim, dtype=np.int64)
    firsts = [core * plan.rows if splits_rows else 0 for core in cores.tolist()]
    own = [x[first : first + plan.rows, :] for first in firsts]
    looks: list[tuple[int, int, int]] = []
    puts: list[tuple[int, int, int, GmView]] = []
    for core, first in enumerate(firsts):
        j0 = 0 if splits_rows else core * plan.choices
        for row in range(own[core].rows):
            for j in range(j0, min(j0 + plan.choices, p.k)):
                number = p.tokens * j + first + row
                turn = len(looks) + 1
                looks.append((core, turn, number))
                place = p.places[number]
                if place < p.active:
                    puts.append((core, turn, row, output[place : place + 1, :]))
    end = np.full(cores.size, len(looks) + 1, np.int64)
    begin = np.zeros(cores.size, np.int64)
    of_core, turns, numbers = (np.array(each, np.int64) for each in zip(*looks, strict=True))
    steps = [
        Step(kernel.sort, (own, cores == 0), cores, begin, keeps_slots=True),
        Step(kernel.look, (numbers,), of_core, turns, keeps_slots=True),
    ]
    if puts:
        *own_places, targets = map(list, zip(*puts, strict=True))
        of_core, turns, rows = (np.array(each, np.int64) for each in own_places)
        steps.append(Step(kernel.put, (rows, targets), of_core, turns, keeps_slots=True))
    steps.append(Step(kernel.end, (), cores, end, keeps_slots=True))
    bound = {name: Binding(name) for name in (*(each.name for each in p.inputs), *p.outputs)}
    return kernel.core.launch(*steps, bound=lambda _: bound)


class Routing:
    """The buffers and stages of a core."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan) -> None:
        self.core, self.count = core, p.tokens * p.k
        self.most = padded(self.count)
        self.pitch = whole_blocks(p.width, p.element)
        self.x = core.tiles(p.element, plan.rows * self.pitch, "mte2", "mte3")
        self.listed = core.vecin(INT32, 2 * self.most)
        self.places = core.tiles(INT32, self.most, "vector", "scalar")
        self.experts = core.vecout(INT32, self.most)
        self.keys = core.tile(FLOAT32, self.most)
        self.numbers = core.tile(INT32, self.most)
        self.sorter = Sorter(core, self.most)

    def sort(self, x: GmView, stores: bool) -> None:
        """Load rows *x* and sort all choices; core 0 *stores* both lists."""
        core, count = self.core, self.count
        rows, listed = self.x.alloc(), self.listed.alloc()
        for place, name in enumerate(("expert_idx", "row_idx")):
            core.fill(listed[place * self.most :][:count], GmView.vector(name, INT32, count))
        core.fill(rows, x, self.pitch)
        self.x.enque(rows)
        self.listed.enque(listed)
        listed = self.listed.deque()
        keys, numbers = self.keys[:count], self.numbers[:count]
        self._fill_up()
        core.duplicate(self.numbers, 0)
        core.cast(keys, listed[:count], "none")
        core.mul(keys, keys, -1.0)
        core.copy(numbers, listed.at(self.most, count))
        self.listed.free(listed)
        self.sorter.sort(self.keys, self.numbers)
        experts = self.experts.alloc()
        self.sorter.take_keys(keys)
        self.sorter.take_indices(numbers)
        core.mul(keys, keys, -1.0)
        core.cast(experts[:count], keys, "round")
        # The second sort is by number; the positions after the first sort are its payload.
        self._fill_up()
        core.cast(keys, numbers, "none")
        core.mul(keys, keys, -1.0)
        count_up(core, self.numbers, 0)
        self.sorter.sort(self.keys, self.numbers)
        places = self.places.alloc()
        self.sorter.take_indices(places[:count])
        self.experts.enque(experts)
        experts = self.experts.deque()
        if stores:
            core.sync("vector", "mte3")
            for name, tile in (("expanded_expert_idx", experts), ("expanded_row_idx", places)):
                core.put_rows(tile[:count], GmView.vector(name, INT32, count))
        self.experts.free(experts)
        self.places.enque(places)
        self.places.deque()
        self.x.deque()

    def _fill_up(self) -> None:
        """Pad the last 32 keys, so that the padding is sorted behind all choices."""
        last = self.count // ALIGNED * ALIGNED
        if last < self.count:
            self.core.duplicate(self.keys[last : last + ALIGNED], LOWEST)

    def look(self, number: int) -> None:
        """Read the output row of the choice with this *number*."""
        (places,) = self.places.in_use
        self.core.get_value(PLACE, places[number : number + 1])

    def put(self, row: int, target: GmView) -> None:
        """Copy *row* of the core's rows to *target*."""
        (rows,) = self.x.in_use
        self.core.sync("scalar", "mte3")
        self.core.put_rows(rows.at(row * self.pitch, target.columns), target)

    def end(self) -> None:
        """All rows have been copied."""
        self.x.free(*self.x.in_use)
        self.places.free(*self.places.in_use)


# ---- oracle ----


def oracle(given: ops.Given) -> tuple[Array, Array, Array]:
    """The output, the output row of each choice, and the sorted experts."""
    (tokens, k), experts = given.expert_idx.shape, given.expert_idx.reshape(-1)
    order = np.argsort(experts, kind="stable")
    sources = given.row_idx.reshape(-1)[order]
    places = np.empty(tokens * k, np.int32)
    places[sources] = np.arange(tokens * k)
    first = sources[: min(tokens, given.active_num) * k]
    return given.x[first % tokens], places, experts[order]


def _outputs(given: ops.TorchArguments, _: object) -> tuple[tuple[tuple[object, ...], str], ...]:
    x, (tokens, k) = given["x"], given["expert_idx"].shape
    rows = min(tokens, given["active_num"]) * k
    return (((rows, x.shape[1]), x.dtype), *[((tokens * k,), "int32")] * 2)


OPERATOR = ops.Operator(
    kernel_type="MoeInitRouting",
    document=__doc__,
    support=SUPPORT,
    elsewhere="run it on Atlas A2 or A3",
    contract=checked,
    tile=tile,
    build=build,
    oracle=oracle,
    value_dependent_inputs=("row_idx", "expert_idx"),
    torch=(
        ops.TorchFunction(
            schema="npu_moe_init_routing(Tensor x, Tensor row_idx, Tensor expert_idx, "
            "int active_num) -> (Tensor, Tensor, Tensor)",
            aclnn=lambda _: "aclnnMoeInitRouting",
            outputs=_outputs,
        ),
    ),
)
