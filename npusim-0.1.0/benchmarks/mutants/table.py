"""All mutants, area by area."""

from __future__ import annotations

import check
import run
import timing
import timing_in_c
import values
from mutant import Mutant

import ops

__all__ = ["MUTANTS"]

MUTANTS: tuple[Mutant, ...] = (
    *ops.MUTANTS,
    *values.MUTANTS,
    *timing.MUTANTS,
    *timing_in_c.MUTANTS,
    *check.MUTANTS,
    *run.MUTANTS,
)
