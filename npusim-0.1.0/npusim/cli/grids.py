"""The map of a layout as text: a grid, CSV, Markdown, JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from npusim.data.json import Json, json_text
from npusim.data.layout import Placement, Spot

__all__ = ["FORMATS", "described", "facts"]

MAX_CELLS = 4096
"""What a grid for people shows."""
MAX_ELEMENTS = 1 << 20
"""What a table for programs lists."""
WAYS = {"Z": "row by row", "N": "column by column", "z": "row by row", "n": "column by column"}


def facts(of: Placement) -> Json:
    """What holds for all elements."""
    return {
        "shape": [of.rows, of.columns],
        "dtype": of.dtype.name,
        "layout": of.name,
        "fractal": None if of.fractal is None else list(of.fractal),
        "storage_shape": list(of.storage_shape),
        "nbytes": of.nbytes,
        "padding_bytes": of.padding_bytes,
    }


def described(of: Placement) -> list[tuple[str, str]]:
    """The same in words."""
    lines = [("layout", str(of))]
    if of.order is not None and of.fractal is not None:
        height, width = of.fractal
        blocks_m, blocks_n = of.padded[0] // height, of.padded[1] // width
        lines.append(
            (
                "fractals",
                f"{blocks_m} x {blocks_n} of {height} x {width}, "
                f"{of.dtype.nbytes(height * width)} bytes each, "
                f"{WAYS[of.order.outer]}; inside {WAYS[of.order.inner]}",
            )
        )
    padding = f", {of.padding_bytes} of them padding" if of.padding_bytes else ""
    lines.append(("storage", f"{of.dtype} {of.storage_shape}, {of.nbytes} bytes{padding}"))
    return lines


def _limit(of: Placement, max_elements: int, remedy: str) -> None:
    if of.count > max_elements:
        raise ValueError(
            f"layout: a map must have at most {max_elements} elements here, not {of.count}; "
            f"{remedy}"
        )


# ---- for people ----


def _cells(of: Placement) -> list[list[str]]:
    """How many elements lie before each one, a point where there is none."""
    _limit(of, MAX_CELLS, "take a smaller matrix, --format csv, or --index for one element")
    return [
        [str(n) if r < of.rows and c < of.columns else "." for c, n in enumerate(line)]
        for r, line in enumerate(of.elements.tolist())
    ]


def text(of: Placement) -> str:
    """A grid of the matrix, its fractals apart; each number is how many elements lie before."""
    cells = _cells(of)
    height, width = of.fractal or of.padded
    side = max(len(cell) for line in cells for cell in line)
    edge = max(3, len(str(len(cells) - 1)))
    names = [str(column).rjust(side) for column in range(of.padded[1])]
    lines = [f"{key:8}  {value}" for key, value in described(of)]
    lines += ["", _ruled(" " * edge, names, width)]
    for row, line in enumerate(cells):
        if row % height == 0:
            lines.append(_rule(edge, side, len(line), width))
        lines.append(_ruled(str(row).rjust(edge), [cell.rjust(side) for cell in line], width))
    return "\n".join(lines) + "\n"


def _ruled(name: str, cells: list[str], width: int) -> str:
    parts = [" ".join(cells[start : start + width]) for start in range(0, len(cells), width)]
    return f"{name} | {' | '.join(parts)}"


def _rule(edge: int, side: int, count: int, width: int) -> str:
    parts = [(side + 1) * min(width, count - start) - 1 for start in range(0, count, width)]
    return f"{'-' * edge}-+-{'-+-'.join('-' * part for part in parts)}"


def markdown(of: Placement) -> str:
    """The grid as a table, which any forge shows."""
    cells = _cells(of)
    lines = [f"{of}", "", f"| | {' | '.join(map(str, range(of.padded[1])))} |"]
    lines.append("|---" * (of.padded[1] + 1) + "|")
    lines += [f"| **{row}** | {' | '.join(line)} |" for row, line in enumerate(cells)]
    return "\n".join(lines) + "\n"


# ---- for programs ----


def spots(of: Placement) -> Iterator[Spot]:
    """Every place in memory, in order."""
    _limit(of, MAX_ELEMENTS, "take a smaller matrix, or --index for one element")
    return (of.spot(element) for element in range(of.count))


def csv(of: Placement) -> str:
    """A line for each place in memory, in order; row and column are empty in the padding."""
    lines = [",".join(Spot.__dataclass_fields__)]
    for spot in spots(of):
        values = asdict(spot).values()
        lines.append(",".join("" if value is None else str(value) for value in values))
    return "\n".join(lines) + "\n"


def json(of: Placement) -> str:
    """Facts, and `elements[row][column]`: how many elements lie before that one."""
    _limit(of, MAX_ELEMENTS, "take a smaller matrix, or --index for one element")
    whole = of.elements[: of.rows, : of.columns].tolist()
    return json_text(facts(of) | {"elements": whole}) + "\n"


FORMATS = {"text": text, "csv": csv, "md": markdown, "json": json}
