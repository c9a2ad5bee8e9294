"""A run in a folder, as the command line writes it."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from npusim.cli import app

SMALL = (
    *("run", "npu_quantize", "-d", "Atlas 300I Pro", "-i", "input=arange:2x3x12"),
    *("-i", "scales=full:12:value=3", "-a", "dtype=qint8", "-a", "axis=-1", "-a", "div_mode=false"),
)


def written(out: Path, *more: str) -> Path:
    assert CliRunner().invoke(app, [*SMALL, "-o", str(out), *more]).exit_code == 0
    return out
