"""The program that each core runs for npu_moe_finalize_routing.

A tile of tokens starts with its skips. Then the rows of each token follow, one after the other: the
scalar unit reads the row's index from global memory, mte2 loads the row into one of two buffers,
and the vector pipe adds the bias, multiplies by the scale and adds that to the sum of its token.

ops-transformer@c29bc10 moe/moe_finalize_routing/op_kernel. Assumed: that the expert of a row is
read from global memory too, that the scales of a tile are loaded at once, and that the next tile
starts when the sums of this one have left the buffer.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT32, INT32
from npusim.devices.schema import DeviceSpec
from npusim.isa import Local, ScalarLoadGlobal
from npusim.kernel import Block, GmView, GmViews, Step, VectorCore, bindings, pieces
from npusim.kernel.rows import whole_blocks
from npusim.kernel.steps import Integers
from npusim.ops.npu_moe_finalize_routing.check import DROPPED, PING_PONG, Plan, Problem

LINE_BYTES = 64
"""Bytes of a line of the scalar unit's data cache, which also holds the neighbours of an index that
was read (asc-devkit, DataCacheCleanAndInvalid.md)."""
PHASES = 3
"""Parts of a tile: what precedes the rows of experts, these rows, and the end."""
INDEX, EXPERT, SCALE = "index", "expert", "scale"
"""Registers."""
ROWS, BIAS, PLACES, EXPERTS = (
    *("expanded_permuted_rows", "bias", "expanded_src_to_dst_row", "export_for_source_row"),
)


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Loop over tiles of tokens, then parts of a row, then all rows of all tokens."""
    core = VectorCore("finalize", spec)
    finalize, views, terms = Finalize(core, p, plan), _views(p), Terms(p, plan)
    begins = np.flatnonzero((terms.place == 0) & (terms.choice == 0))
    token, first = terms.token[begins], terms.first[begins]
    ends = np.minimum(first + plan.tokens_per_core, token + plan.tokens_per_tile)
    sizes = np.minimum(ends, p.tokens) - token
    here = token, terms.left[begins], sizes, terms.width[begins]
    skips = [GmViews.of(views[name], *here) for name in ("skip1", "skip2") if name in p.names]
    steps = [Step(finalize.add_skips, tuple(skips), *terms.when(0, begins))] if skips else []
    if "scales" in p.names:
        flat = GmView.vector("scales", p.element, p.tokens * p.k)
        scales = GmViews.of(flat, 0, token * p.k, 1, sizes * p.k)
        steps.append(Step(finalize.load_scales, (scales,), *terms.when(0, begins)))
    steps += _rows(finalize, p, views, terms)
    output = GmViews.of(views["output"], *here)
    steps.append(Step(finalize.end, (output,), *terms.when(2, begins)))
    return core.launch(*steps, bound=lambda _: bindings(*views.values()))


class Terms:
    """The terms of the sums: for each token and part of a row the choices, an entry for each."""

    def __init__(self, p: Problem, plan: Plan) -> None:
        left, width = np.array([*pieces(p.width, plan.columns)]).reshape(-1, 2).T
        self.token, part, self.choice = np.mgrid[: p.tokens, : left.size, : p.k].reshape(3, -1)
        self.left, self.width = left[part], width[part]
        self.core = self.token // plan.tokens_per_core
        self.first = self.core * plan.tokens_per_core
        """The first token of the core."""
        tile, self.place = np.divmod(self.token - self.first, plan.tokens_per_tile)
        self.number = self.token * p.k + self.choice
        self._turn = tile * left.size + part
        self._total = p.tokens * p.k

    def when(self, phase: int, chosen: Integers) -> tuple[Integers, Integers]:
        """The cores of *chosen* terms, and when this phase of their tiles is due."""
        order = (PHASES * self._turn + phase) * self._total + self.number
        return self.core[chosen], order[chosen]


def _rows(finalize: Finalize, p: Problem, views: dict[str, GmView], terms: Terms) -> list[Step]:
    """The steps for rows of experts: those that exist, and those that were dropped."""
    token, choice, number = terms.token, terms.choice, terms.number
    index = number if p.is_by_token else choice * p.tokens + token
    row = index % p.rows if p.places is None else np.array(p.places, np.int64)[index]
    is_first = (choice == 0) & (finalize.skips is None)
    # The scalar unit has the line of an index, unless this is the first one of the line or core.
    in_line = INT32.nbytes(1) * index % LINE_BYTES > 0
    known = in_line & (number > terms.first * p.k if p.is_by_token else token > terms.first)
    places = GmViews.of(views[PLACES], 0, index, 1, 1)
    gone, coming = np.flatnonzero(row == DROPPED), np.flatnonzero(row != DROPPED)
    dropped = terms.place[gone], terms.width[gone], is_first[gone], known[gone]
    drop = Step(finalize.drop, (*dropped, places.select(gone)), *terms.when(1, gone))

    def rows_of(name: str, numbers: Integers) -> GmViews:
        left, width = terms.left[coming], terms.width[coming]
        return replace(GmViews.of(views[name], numbers, left, 1, width), pitch=0)

    scale = terms.place * p.k + choice
    arguments = [each[coming] for each in (terms.place, scale, is_first, known)]
    arguments += places.select(coming), rows_of(ROWS, row[coming])
    if BIAS in p.names:
        at = number[coming]
        expert = at % views[BIAS].rows if p.experts is None else np.array(p.experts)[at]
        known = (at > terms.first[coming] * p.k) & (INT32.nbytes(1) * at % LINE_BYTES > 0)
        arguments += known, GmViews.of(views[EXPERTS], 0, at, 1, 1), rows_of(BIAS, expert)
    return [drop, Step(finalize.add_row, tuple(arguments), *terms.when(1, coming))]


def _views(p: Problem) -> dict[str, GmView]:
    """The tensors as programs see them, by name."""
    views = {
        operand.name: GmView.of(
            operand.name, operand.element, prod(operand.shape[:-1]), operand.shape[-1]
        )
        for operand in p.inputs
        if operand.element is not INT32
    }
    for name in (PLACES, EXPERTS):
        if name in p.names:
            views[name] = GmView.vector(name, INT32, p.tokens * p.k)
    return views | {"output": GmView.of("output", p.element, p.tokens, p.width)}


class Finalize:
    """The buffers of a core, and its stages."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan) -> None:
        self.core, self.p = core, p
        self.is_wide = p.element is BFLOAT16
        work = FLOAT32 if self.is_wide else p.element
        self.lanes = whole_blocks(plan.columns, p.element)
        """Elements between the starts of rows in the buffer."""
        tokens, size = plan.tokens_per_tile, plan.tokens_per_tile * self.lanes
        skips = sum(name in p.names for name in ("skip1", "skip2"))
        self.skips = core.vecin(p.element, skips * size) if skips else None
        self.sums = core.tile(work, size)
        self.results = core.tile(p.element, size) if self.is_wide else self.sums
        """The buffer to store from: the sums themselves, unless they are rounded first."""
        self.wide: dict[str, Local] = {}
        """float32 buffers for what is loaded as bfloat16."""
        for name, count in (("skip2", tokens), (ROWS, 1), (BIAS, 1)):
            if self.is_wide and name in p.names:
                self.wide[name] = core.tile(FLOAT32, count * self.lanes)
        self.passing = {
            name: core.vecin(p.element, self.lanes, PING_PONG)
            for name in (ROWS, BIAS)
            if name in p.names
        }
        self.loaded_scales = self.scales = None
        if "scales" in p.names:
            self.loaded_scales = self.scales = core.tile(p.element, tokens * p.k)
            if self.is_wide:
                self.scales = core.tile(FLOAT32, tokens * p.k)

    # ---- around the rows of experts ----

    def add_skips(self, *skips: GmView) -> None:
        """Add one skip or the sum of two, each `(tokens, columns)`, to the sums."""
        core, queue = self.core, self.skips
        assert queue is not None
        count, step = self._count(skips[0]), skips[0].rows * self.lanes
        sums, tile = self.sums[:count], core.load_rows(queue, *skips, pitch=self.lanes)
        first, *others = [tile.at(index * step, count) for index in range(len(skips))]
        core.convert(sums, first)
        for second in others:
            if self.is_wide:
                wide = self.wide["skip2"][:count]
                core.cast(wide, second)
                second = wide
            core.add(sums, sums, second)
        queue.free(tile)

    def load_scales(self, scales: GmView) -> None:
        """Load *scales* of a tile, `(tokens x k,)`, for the scalar unit."""
        core, loaded, wide = self.core, self.loaded_scales, self.scales
        assert loaded is not None
        assert wide is not None
        # The scalar unit has read those of the previous tile.
        core.sync("scalar", "mte2")
        core.data_copy(loaded[: scales.columns], scales.operand)
        if not self.is_wide:
            core.sync("mte2", "scalar")
            return
        core.sync("mte2", "vector")
        core.cast(wide[: scales.columns], loaded[: scales.columns])
        core.sync("vector", "scalar")
        # The next ones may be loaded only after these are converted.
        core.sync("vector", "mte2")

    def end(self, output: GmView) -> None:
        """Store the sums to *output*, `(tokens, columns)`."""
        core, results = self.core, self.results[: self._count(output)]
        if self.is_wide:
            core.cast(results, self.sums[: results.count])
        core.sync("vector", "mte3")
        core.data_copy(output.operand, results, self.p.element.nbytes(self.lanes))
        core.sync("mte3", "vector")

    def _count(self, view: GmView) -> int:
        """Elements of the rows of *view* in the buffer, including gaps between them."""
        return (view.rows - 1) * self.lanes + view.columns

    # ---- rows of experts ----

    def drop(self, place: int, columns: int, is_first: bool, is_known: bool, at: GmView) -> None:
        """Add nothing for a dropped row to the sum of token *place* of the tile."""
        target = self.sums.at(place * self.lanes, columns)
        self._read(INDEX, at, is_known)
        if is_first:
            self.core.duplicate(target, 0.0)
        else:
            self.core.add(target, target, 0.0)

    def add_row(
        self,
        place: int,
        scale: int,
        is_first: bool,
        is_known: bool,
        at: GmView,
        row: GmView,
        expert_is_known: bool = False,
        *of_expert: GmView,
    ) -> None:
        """Add `(row + bias) * scale` to the sum of token *place* of the tile, or start it."""
        core, target = self.core, self.sums.at(place * self.lanes, row.columns)
        self._read(INDEX, at, is_known)
        rows = [row, *of_expert[1:]]
        if of_expert:
            self._read(EXPERT, of_expert[0], expert_is_known)
        loaded = [core.load_rows(self.passing[view.name], view) for view in rows]
        values, *biases = [self._widened(x, y) for x, y in zip(loaded, rows, strict=True)]
        if biases:
            core.add(values, values, biases[0])
        elif not self.is_wide:
            core.add(values, values, 0.0)
        if self.scales is not None:
            core.get_value(SCALE, self.scales[scale : scale + 1])
            core.mul(target if is_first else values, values, SCALE)
        elif is_first:
            core.copy(target, values)
        if not is_first:
            core.add(target, target, values)
        for tile, view in zip(loaded, rows, strict=True):
            self.passing[view.name].free(tile)

    def _read(self, register: str, at: GmView, is_known: bool) -> None:
        """Read the element *at* into *register*; its line may be in the cache (*is_known*)."""
        self.core.emit(ScalarLoadGlobal(register, at.operand, INT32, is_known))

    def _widened(self, tile: Local, view: GmView) -> Local:
        """What was loaded of *view*, one row, in the type of the calculation."""
        own = tile[: view.columns]
        if not self.is_wide:
            return own
        wide = self.wide[view.name][: view.columns]
        self.core.cast(wide, own)
        return wide
