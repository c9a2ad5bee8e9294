"""z = x + y on one vector core, tile by tile."""

from npusim import DeviceSpec, TensorSpec
from npusim.kernel import Binary, Binding, Block, Builder, Global, Kernel


def add(spec: DeviceSpec, x: TensorSpec, y: TensorSpec, tile: int = 4096, depth: int = 1) -> Kernel:
    """Add x and y, *tile* elements at a time, in queues of *depth* buffers."""
    kind = spec.vector_kinds[0]
    builder = Builder("add", spec.cores[kind], spec.sync)
    size = x.element.nbytes(tile)
    xs = builder.queue("ub", size, "mte2", "vector", depth)
    ys = builder.queue("ub", size, "mte2", "vector", depth)
    zs = builder.queue("ub", size, "vector", "mte3", depth)
    for start in range(0, x.size, tile):
        count = min(tile, x.size - start)
        offset, nbytes = x.element.nbytes(start), x.element.nbytes(count)
        for name, queue in (("x", xs), ("y", ys)):  # mte2: copy in
            slot = queue.alloc()
            builder.data_copy(slot.of(x.element, count), Global(name, offset, nbytes))
            queue.enque(slot)
        a, b, c = xs.deque(), ys.deque(), zs.alloc()  # vector: compute
        builder.emit(Binary("add", *(slot.of(x.element, count) for slot in (c, a, b))))
        xs.free(a)
        ys.free(b)
        zs.enque(c)
        c = zs.deque()  # mte3: copy out
        builder.data_copy(Global("z", offset, nbytes), c.of(x.element, count))
        zs.free(c)
    block = Block(0, kind, builder.build(), {name: Binding(name) for name in ("x", "y", "z")})
    return Kernel("add", (block,), {"x": x, "y": y}, {"z": x})
