"""Mutants of the compiled engine."""

from __future__ import annotations

from mutant import of

BY_HAND = (
    "tests/timing/test_pipes.py",
    "tests/timing/test_memory.py",
    "tests/timing/test_memory_effects.py",
)
"""What is timed by hand is timed by both engines."""
ENGINES = (*BY_HAND, "tests/timing/test_engines.py")

MUTANTS = (
    *of(
        "npusim/timing/compiled/lane.c",
        *ENGINES,
        c_head_of_a_drained_pipe=("(start < done ? 0 : step->x)", "(start <= done ? 0 : step->x)"),
        c_flag_before_results=("end = start > done ? free : done + step->cycles;", "end = free;"),
    ),
    *of(
        "npusim/timing/compiled/link.c",
        *ENGINES,
        c_rest_without_end=(
            "smaller(link->most_rested, link->rested + unused)",
            "link->rested + unused",
        ),
        c_stores_never_leave=(
            "link->stores -= left[count - 1].is_store ? left[count - 1].loads : 0;",
            "",
        ),
    ),
    *of(
        "npusim/timing/compiled/memory.c",
        *ENGINES,
        c_rows_of_a_line_wait_each=("far_rows = smaller(far_rows, far_lines);", ";"),
        c_alone_is_in_step=("readers_of(run, load) > 1;", "readers_of(run, load) >= 1;"),
    ),
    *of(
        "npusim/timing/compiled/l2.c",
        *ENGINES,
        c_evicted_when_just_full=(
            "> run->problem->capacity_bytes)",
            ">= run->problem->capacity_bytes)",
        ),
        c_part_of_a_tile_is_all_of_it=("tile->asked->stop == asked->stop && ", ""),
        c_tiles_of_a_cycle_overlap=(
            "if (run->has_new_tiles) part_all(run, touched, use->asked, count);",
            "",
        ),
        c_lost_lines_come_once=("is_kept(use, i) ? 1 : use->asked->unkept[i];", "1;"),
        c_lines_on_their_way_are_there=("coming.shares += share;", ""),
    ),
    *of(
        "npusim/timing/compiled/run.c",
        *ENGINES,
        c_bus_never_shared=("&run->links[problem->shared_bus ? 0 : 1]", "&run->links[1]"),
    ),
)
