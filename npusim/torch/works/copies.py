"""Kernels that copy separate runs of bytes: AsStrided and ViewCopy.

Cores have even shares of the runs. One instruction loads as many runs as the buffer holds, one
burst each, and another one stores them (assumed; neither kernel was read).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.data.dtypes import UINT8
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, MAX_BURSTS
from npusim.kernel import Binding, GmView, GmViews, Kernel, Step, VectorCore
from npusim.torch.works.work import AHEAD, INPUT, OUTPUT, Work, kernel_of, room_bytes

__all__ = ["Runs"]

WIDTH_BYTES = 4096
"""Longer runs are split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs(Work):
    """*runs* runs of *run_bytes*, which start the given pitches apart in source and destination."""

    on_inference = False
    runs: int
    run_bytes: int
    read_pitch_bytes: int
    write_pitch_bytes: int

    @property
    def size(self) -> int:
        return self.runs * self.run_bytes

    def write(self, spec: DeviceSpec) -> Kernel:
        core = VectorCore(self.kernel, spec)
        width = min(self.run_bytes, WIDTH_BYTES)
        pitch = align_up(width, BLOCK_BYTES)
        height = min(MAX_BURSTS, room_bytes(spec) // (AHEAD * pitch))
        share = ceil_div(self.runs, len(spec.vector_cores))
        height = min(height, share)
        queue = core.tiles(UINT8, height * pitch, "mte2", "mte3", AHEAD)
        core.claim_tails("mte2")

        def copy(src: GmView, dst: GmView) -> None:
            core.store(queue, core.load(queue, src), dst)

        # The runs of a transposed tensor are within it, in several sweeps, so its pitch does not
        # bound the extent. The pitch is limited so that all runs fit into half of the memory.
        most = max(self.run_bytes, spec.gm.capacity_bytes // (2 * self.runs))
        pitches = tuple(min(x, most) for x in (self.read_pitch_bytes, self.write_pitch_bytes))
        top, left = np.mgrid[0 : self.runs : height, 0 : self.run_bytes : width].reshape(2, -1)
        views = [
            GmViews.of(
                GmView(name, UINT8, self.runs, self.run_bytes, pitch), top, left, height, width
            )
            for name, pitch in zip((f"{INPUT}0", f"{OUTPUT}0"), pitches, strict=True)
        ]
        bound = {view.name: Binding(view.name) for view in views}
        blocks = core.launch(
            Step(copy, tuple(views), top // share % len(spec.vector_cores)), bound=lambda _: bound
        )
        read, written = ((self.runs - 1) * pitch + self.run_bytes for pitch in pitches)
        kernel = kernel_of(self.kernel, blocks, [(read, 8)], [(written, 8)])
        if self.write_pitch_bytes > self.run_bytes:
            # The bytes between the runs are not changed.
            kernel.inputs.update(kernel.outputs)
        return kernel
