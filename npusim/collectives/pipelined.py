"""Matrix products fused with collectives: rows are cut into tiles, of which one is multiplied
while another is on the links.

The cubes multiply tile after tile. The collectives of all tiles are prepared when the kernel
starts; a processor of the card starts each when its tile is complete, and copy engines move it.
So there are three stages, each of which takes a tile when it is free and the previous one has
finished with it (ops-transformer@3a280bcc mc2, all_gather_matmul, matmul_reduce_scatter and
matmul_all_reduce).

The number of tiles follows the vendor's plan, which estimates product and collective by its own
formulas: they choose tiles, but give no times here. That it does not cut what would take longer by
these formulas is assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from npusim.collectives.times import Estimate, estimate
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec

__all__ = ["Fused", "gathered_us", "move", "reduced_us", "tiles"]

Fused = Literal["all_reduce", "all_gather", "reduce_scatter"]

# ---- time ----


def move(kind: Fused, size_bytes: int, cards: int, device: DeviceSpec, servers: int) -> Estimate:
    """The collective of a tile, which was prepared; arguments are those of `estimate`."""
    found = estimate(kind, size_bytes, cards, device, servers)
    start_us = min(found.start_us, device.links.prepared_us)
    return replace(found, start_us=start_us, time_us=start_us + found.moving_us)


def reduced_us(products_us: Sequence[float], moves: Sequence[Estimate]) -> float:
    """The time of products whose tiles are reduced: all_reduce and reduce_scatter.

    >>> move = Estimate("staged", 1.0, 5.0, 6.0)
    >>> reduced_us([4.0, 4.0], [move, move])
    15.0
    """
    multiplied_us = issued_us = moved_us = 0.0
    for product_us, move in zip(products_us, moves, strict=True):
        multiplied_us += product_us
        issued_us = max(multiplied_us, issued_us) + move.start_us
        moved_us = max(issued_us, moved_us) + move.moving_us
    return moved_us


def gathered_us(local_us: float, products_us: Sequence[float], moves: Sequence[Estimate]) -> float:
    """The time of all_gather and products: a card's own rows first, then tiles of the others.

    >>> move = Estimate("staged", 1.0, 5.0, 6.0)
    >>> gathered_us(4.0, [3.0, 3.0], [move, move])
    14.0
    """
    multiplied_us, issued_us, moved_us = local_us, 0.0, 0.0
    for product_us, move in zip(products_us, moves, strict=True):
        issued_us += move.start_us
        moved_us = max(issued_us, moved_us) + move.moving_us
        multiplied_us = max(multiplied_us, moved_us) + product_us
    return multiplied_us


# ---- the vendor's plan: mc2/common/op_host/op_tiling, formulaic tiling ----

UNIT = 128
"""Rows of a tile are a multiple of this."""
MOST_TILES = 16
LEAST_REDUCED_ROWS = 384
LEAST_MOVED_BYTES = 64 << 10
GIGA, MEGA = 1 << 30, 1 << 20
CORES_OF_PLAN = 20
"""Cube cores of the chip for which the plan was made."""
MACS_PER_US = 4096 * 1.8 * 1024
"""Rate of one cube core of Atlas A2 and A3, fp16."""
MACS_PER_US_310P = 4096 * 1.08 * 1024
USE_BY_BYTES = ((128 * MEGA, 0.85), (192 * MEGA, 0.75))
"""Utilisation of the cube if the inputs of a tile have at most this many bytes."""
USE_BEYOND = 0.65
ADVERSE = ((512, 0.7), (256, 0.5))
"""Factor on it if rows of k are no multiple of this many bytes."""
COMMUNICATION_FACTOR = 1.15


def tiles(
    kind: Fused, m: int, n: int, k: int, cards: int, element_bytes: int, device: DeviceSpec
) -> tuple[int, ...]:
    """The rows of each tile of *m*: those of the product, or of a card if it is not reduced to all.
    The last rules of the plan, which balance tiles, are left out."""
    row = k if kind == "all_gather" else n
    least = max(UNIT, ceil_div(LEAST_MOVED_BYTES, row * cards * element_bytes))
    cores = device.cores[device.cube_kind].count
    if kind != "all_gather":
        by_work = 4 * GIGA * cores // CORES_OF_PLAN // (n * k)
        by_rows = 6 * MEGA * cores // CORES_OF_PLAN // (n * k // 1024 + n)
        at_once = cards if kind == "reduce_scatter" else 1
        least = max(least, ceil_div(max(LEAST_REDUCED_ROWS, by_work, by_rows), at_once))
    short = align_up(least, UNIT)
    if m < 2 * short:
        return (m,)

    def product_us(rows: int) -> float:
        return _product_us(kind, rows, n, k, cards, element_bytes, device)

    def moving_us(rows: int) -> float:
        return _moving_us(kind, rows * row * element_bytes, cards, device)

    is_product_bound = product_us(m) >= moving_us(m)
    reach = moving_us if is_product_bound else product_us
    hidden_us = product_us(short) if is_product_bound else moving_us(short)
    long = max(short, _most_rows(reach, hidden_us, m - short))
    long = min(m - short, max(long, align_up(ceil_div(m - short, MOST_TILES - 1), UNIT)))
    count = (m - short) // long
    rest = m - count * long
    cut = (*[long] * count, rest) if is_product_bound else (rest, *[long] * count)
    return min(((m,), cut), key=lambda rows: _planned_us(rows, product_us, moving_us))


def _planned_us(
    cut: Sequence[int], product_us: Callable[[int], float], moving_us: Callable[[int], float]
) -> float:
    """The time of *cut* by the plan's own formulas."""
    multiplied_us = moved_us = 0.0
    for rows in cut:
        multiplied_us += product_us(rows)
        moved_us = max(multiplied_us, moved_us) + moving_us(rows)
    return moved_us


def _most_rows(time_us: Callable[[int], float], limit_us: float, most: int) -> int:
    """The most rows, in whole units, that take no longer than *limit_us*."""
    low, high = 1, max(1, most // UNIT)
    while low < high:
        middle = (low + high + 1) // 2
        if time_us(middle * UNIT) <= limit_us:
            low = middle
        else:
            high = middle - 1
    return low * UNIT


def _product_us(
    kind: Fused, rows: int, n: int, k: int, cards: int, element_bytes: int, device: DeviceSpec
) -> float:
    cores = device.cores[device.cube_kind].count
    rows = max(UNIT, rows) * (1 if kind == "all_reduce" else cards)
    input_bytes = (rows + n) * k * element_bytes
    use = next((use for most, use in USE_BY_BYTES if input_bytes <= most), USE_BEYOND)
    use *= min(1.0, ceil_div(rows, UNIT) * ceil_div(n, 2 * UNIT) / cores)
    row_bytes = k * element_bytes
    use *= min((left for unit, left in ADVERSE if row_bytes % unit), default=1.0)
    rate = MACS_PER_US_310P if device.arch == "2002" else MACS_PER_US
    return rows * n * k / (rate * cores * use)


def _moving_us(kind: Fused, size_bytes: int, cards: int, device: DeviceSpec) -> float:
    layout, size = device.links.layout, size_bytes / MEGA
    if kind != "all_reduce" or layout == "plane":
        size *= cards
    share = 1.0
    if layout == "plane":
        time_us = 11.38 * size + 248 if size > 2 else 250.0
        share = 1.75 * cards / (cards - 1)
    elif layout == "ring":
        time_us = _ring_us(size, cards)
    else:
        time_us = _mesh_us(size)
        share = 1.0 if kind == "all_reduce" else cards / 4
    return time_us / share * COMMUNICATION_FACTOR


def _mesh_us(size: float) -> float:
    """Fitted by the vendor to megabytes."""
    if size > 8:
        return 13.585 * size + 61.5
    return -0.9698 * size**2 + 27.06 * size + 14.77 if size > 1 / 16 else 18.0


def _ring_us(size: float, cards: int) -> float:
    """The same on 310P."""
    if cards == 2:
        return 72.04 * size + 6.69 if size > 1 / 16 else 10.0
    if size > 1.8:
        return 153.6 * size - 48.3
    return -89.1 * size**2 + 268.5 * size + 34.6 if size > 1 / 32 else 42.9
