"""npu_moe_token_unpermute: the weighted sum of the experts' results for each token.

.. code-block:: text

    output[t] = sum over k of permuted_tokens[sorted_indices[t * K + k]] * probs[t, k]

for K columns of *probs*, or one row for each token without them. All is fp32, rounded after each
product and each sum, k ascending; a 16-bit result is rounded once, to nearest, ties to even. A row
beyond permuted_tokens, and one whose probability is 0, is not read and adds nothing, NaN included.

Sources: hicann/ops-transformer moe/moe_token_unpermute, op_kernel and op_host, and its document.
Atlas A2 and A3; Atlas inference has another kernel, which is not simulated. Without values of
sorted_indices the rows are taken in order, and without those of probs none is 0. A negative index
reads other memory on a card, and is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT32, Array, DType
from npusim.data.integers import align_down, align_up
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.isa import Local
from npusim.kernel import Block, GmView, GmViews, Step, VectorCore, bindings, pieces
from npusim.kernel.launch import share
from npusim.kernel.rows import whole_blocks
from npusim.ops import _vocabulary as ops

FLOATS = (FLOAT16, BFLOAT16, FLOAT32)
SUPPORT = (
    ops.Row(
        on=ops.A2_A3,
        permuted_tokens=ops.Operands(FLOATS, ranks=(2, 2)),
        sorted_indices=ops.Operands((INT32,), ranks=(1, 1)),
        probs=ops.Operands(FLOATS, ranks=(2, 2)),
    ),
)
MOST_CHOICES = 512
"""Columns of probs (aclnnMoeTokenUnpermute.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call."""

    element: DType
    tokens: int
    choices: int
    rows: int
    """Rows of permuted_tokens."""
    width: int
    probability: DType | None
    """The type of probs."""
    taken: tuple[int, ...]
    """The row for each token and choice, -1 for one that adds nothing."""


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    rows, places = contract.operand("permuted_tokens"), contract.operand("sorted_indices")
    probs = contract.optional("probs")
    contract.require(
        not contract.boolean("padded_mode"),
        "padded_mode must be False, not True: the kernel takes no padding; leave it out",
    )
    (count,) = places.shape
    if count:
        contract.require_filled(rows)
    tokens, choices = (count, 1) if probs is None else probs.shape
    contract.require(
        tokens * choices == count,
        f"sorted_indices must have an entry for each of probs, {tokens} x {choices}, not {count}; "
        f"pass the second output of npu_moe_token_permute",
    )
    contract.require(
        choices <= MOST_CHOICES,
        f"probs must have at most {MOST_CHOICES} columns, not {choices}; add in several calls",
    )
    if places.array is not None and count:
        least = int(places.array.min())
        contract.require(least >= 0, f"sorted_indices must not be negative, not {least}; pass rows")
    return Problem(
        inputs=ops.present(rows, places, probs),
        outputs={"output": TensorSpec((tokens, rows.shape[1]), rows.spec.dtype)},
        element=rows.element,
        tokens=tokens,
        choices=choices,
        rows=rows.shape[0],
        width=rows.shape[1],
        probability=None if probs is None else probs.element,
        taken=_taken(rows.shape[0], places, probs),
    )


def _taken(rows: int, places: Operand, probs: Operand | None) -> tuple[int, ...]:
    found = np.arange(places.shape[0]) % max(1, rows) if places.array is None else places.array
    adds = found < rows
    if probs is not None and probs.array is not None:
        adds = adds & (probs.array.reshape(-1) != 0)
    return tuple(np.where(adds, found, -1).tolist())


# ---- tiling: op_host/moe_token_unpermute_tiling.cpp ----

RESERVED_BYTES, COLUMN_UNIT, MOST_BUFFERS, SPARE_BYTES = 5120, 512, 4, 256
"""Bytes reserved for indices and probabilities; the unit of columns; buffers of rows; and extra
bytes for the sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """Each core has its own tokens."""

    columns: int
    """Columns of a row at a time."""
    depth: int
    """Buffers of rows."""
    tokens_per_load: int
    """Tokens whose indices and probabilities are loaded together."""


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Whole rows if they fit, with as many buffers as then fit, up to four."""
    cores, ub_bytes = min(p.tokens, len(spec.vector_cores)), spec.cores["aiv"].usable_bytes("ub")
    columns = min(p.width, _most_columns(p, ub_bytes, 1))
    if align_up(p.width, COLUMN_UNIT) > _most_columns(p, ub_bytes, 1):
        columns = _most_columns(p, ub_bytes, 1)
    depth = MOST_BUFFERS
    while depth > 1 and columns > _most_columns(p, ub_bytes, depth):
        depth -= 1
    left = ub_bytes - align_up(columns, COLUMN_UNIT) * _column_bytes(p, depth) - SPARE_BYTES
    each = p.choices * INT32.nbytes(1)
    if p.probability is not None:
        each += p.choices * p.probability.nbytes(1)
        each += 0 if p.probability is FLOAT32 else p.choices * FLOAT32.nbytes(1)
    return Plan(
        block_dim=cores,
        columns=columns,
        depth=depth,
        tokens_per_load=max(1, min(-(-p.tokens // cores), left // each)),
    )


def _column_bytes(p: Problem, depth: int) -> int:
    """Bytes of a column: buffers of rows, the output, and two of fp32 unless the type is fp32."""
    return p.element.nbytes(depth + 1) + (0 if p.element is FLOAT32 else FLOAT32.nbytes(2))


def _most_columns(p: Problem, ub_bytes: int, depth: int) -> int:
    most = (ub_bytes - RESERVED_BYTES) // _column_bytes(p, depth) - COLUMN_UNIT
    return align_up(most, COLUMN_UNIT) if most % COLUMN_UNIT else align_down(most, COLUMN_UNIT)


# ---- kernel: op_kernel/moe_token_unpermute.h ----

PLACE, PROBABILITY = "place", "probability"
"""Registers."""


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Loop over tokens, then parts of the columns, then the rows of the token's choices."""
    core = VectorCore("npu_moe_token_unpermute", spec)
    kernel, terms = Unpermute(core, p, plan), _Terms(p, plan)
    rows = GmView.of("permuted_tokens", p.element, p.rows, p.width)
    output = GmView.of("output", p.element, p.tokens, p.width)
    names = {"sorted_indices": INT32, "probs": p.probability}
    lists = {x: GmView.vector(x, dtype, len(p.taken)) for x, dtype in names.items() if dtype}
    keeps = p.element is FLOAT32  # which sums in the output buffer
    steps = [Step(kernel.load, *terms.loads(tuple(lists.values())))]
    left, width, place = terms.left, terms.width, terms.place
    comes, is_first = terms.row >= 0, terms.choice == 0
    here = np.flatnonzero(comes)
    views = GmViews.of(rows, terms.row[here], left[here], 1, width[here])
    steps.append(Step(kernel.row, (place[here], is_first[here], views), *terms.when(here), keeps))
    for stage, which in ((kernel.nothing, is_first), (kernel.skip, ~is_first)):
        gone = np.flatnonzero(~comes & which)
        steps.append(Step(stage, (place[gone], width[gone]), *terms.when(gone), keeps))
    ends = np.flatnonzero(terms.choice == p.choices - 1)
    outs = GmViews.of(output, terms.token[ends], left[ends], 1, width[ends])
    steps.append(Step(kernel.end, (outs,), *terms.when(ends), keeps))
    return core.launch(*steps, bound=lambda _: bindings(rows, output, *lists.values()))


class _Terms:
    """The terms of the sums: an entry for each token, part of its columns and choice."""

    def __init__(self, p: Problem, plan: Plan) -> None:
        self._p, self._plan = p, plan
        self._shares = [share(p.tokens, plan.block_dim, core) for core in range(plan.block_dim)]
        left, width = np.array([*pieces(p.width, plan.columns)]).reshape(-1, 2).T
        self.token, part, self.choice = np.mgrid[: p.tokens, : left.size, : p.choices].reshape(
            3, -1
        )
        self.left, self.width = left[part], width[part]
        number = self.token * p.choices + self.choice
        self.row = np.array(p.taken, np.int64)[number]
        self._core = np.repeat(np.arange(plan.block_dim), [len(own) for own in self._shares])
        first = np.array([own.start for own in self._shares])[self._core]
        # The position of a token among those that are loaded together.
        at = (np.arange(p.tokens) - first) % plan.tokens_per_load
        self.place = at[self.token] * p.choices + self.choice
        self._order = np.arange(self.token.size)

    def when(self, chosen: Array) -> tuple[Array, Array]:
        """The cores of *chosen* terms, and their turns."""
        return self._core[self.token[chosen]], self._order[chosen]

    def loads(self, lists: tuple[GmView, ...]) -> tuple[tuple[GmViews, ...], Array, Array]:
        """Views of *lists* for the tokens that are loaded together, their cores and turns."""
        each = [
            (core, own.start + first, count)
            for core, own in enumerate(self._shares)
            for first, count in pieces(len(own), self._plan.tokens_per_load)
        ]
        core, token, count = np.array(each, np.int64).reshape(-1, 3).T
        k = self._p.choices
        views = tuple(GmViews.of(view, 0, token * k, 1, count * k) for view in lists)
        turns = np.searchsorted(self.token, token)
        return views, core, turns - 1


class Unpermute:
    """The buffers of a core, and its stages."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan) -> None:
        self.core, self.p = core, p
        size, listed = whole_blocks(plan.columns, FLOAT16), plan.tokens_per_load * p.choices
        self.rows = core.vecin(p.element, size, plan.depth)
        self.places = core.tile(INT32, listed)
        self.out = core.vecout(p.element, size)
        self.is_wide = p.element is FLOAT32
        self.sums: Local | None = None
        self.values: Local | None = None
        if not self.is_wide:
            self.sums, self.values = core.tile(FLOAT32, size), core.tile(FLOAT32, size)
        self.loaded = self.probs = None
        if p.probability is not None:
            self.loaded = self.probs = core.tile(p.probability, listed)
            if p.probability is not FLOAT32:
                self.probs = core.tile(FLOAT32, listed)

    def load(self, indices: GmView, probs: GmView | None = None) -> None:
        """Load the indices and probabilities of some tokens for the scalar unit."""
        core = self.core
        core.sync("scalar", "mte2")
        core.data_copy(self.places[: indices.columns], indices.operand)
        if probs is None:
            core.sync("mte2", "scalar")
            return
        assert self.loaded is not None
        assert self.probs is not None
        core.data_copy(self.loaded[: probs.columns], probs.operand)
        core.sync("mte2", "scalar")
        if self.probs is not self.loaded:
            core.sync("mte2", "vector")
            core.cast(self.probs[: probs.columns], self.loaded[: probs.columns])
            core.sync("vector", "scalar")
            core.sync("vector", "mte2")

    def row(self, place: int, is_first: bool, row: GmView) -> None:
        """Start a sum with a row times its probability, or add that to it."""
        core, n = self.core, row.columns
        self._read(place)
        tile = core.load_rows(self.rows, row)
        target = self._target(n, is_first=is_first)
        values = target if is_first else tile[:n]
        if is_first and self.is_wide:
            core.copy(target, tile[:n])
        elif not self.is_wide:
            assert self.values is not None
            values = target if is_first else self.values[:n]
            core.cast(values, tile[:n])
        if self.probs is not None:
            core.mul(values, values, PROBABILITY)
        if not is_first:
            core.add(target, target, values)
        self.rows.free(tile)

    def nothing(self, place: int, columns: int) -> None:
        """Start a sum with zero."""
        self._read(place)
        self.core.duplicate(self._target(columns, is_first=True), 0.0)

    def skip(self, place: int, _: int) -> None:
        """Skip a row that adds nothing."""
        self._read(place)

    def end(self, output: GmView) -> None:
        """Round the sum and store it to *output*, a row."""
        core = self.core
        if self.is_wide:
            (tile,) = self.out.in_use
        else:
            tile, n = self.out.alloc(), output.columns
            core.cast(tile[:n], self._target(n, is_first=False), "rint")
        core.store_rows(self.out, tile, output)

    def _target(self, columns: int, *, is_first: bool) -> Local:
        """The location of a sum: the output buffer, if that is fp32."""
        if self.sums is not None:
            return self.sums[:columns]
        tile = self.out.alloc() if is_first else self.out.in_use[0]
        return tile[:columns]

    def _read(self, place: int) -> None:
        self.core.get_value(PLACE, self.places[place : place + 1])
        if self.probs is not None:
            self.core.get_value(PROBABILITY, self.probs[place : place + 1])


# ---- oracle ----


def oracle(given: ops.Given) -> Array:
    """Whole arrays in plain numpy."""
    rows, places, probs = given.permuted_tokens, given.sorted_indices, given.probs
    weights = np.ones((len(places), 1), np.float32) if probs is None else probs.astype(np.float32)
    places = places.reshape(weights.shape)
    total = np.zeros((len(weights), rows.shape[1]), np.float32)
    wide, is_begun = rows.astype(np.float32), np.zeros((len(weights), 1), np.bool_)
    with np.errstate(all="ignore"):
        for column, weight in zip(places.T, weights.T, strict=True):
            adds = ((column < len(rows)) & (weight != 0))[:, None]
            row = wide[np.minimum(column, len(rows) - 1)] * weight[:, None]
            # The first term is not added to zero, so it may leave a negative zero.
            total = np.where(adds, np.where(is_begun, total + row, row), total)
            is_begun[:] = True
        return given.rounded(total, rows.dtype)


def _outputs(given: ops.TorchArguments, _: object) -> tuple[tuple[tuple[int, ...], str], ...]:
    rows, places, probs = (given[x] for x in ("permuted_tokens", "sorted_indices", "probs"))
    tokens = (places if probs is None else probs).shape[0]
    return (((tokens, rows.shape[1]), rows.dtype),)


OPERATOR = ops.Operator(
    kernel_type="MoeTokenUnpermute",
    document=__doc__,
    support=SUPPORT,
    elsewhere="run it on Atlas A2 or A3",
    unsimulated=ops.ATLAS_INFERENCE,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    value_dependent_inputs=("sorted_indices", "probs"),
    torch=(
        ops.TorchFunction(
            schema="npu_moe_token_unpermute(Tensor permuted_tokens, Tensor sorted_indices, "
            "Tensor? probs=None, bool padded_mode=False, int[]? restore_shape=None) -> Tensor",
            aclnn=lambda _: "aclnnMoeTokenUnpermute",
            outputs=_outputs,
            gradient=ops.Gradient(
                "permuted_tokens, probs: npu_moe_token_unpermute_grad(permuted_tokens, grad, "
                "sorted_indices, probs, padded_mode, restore_shape)",
                unread_without=(("permuted_tokens", "probs"),),
            ),
        ),
    ),
)
