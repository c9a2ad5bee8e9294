"""A comparison as tables: launches of the same work, every kernel, gaps, and all as JSON."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from io import StringIO

from npusim.data.json import Json
from npusim.data.text import counted
from npusim.profile.comparison import Comparison, Group, Measured
from npusim.profile.kernels import Kernel, Operand
from npusim.reports.style import percent, span_named

__all__ = ["GROUPS", "KERNELS", "facts", "findings", "group_cells", "kernels_csv", "shapes_of"]

KERNELS = (
    *("name", "type", "start_us", "measured_us", "wait_us", "predicted_us", "warm_us", "cold_us"),
    *("ratio", "shapes", "types", "formats", "not_known"),
)
"""Columns of the table of all kernels."""
GROUPS = (
    *("type", "shapes", "formats", "launches", "measured us", "predicted us", "warm..cold us"),
    *("ratio", "lost us", "likely cause"),
)
"""Headings of the table of launches of the same work."""


def findings(found: Comparison) -> list[str]:
    """What the comparison says, a line each."""
    span, total = found.span_us or 1.0, found.measured_us or 1.0
    slow = found.slowest
    lost_us = sum(group.lost_us for group in slow)
    unknown_us = sum(group.time_us for group in found.unknown)
    launches = sum(len(group.launches) for group in found.unknown)
    return [
        f"{counted(len(found.kernels), 'kernel', 'kernels')} on {found.device.name}: "
        f"{span_named(total)} in {span_named(span)}",
        f"known: {span_named(found.known_us)} measured, {span_named(found.predicted_us)} predicted",
        f"slower than they should be: {counted(len(slow), 'kind', 'kinds')} of kernels, "
        f"{span_named(lost_us)} lost",
        f"gaps: {span_named(found.gaps_us)}, {percent(found.gaps_us / span)} of the time"
        + "".join(
            f"; most between {gap.before} and {gap.after}: {span_named(gap.time_us)}"
            for gap in found.gaps[:1]
        ),
        f"communication: {span_named(found.communication_us)}, "
        f"{percent(found.communication_us / total)} of all kernels",
        f"not known: {counted(launches, 'kernel', 'kernels')}, {span_named(unknown_us)}, "
        f"{percent(unknown_us / total)} of all kernels",
    ]


def shapes_of(operands: Iterable[Operand]) -> str:
    """Shapes as profilers write them."""
    return ";".join(",".join(map(str, each.shape or ())) for each in operands)


def group_cells(group: Group) -> list[str]:
    """The cells of *group* below GROUPS."""
    kernel, known = group.middle.kernel, group.prediction
    cells = [kernel.type, shapes_of(kernel.inputs), _formats(kernel), str(len(group.launches))]
    cells.append(f"{kernel.time_us:.2f}")
    if known is None or group.ratio is None:
        why = "communication" if kernel.is_communication else f"not known: {group.reason}"
        return [*cells, "", "", "", "", why]
    bounds = f"{known.warm_us:.2f}..{known.cold_us:.2f}"
    lost = f"{group.lost_us:.1f}" if group.lost_us else ""
    return [*cells, f"{known.expected_us:.2f}", bounds, f"{group.ratio:.2f}", lost, group.cause]


def _formats(kernel: Kernel) -> str:
    return ";".join(dict.fromkeys(each.layout for each in kernel.inputs if each.layout))


def kernels_csv(found: Comparison) -> str:
    """Every kernel, in the order in which they began."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(KERNELS)
    for each in found.kernels:
        facts = _kernel(each)
        writer.writerow("" if facts[name] is None else facts[name] for name in KERNELS)
    return text.getvalue()


def _kernel(each: Measured) -> Json:
    kernel, known = each.kernel, each.prediction
    return {
        "name": kernel.name,
        "type": kernel.type,
        "start_us": round(kernel.start_us, 3),
        "measured_us": kernel.time_us,
        "wait_us": kernel.wait_us,
        "predicted_us": known and known.expected_us,
        "warm_us": known and known.warm_us,
        "cold_us": known and known.cold_us,
        "ratio": each.ratio,
        "shapes": shapes_of(kernel.inputs),
        "types": ";".join(operand.dtype for operand in kernel.inputs),
        "formats": ";".join(operand.layout for operand in kernel.inputs),
        "not_known": each.reason,
    }


def _group(group: Group) -> Json:
    known, kernel = group.prediction, group.middle.kernel
    return {
        "type": kernel.type,
        "shapes": shapes_of(kernel.inputs),
        "launches": len(group.launches),
        "measured_us": kernel.time_us,
        "total_us": group.time_us,
        "ratio": group.ratio,
        "lost_us": group.lost_us,
        "is_slow": group.is_slow,
        "cause": group.cause or None,
        "call": known and known.call.op,
        "predicted_us": known and known.expected_us,
        "warm_us": known and known.warm_us,
        "cold_us": known and known.cold_us,
        "not_known": group.reason,
    }


def facts(found: Comparison) -> Json:
    """All of it as plain numbers and strings."""
    return {
        "profile": found.profile.path.name,
        "device": found.device.name,
        "span_us": found.span_us,
        "measured_us": found.measured_us,
        "known_us": found.known_us,
        "predicted_us": found.predicted_us,
        "gaps_us": found.gaps_us,
        "communication_us": found.communication_us,
        "not_known": _shares(found.unknown, found.measured_us),
        "gaps": [asdict(gap) for gap in found.gaps],
        "groups": [_group(group) for group in found.groups],
        "kernels": [_kernel(each) for each in found.kernels],
    }


def _shares(unknown: Sequence[Group], total_us: float) -> Json:
    time_us = sum(group.time_us for group in unknown)
    count = sum(len(group.launches) for group in unknown)
    return {"kernels": count, "time_us": time_us, "share": time_us / total_us if total_us else 0.0}
