"""Kernels selected by name, and refusals of such a selection."""

from __future__ import annotations

from collections.abc import Iterable

from npusim.data.errors import Code, OpError, shown
from npusim.ops._support import listed

__all__ = ["require_able", "require_named"]

LEAVE_OUT = "leave it out to get the vendor's choice"


def require_named(
    op: str, template: object, names: tuple[str, ...], *, arch: str, when: str = ""
) -> None:
    """Refuse a *template* that is not in *names*, those of *arch*; None is the vendor's choice."""
    if template is None or (isinstance(template, str) and template in names):
        return
    line = "Atlas inference" if arch == "2002" else "Atlas A2 and Atlas A3"
    raise OpError(
        Code.INVALID_PARAMETER,
        f"{op}: template must be {listed(names)} on {line}{when}, not {shown(template)}; "
        f"{LEAVE_OUT}",
    )


def require_able(op: str, template: str, unmet: Iterable[str]) -> None:
    """Refuse a *template* with *unmet* conditions, which say what must hold."""
    for need in unmet:
        raise OpError(
            Code.INVALID_PARAMETER,
            f"{op}: template {template!r} can run only if {need}; {LEAVE_OUT}",
        )
