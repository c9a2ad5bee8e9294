"""z = x + y on one vector core, tile by tile."""

from npusim import DeviceSpec, TensorSpec
from npusim.kernel import Binary, Binding, Block, Global, Kernel, VectorCore


def add(spec: DeviceSpec, x: TensorSpec, y: TensorSpec, tile: int = 4096, depth: int = 1) -> Kernel:
    """Add x and y, *tile* elements at a time, in queues of *depth* tiles."""
    core = VectorCore("add", spec)
    xs, ys = core.vecin(x.element, tile, depth), core.vecin(x.element, tile, depth)
    zs = core.vecout(x.element, tile, depth)
    for start in range(0, x.size, tile):
        count = min(tile, x.size - start)
        offset, nbytes = x.element.nbytes(start), x.element.nbytes(count)
        for name, queue in (("x", xs), ("y", ys)):  # mte2: copy in
            loaded = queue.alloc()
            core.data_copy(loaded[:count], Global(name, offset, nbytes))
            queue.enque(loaded)
        a, b, c = xs.deque(), ys.deque(), zs.alloc()  # vector: compute
        core.emit(Binary("add", c[:count], a[:count], b[:count]))
        xs.free(a)
        ys.free(b)
        zs.enque(c)
        c = zs.deque()  # mte3: copy out
        core.data_copy(Global("z", offset, nbytes), c[:count])
        zs.free(c)
    block = Block(0, core.kind, core.build(), {name: Binding(name) for name in ("x", "y", "z")})
    return Kernel("add", (block,), {"x": x, "y": y}, {"z": x})
