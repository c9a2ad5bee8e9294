"""Device files: shipped ones, in which keys, numbers or bytes are exchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from outcome import Case

import npusim
from npusim import TensorSpec, devices

__all__ = ["device_file"]

Rng = np.random.Generator
SHIPPED = Path(devices.__file__).parent
SMALL = (TensorSpec((3, 40), "float16"), TensorSpec((1,), "float32"), None, "qint8")
NUMBERS = (
    "0", "-1", "1", "1e-9", "0.5", "1e9", "1e300", "nan", "inf", "-inf", "true", '"x"', '""', "[]",
    "[1, 2]", "{}", "1979-05-27", "9" * 400, "9" * 5000, "1800", "1600.0", '"\\u001b[31m"', '"$x$"',
)  # fmt: skip


def device_file(rng: Rng, folder: Path) -> Case:
    """A device file of which a few lines or bytes are not what they were."""
    name = str(rng.choice(devices.names()))
    lines = (SHIPPED / f"{name}.toml").read_text(encoding="utf-8").splitlines()
    if rng.random() < 0.6:
        # Only a small file: the rest comes from the shipped one.
        lines = [f'extends = "{name}"', 'name = "mine"', *_numbers_of(rng, name)]
    changes = []
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(len(lines)))
        before, lines[at] = lines[at], _changed(rng, lines[at])
        changes.append(f"{at + 1}: {before[:60]!r} -> {lines[at][:60]!r}")
    data = "\n".join(lines).encode()
    if rng.random() < 0.1:
        at = int(rng.integers(len(data)))
        data = data[:at] + bytes(rng.integers(0, 256, 1).astype(np.uint8)) + data[at + 1 :]
        changes.append(f"byte {at}: {data[at]}")
    path = folder / "mine.toml"

    def load() -> None:
        path.write_bytes(data)
        spec = devices.load(path)
        npusim.run("npu_quantize", *SMALL, device=spec)

    return Case(f"{name}: {'; '.join(changes)}", load)


def _numbers_of(rng: Rng, name: str) -> list[str]:
    """Some numbers of the chip, scaled."""
    data = devices.load(name).model_dump(exclude={"sources"})
    found: list[tuple[str, float]] = []

    def walk(part: Any, path: str) -> None:
        if isinstance(part, dict):
            for key, value in part.items():
                walk(value, f"{path}.{key}" if path else str(key))
        elif isinstance(part, int | float) and not isinstance(part, bool):
            found.append((path, part))

    walk(data, "")
    lines = []
    for index in rng.choice(len(found), rng.integers(1, 4), replace=False):
        path, value = found[index]
        factor = float(rng.choice([0, -1, 1e-12, 1e-6, 1e-3, 0.1, 2, 10, 1e3, 1e6, 1e12]))
        scaled = value * factor
        number = int(scaled) if isinstance(value, int) else scaled
        lines.append(f'{path} = {{ value = {number}, source = "drawn", confidence = "assumed" }}')
    return lines


def _changed(rng: Rng, line: str) -> str:
    """*line* with another value, another key, twice, cut short, or not at all."""
    key, equals, _ = line.partition("=")
    match rng.integers(6):
        case 0 | 1 if equals:
            return f"{key}= {NUMBERS[rng.integers(len(NUMBERS))]}"
        case 2 if equals:
            return f"{key.strip()}x {line[len(key) :]}"
        case 3:
            return f"{line}\n{line}"
        case 4:
            return line[: rng.integers(len(line) + 1)]
        case _:
            return ""
