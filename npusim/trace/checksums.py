"""The JSON file that lists the contents of an npusim folder, with a checksum against damage."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from npusim.data.files import content
from npusim.trace.facts import CHECKSUM, own_digest

__all__ = ["CHANGED", "RecordError", "Sealed", "first_problem"]

Schema = TypeVar("Schema", bound=BaseModel)

CHANGED = "it is not what was written"
MAX_VERSION = 1000
"""Higher versions count as damage."""


class RecordError(ValueError):
    """A folder does not hold a readable run."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """A kind of file; every fault in one becomes a RecordError that names the file."""

    name: str
    version: int
    maker: str
    """The command that writes such folders."""
    most_bytes: int
    """Tens of times the size of the largest."""

    def read(
        self, folder: Path, who: str, schema: type[Schema]
    ) -> tuple[dict[str, object], Schema]:
        """The file in *folder* as JSON, and validated against *schema*, on behalf of *who*.

        Raises RecordError.
        """
        try:
            text = content(folder / self.name, self.most_bytes)
        except (FileNotFoundError, NotADirectoryError):
            raise RecordError(
                f"{who}: the folder {folder} must hold a {self.name}, but holds none; "
                f"name one that {self.maker} has written"
            ) from None
        except OSError as error:
            raise self.unreadable(folder, who, self.name, error) from None
        try:
            raw = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            raise self.damaged(folder, who, self.name, "it is no JSON") from None
        if not isinstance(raw, dict):
            raise self.damaged(folder, who, self.name, "it holds no table")
        version = raw.get("version", 1)
        if type(version) is not int or not 0 < version < MAX_VERSION:
            raise self.damaged(folder, who, self.name, "version must be a small number")
        if version != self.version:
            raise RecordError(
                f"{who}: the run in {folder} must be of version {self.version}, not "
                f"{version}; write it again with {self.maker}"
            )
        try:
            facts = schema.model_validate(raw)
        except (ValidationError, RecursionError) as error:
            raise self.damaged(folder, who, self.name, first_problem(error)) from None
        sums = raw.get(CHECKSUM)
        if not isinstance(sums, dict) or sums.get(self.name) != own_digest(raw):
            raise self.damaged(folder, who, self.name, CHANGED)
        return raw, facts

    def unreadable(self, folder: Path, who: str, name: str, error: OSError) -> RecordError:
        """The error for the file *name* of *folder*, which cannot be read."""
        if isinstance(error, FileNotFoundError):
            return self._broken(folder, who, f"{name} is missing")
        return self._broken(folder, who, f"{name} cannot be read: {error.strerror}")

    def damaged(self, folder: Path, who: str, name: str, why: str) -> RecordError:
        """The error for the file *name* of *folder*, which is not what was written."""
        return self._broken(folder, who, f"{name} is damaged: {why}")

    def _broken(self, folder: Path, who: str, what: str) -> RecordError:
        return RecordError(
            f"{who}: the folder {folder} must hold a whole run, but {what}; write it "
            f"again with {self.maker}"
        )


def _no_constant(name: str) -> float:
    raise ValueError(f"JSON has no {name}")


def first_problem(error: ValidationError | RecursionError) -> str:
    """The first problem that pydantic found, on one line."""
    if isinstance(error, RecursionError):
        return "it is too deep"
    problem = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, problem["loc"]))
    text = " ".join(f"{place}: {problem['msg']}".split())[:200]
    return "".join(letter if letter.isprintable() else "?" for letter in text)
