"""Mutants of a call: its arguments, what is cached of it, and what it gives back."""

from __future__ import annotations

from mutant import of

MEMORY = "tests/run/test_memory_cache.py::"
REPEATS = "tests/run/test_calls_again.py::"
ANEW = f"{MEMORY}test_another_chip_or_state_is_timed_anew"
DISK = "tests/run/test_disk_cache.py::test_the_least_recently_used_goes_first"
RUN = "tests/run/test_run.py::"

MUTANTS = (
    *of(
        "npusim/run/task.py",
        ANEW,
        key_without_every_core=(
            "part = name, device_key(self._spec), key_of(l2), bool(every_core), engine\n",
            "part = name, device_key(self._spec), key_of(l2), engine\n",
        ),
    ),
    *of(
        "npusim/run/task.py",
        f"{REPEATS}test_chips_that_differ_in_times_alone_share_programs",
        times_without_the_chip=("part = name, device_key(self._spec), key", "part = name, key"),
    ),
    *of(
        "npusim/run/task.py",
        f"{REPEATS}test_programs_that_are_tiled_otherwise_are_not_shared",
        programs_without_the_chip=(
            "operator.name, functions, chip_key, ",
            "operator.name, functions, ",
        ),
    ),
    *of(
        "npusim/run/repeats.py",
        f"{REPEATS}test_a_call_is_found_again_only_by_all_of_it",
        f"{REPEATS}test_small_arrays_are_distinguished_by_what_they_hold_and_how_they_lie",
        f"{REPEATS}test_an_array_that_changes_later_is_that_of_its_own_call",
        f"{REPEATS}test_a_chip_that_changes_later_is_that_of_its_own_call",
        call_without_the_chip=('"call", op, device_key(device), found', '"call", op, found'),
        call_without_what_it_finds=("device_key(device), found, how", "device_key(device), how"),
        array_without_strides=("return key_of(value), value.strides", "return key_of(value)"),
        array_of_the_caller=("value.copy() if isinstance(value, np.ndarray) else value", "value"),
    ),
    *of(
        "npusim/run/task.py",
        "tests/run/test_advice_slots.py::test_a_deeper_kernel_is_another_entry_of_caches",
        key_without_queues=(
            "key_of(self.problem), self._plan_key, key_of(self._queues)",
            "key_of(self.problem), self._plan_key",
        ),
    ),
    *of(
        "npusim/run/user_kernel.py",
        "tests/run/test_user_kernel.py::test_what_cannot_be_launched_is_refused",
        two_blocks_on_a_core=("if cores.count(core) > 1}", "if cores.count(core) > 2}"),
    ),
    *of(
        "npusim/run/memory_cache.py",
        f"{MEMORY}test_keys_distinguish_types_and_contents",
        f"{MEMORY}test_keys_distinguish_zeros_and_not_two_nans",
        f"{MEMORY}test_what_was_not_used_since_the_new_was_asked_for_goes_first",
        key_without_shape=(
            "value.dtype.name, value.shape, value.tobytes()",
            "value.dtype.name, value.tobytes()",
        ),
        oldest_not_latest=("self._entries.move_to_end(key)", "pass"),
        new_for_what_was_used_since=("if missing <= 0 or entry.used > asked:", "if missing <= 0:"),
        zeros_alike=("return kind, value.hex()", "return kind, value"),
    ),
    *of(
        "npusim/run/disk_cache.py",
        DISK,
        newest_goes_first=("in sorted(found):", "in sorted(found, reverse=True):"),
    ),
    *of(
        "npusim/run/call.py",
        f"{RUN}test_instructions_are_cached_where_the_kernel_has_run_before",
        f"{RUN}test_a_share_in_the_l2_is_from_0_to_1",
        f"{RUN}test_a_share_in_the_l2_lies_between_none_and_all",
        instructions_cold_in_repeats=('if l2 in ("warm", "repeat") else', 'if l2 == "warm" else'),
        share_below_all=("not 0 <= share <= 1:", "not 0 <= share < 1:"),
    ),
    *of(
        "npusim/run/result.py",
        "tests/run/test_launches.py",
        time_of_the_last_launch=(
            "0.0 for launch in self.launches), 0.0)",
            "0.0 for launch in self.launches[-1:]), 0.0)",
        ),
    ),
    *of(
        "npusim/run/inputs.py",
        "tests/run/test_inputs.py",
        one_past_the_largest=("least + 2**dtype.bits - 1", "least + 2**dtype.bits"),
    ),
)
