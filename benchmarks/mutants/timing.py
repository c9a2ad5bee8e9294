"""Mutants of how long micro-ops, copies and flags take, as far as that is Python."""

from __future__ import annotations

from mutant import of

MUTANTS = (
    *of(
        "npusim/timing/cost/vector.py",
        "tests/timing/test_cost.py",
        narrow_lanes=("max(16, dst.dtype.bits", "max(8, dst.dtype.bits"),
        repeats_of_a_mask=("elements = min(elements, local", "elements = max(elements, local"),
        spread_minds_banks=("if not (reduces or expands):", "if not reduces:"),
        rate_rounded_down=("body = ceil(repeats * rate)", "body = int(repeats * rate)"),
    ),
    *of(
        "npusim/timing/cost/matrix.py",
        "tests/timing/test_cost.py",
        fixpipe_ragged_columns=("align_up(op.n, FRACTAL_ROWS) * FIXPIPE", "op.n * FIXPIPE"),
    ),
    *of(
        "npusim/timing/cost/copies.py",
        "tests/timing/test_cost.py",
        sector_taken_for_line=("if start % sector == 0:", "if start % line == 0:"),
    ),
    *of(
        "npusim/timing/banks.py",
        "tests/timing/test_banks.py",
        reads_of_the_same_repeat=("local, repeat + 1, min(BLOCKS", "local, repeat, min(BLOCKS"),
        banks_of_reads_alone=("for block in reads | writes)", "for block in reads)"),
        last_period_left_out=("whole * sum(cycles) + sum(cycles[:rest])", "whole * sum(cycles)"),
    ),
    *of(
        "npusim/timing/memory/link.py",
        "tests/timing/test_memory.py",
        "tests/timing/test_memory_effects.py",
        rest_without_end=("min(self.most_rested, self._rested + unused)", "self._rested + unused"),
        blame_from_the_start=("before = self._narrow, self._by_stores", "before = 0, 0"),
    ),
    *of(
        "npusim/timing/memory/l2.py",
        "tests/timing/test_memory.py",
        "tests/timing/test_memory_effects.py",
        lost_lines_come_once=("else np.maximum(use.unkept, 1)", "else 1"),
        lines_on_their_way_are_there=("misses += coming.shares", "pass"),
    ),
    *of(
        "npusim/timing/memory/shared.py",
        "tests/timing/test_memory.py",
        "tests/timing/test_memory_effects.py",
        "tests/timing/test_pipes.py",
        rows_of_a_line_wait_each=(
            "far_rows = min(far_rows, far_lines)",
            "pass",
        ),
    ),
    *of(
        "npusim/timing/memory/at_launch.py",
        "tests/timing/test_memory.py",
        "tests/timing/test_memory_effects.py",
        repeat_finds_nothing_newer=("0 if fits else turn_bytes // 2", "0 if fits else turn_bytes"),
    ),
    *of(
        "npusim/timing/pipes/lane.py",
        "tests/timing/test_pipes.py",
        "tests/timing/test_pipes_cross_core.py",
        head_of_a_drained_pipe=(
            "if start < done else start + x",
            "if start <= done else start + x",
        ),
    ),
    *of(
        "npusim/timing/equivalence.py",
        "tests/timing/test_equivalence.py",
        "tests/timing/test_pipes_cross_core.py",
        phase_left_out=("bound.base_bytes % line_bytes)", "0)"),
        cores_with_flags_are_one=("block.core if has_flags[block.program] else None", "None"),
    ),
)
