"""Mutants of the checks of a program and of a launch."""

from __future__ import annotations

from mutant import of

ISOLATION = "tests/check/test_group_isolation.py"
ROUNDS = "tests/check/test_hazards_rounds.py"
HAZARDS = "tests/check/test_hazards.py"
UNINITIALIZED = "tests/check/test_uninitialized.py"

MUTANTS = (
    *of(
        "npusim/check/group_isolation.py",
        ISOLATION,
        groups_that_write_alike=("overlap(writes) or is_read_elsewhere(", "is_read_elsewhere("),
        groups_that_begin_alike=(
            "found[:, column] = bound.base_bytes - origin",
            "found[:, column] = 0",
        ),
        met_and_shared=("if met or not among:", "if True:"),
    ),
    *of(
        "npusim/check/hazards/states.py",
        HAZARDS,
        ROUNDS,
        adjacent_or_not=("min(number - last, 2)", "1"),
        results_of_the_vector_pipe=(
            "min(written, max(lane.drained, self.at_issue",
            "(max(lane.drained, self.at_issue",
        ),
    ),
    *of(
        "npusim/check/hazards/rounds.py",
        HAZARDS,
        ROUNDS,
        last_stage_of_a_call_alone=("stages[-1] |= first", "stages[-1] = first"),
        pairs_that_move_alike=(
            "key: Hashable = tuple(zip([call.number for call in calls], shifts, strict=True))",
            "key: Hashable = tuple([call.number for call in calls])",
        ),
    ),
    *of(
        "npusim/kernel/table.py",
        "tests/kernel/test_table.py",
        odd_ones_begin_anew=("node[first[1:] - 1]", "node[first[:-1]]"),
        last_call_for_first=(
            "zip(reversed(numbers), reversed(range(len(numbers))), strict=True)",
            "zip(numbers, range(len(numbers)), strict=True)",
        ),
    ),
    *of(
        "npusim/check/hazards/walk.py",
        HAZARDS,
        ROUNDS,
        flag_set_twice=("if up > 1:", "if up > 2:"),
        own_work_is_there=("self.drained = max(self.drained, clock.get(self.pipe, 0))", "pass"),
    ),
    *of(
        "npusim/check/uninitialized/marks.py",
        UNINITIALIZED,
        put_bytes_leaves_clean=("self._change(buffer, marks=marks)", "self._change(buffer)"),
        put_leaves_clean=(
            "self._change(local.buffer, marks=marks)",
            "self._change(local.buffer)",
        ),
        load_leaves_clean=(
            "[marks.size :] = NOBODY\n        self.forget(buffer)",
            "[marks.size :] = NOBODY",
        ),
        what_is_known_outlives_a_change=(
            "self.changed.add(buffer)\n        self.known[buffer].clear()",
            "self.changed.add(buffer)",
        ),
    ),
    *of(
        "npusim/check/uninitialized/flow.py",
        UNINITIALIZED,
        product_fills_columns=(
            "op.m % FRACTAL_ROWS == 0 == op.n % FRACTAL_ROWS",
            "op.m % FRACTAL_ROWS == 0",
        ),
    ),
    *of(
        "npusim/check/uninitialized/vector_flow.py",
        UNINITIALIZED,
        mark_of_the_least=(
            "np.maximum(marks.elements(op.offsets), marks.elements(op.src).max()))",
            "np.maximum(marks.elements(op.offsets), marks.elements(op.src).min()))",
        ),
    ),
    *of(
        "npusim/check/uninitialized/vector_flow.py",
        "tests/values/test_moving_forms.py",
        column_of_whole_rows=("each.transpose(1, 2, 0)", "each.transpose(1, 0, 2)"),
    ),
    *of(
        "npusim/check/bursts.py",
        "tests/check/test_bursts.py",
        row_past_its_pitch=("width <= 0 or right.max() > width:", "width <= 0:"),
    ),
    *of(
        "npusim/check/cross_core_races.py",
        "tests/check/test_cross_core_races.py",
        "tests/check/test_cross_core_flags.py",
        writes_do_not_meet=(
            '(other.kind != group.kind or group.kind == "write")',
            "other.kind != group.kind",
        ),
    ),
    *of(
        "npusim/check/unconsumed_flags.py",
        "tests/check/test_unconsumed_flags.py",
        first_group_for_all=('block.group if mode != "all" else None', "None"),
    ),
    *of(
        "npusim/check/rules/sync.py",
        "tests/check/test_rules.py",
        event_eleven=("0 <= op.event < CROSS_EVENTS,", "0 <= op.event <= CROSS_EVENTS,"),
    ),
    *of(
        "npusim/check/rules/copies.py",
        "tests/check/test_rules.py",
        gap_of_a_burst_more=("place.stride_bytes - place.burst_bytes", "place.stride_bytes"),
    ),
)
