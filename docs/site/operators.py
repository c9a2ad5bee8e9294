"""The page of the operators: each with its sentence, its formula and what it supports."""

from __future__ import annotations

from typing import Any

from npusim import ops
from npusim.explain.operator import formula

PAGE = "operators"


def write(_: Any, docname: str, source: list[str]) -> None:
    """Put a section for each operator below the text of the page."""
    if docname == PAGE:
        source[0] += "".join(f"\n{section(name)}" for name in ops.names())


def section(name: str) -> str:
    """What the page has of operator *name*."""
    caption, written, notes = formula(name)
    signature = ops.load(name).python_signature
    bare = signature.replace(
        parameters=[p.replace(annotation=p.empty) for p in signature.parameters.values()]
    )
    parts = [
        f"## {name}",
        f"{caption[:1].upper()}{caption[1:]}",
        f"```python\n{name}{bare}\n```",
        f"```text\n{written}\n```",
        f"```{{eval-rst}}\n{notes}\n```",
        ops.support_text(ops.load(name)),
    ]
    return "\n\n".join(parts) + "\n"
