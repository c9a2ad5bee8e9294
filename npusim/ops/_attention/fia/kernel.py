"""The programs of kernel FIA: a cube core and its two vector cores a group.

.. code-block:: text

    cube      scores(0)  scores(1)  product(0)  scores(2)  product(1)  ...
    vectors              softmax(0)             softmax(1)  output(0)  softmax(2)  output(1)  ...

Tile by tile, scores, weights, products and sums pass through global memory, two slots of each; a
core waits by flags for what it reads. All vector cores wait for each other before they put the
pieces of split rows together (ops-transformer@3a280bc attention/common/op_kernel/arch22,
fia_kernel_nonquant.h). Assumed: rows without keys are filled with zeros first, in turn by all
vector cores; which flag vector cores wait for each other by; lengths of requests come with the
sizes of the tiles, so that no core reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.devices.schema import DeviceSpec
from npusim.kernel.builder import Builder
from npusim.kernel.cross_core import sync_all
from npusim.kernel.launch import mixed_launch
from npusim.kernel.program import Binding, Block, Program
from npusim.ops import _protocol
from npusim.ops._attention.description import Attention
from npusim.ops._attention.fia.buffers import Buffers, State
from npusim.ops._attention.fia.combine import Combiner
from npusim.ops._attention.fia.cube import CubeCore
from npusim.ops._attention.fia.finish import Finish
from npusim.ops._attention.fia.output import Output
from npusim.ops._attention.fia.places import Memory
from npusim.ops._attention.fia.schedule import Tile, schedule
from npusim.ops._attention.fia.softmax import Softmax, rows_of_half

__all__ = ["Plan", "VectorCore", "build", "launch", "plan_of", "tile"]

ALL_VECTORS = 10
"""Flag by which all vector cores wait for each other."""
STREAMED_GROUP = 64
"""Up to so many heads on one of keys, one token a request reads keys past the L2."""
L2_SHARE = (6, 5)
"""They do so in BNSD, and where keys and values have that many fifths of its bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """The sizes of tiles; `schedule` says which core does which of them."""

    tile_rows: int
    tile_keys: int
    pieces: int
    """Of rows of tiles that several cores share."""
    streams_keys: bool
    """Whether the L2 keeps no keys and values."""


def tile(spec: DeviceSpec, a: Attention, nbytes_of_keys: int, reason: str) -> Plan:
    """Split *a*, whose keys and values take *nbytes_of_keys* together."""
    memory = Memory(schedule(a, spec.cores["aic"].count))
    return plan_of(spec, memory, nbytes_of_keys, "FIA", reason)


def plan_of(
    spec: DeviceSpec, memory: Memory, nbytes_of_keys: int, template: str, reason: str
) -> Plan:
    """The plan of *template*, which has its tensors and workspaces in *memory*."""
    plan = memory.plan
    return Plan(
        template=template,
        reason=reason,
        block_dim=max(1, len(plan.cores)),
        is_mix=True,
        workspaces=memory.workspaces,
        tile_rows=plan.sizes.rows,
        tile_keys=plan.sizes.keys,
        pieces=plan.pieces,
        streams_keys=_streams(spec, plan.rows.a, nbytes_of_keys),
    )


def _streams(spec: DeviceSpec, a: Attention, nbytes_of_keys: int) -> bool:
    if a.longest_query != 1 or a.group > STREAMED_GROUP:
        return False
    page = a.paging
    is_by_head = a.layout.startswith("BNSD") if page is None else page.heads_first
    more, whole = L2_SHARE
    return is_by_head or nbytes_of_keys * whole >= more * spec.l2.capacity_bytes


def build(spec: DeviceSpec, a: Attention, names: tuple[str, ...], plan: Plan) -> tuple[Block, ...]:
    """Three blocks a group; *names* are those of the call's tensors."""
    memory = Memory(schedule(a, spec.cores["aic"].count))
    return launch(memory, CubeCore(spec, memory), VectorCore(spec, memory), names, plan)


def launch(
    memory: Memory, cube: CubeCore, vector: VectorCore, names: tuple[str, ...], plan: Plan
) -> tuple[Block, ...]:
    """What *cube* and *vector* write, for all groups."""
    streamed = ("key", "value") if plan.streams_keys else ()
    bound = {name: Binding(name, is_cached=name not in streamed) for name in names}
    shared = {
        name: Binding(name)
        for name in ("piece_out", "piece_max", "piece_sum")
        if name in plan.workspaces
    }
    return mixed_launch(
        plan.block_dim,
        lambda group: bound | shared | memory.of_core(group),
        cube.program,
        vector.program,
    )


class VectorCore:
    """Writes the programs of vector cores."""

    def __init__(self, spec: DeviceSpec, memory: Memory) -> None:
        self._plan = memory.plan
        self._builder = Builder("fia", spec.cores["aiv"], spec.sync)
        self._buffers = buffers = Buffers(self._builder)
        rows = max(rows_of_half(memory.max_rows, half)[1] for half in (0, 1))
        is_eightfold = memory.plan.sizes.is_eightfold
        state = State(self._builder, buffers, max(1, rows), is_eightfold=is_eightfold)
        self._state = state
        self._softmax = Softmax(self._builder, memory, buffers, state)
        self._finish = Finish(self._builder, memory, buffers, state)
        self._output = Output(self._builder, memory, buffers, state, self._finish)
        self._combiner = Combiner(self._builder, memory, buffers, self._finish)

    def begin(self, tiles: tuple[Tile, ...], index: int, half: int) -> None:
        """What comes before the softmax of tile *index* of *tiles*: nothing."""

    def program(self, group: int, half: int) -> Program:
        """The program of vector core *half* of *group*."""
        plan, core = self._plan, 2 * group + half
        vectors = 2 * max(1, len(plan.cores))
        self._builder.call("begin", {}, self._buffers.hand_out)
        self._finish.write_empty(plan.empty[core::vectors])
        before: Tile | None = None
        last = 0
        tiles = tuple(plan.tiles(group)) if plan.cores else ()
        for index, each in enumerate(tiles):
            self.begin(tiles, index, half)
            self._softmax.call(each, index, half)
            if before is not None:
                self._output.call(before, index - 1, half)
            before, last = each, index
        if before is not None:
            self._output.call(before, last, half)
        if plan.pieces:
            self._builder.call("end", {}, self._builder.end_stage)
            sync_all(self._builder, "mte3", "mte2", ALL_VECTORS)
            self._combiner.combine(plan.parts[core])
        return self._builder.build()
