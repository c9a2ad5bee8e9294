"""`npusim devices`: the chips, and every number of one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import typer
from rich.console import Group
from rich.text import Text

from npusim import devices
from npusim.cli.call import chip
from npusim.cli.quantities import bytes_named, hz_named, quantity
from npusim.cli.screen import show, table
from npusim.data.json import json_text
from npusim.devices.schema import DeviceSpec
from npusim.reports.style import rate_named

__all__ = ["list_devices", "show_device"]


def list_devices(as_json: bool) -> None:
    """List the chips."""
    specs = [devices.load(name) for name in devices.names()]
    if as_json:
        typer.echo(json_text([_facts(spec) for spec in specs]))
        return
    listing = table("chip", "series", "cores", "clock", "L2", "memory")
    named = table("product", "chip")
    for spec in specs:
        listing.add_row(
            Text(spec.name, "bold"),
            spec.series,
            ", ".join(f"{core.count} {kind}" for kind, core in spec.cores.items()),
            hz_named(spec.clock_hz),
            bytes_named(spec.l2.capacity_bytes),
            rate_named(spec.gm.read_bytes_per_s),
        )
        for product in _products(spec):
            named.add_row(Text(product, "bold"), spec.name)
    show(Group(listing, Text(), named))


def _products(spec: DeviceSpec) -> list[str]:
    """The products with the chip, by their English names."""
    return [alias for alias in spec.aliases if alias.isascii() and " " in alias]


def _facts(spec: DeviceSpec) -> dict[str, object]:
    return {
        "name": spec.name,
        "aliases": list(spec.aliases),
        "series": spec.series,
        "cores": {
            kind: {"count": core.count, "clock_hz": core.clock_hz}
            for kind, core in spec.cores.items()
        },
        "l2_bytes": spec.l2.capacity_bytes,
        "gm_read_bytes_per_s": spec.gm.read_bytes_per_s,
    }


def show_device(name: str, sources: bool, settings: Sequence[str], as_json: bool) -> None:
    """Show every number of one chip, with its *sources* or without."""
    spec = chip(name, settings, "devices show")
    tree = spec.model_dump(mode="json", exclude={"sources"}, exclude_none=True)
    if as_json:
        if sources:
            tree["sources"] = {key: source._asdict() for key, source in spec.sources.items()}
        typer.echo(json_text(tree))
        return
    listing = table("name", "value", *(("confidence", "source") if sources else ()))
    above: str | None = ""
    # Each alias has its own row where sources are listed, since each has its source.
    aliases = {"aliases": dict.fromkeys(tree["aliases"], "")} if sources else {}
    for key, value in _leaves(tree | aliases):
        group, _, last = key.rpartition(".")
        if group != above:
            listing.add_section()
            listing.add_row(Text(f"[{group}]", "bold"))
            above = group
        row = [last, _shown(key, value)]
        if sources and key in spec.sources:
            row += [spec.sources[key].confidence, spec.sources[key].text]
        listing.add_row(*(Text(cell) for cell in row))
    show(listing)


def _leaves(tree: dict[str, object], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of every entry, the plain ones of a table before its tables."""
    for name, node in tree.items():
        if not isinstance(node, dict):
            yield f"{above}{name}", node
    for name, node in tree.items():
        if isinstance(node, dict):
            yield from _leaves(node, f"{above}{name}.")


def _shown(key: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value)
    return value if isinstance(value, str) else quantity(key, value)
