"""The argument of the compiled engine, `Problem` in engine.h: fields in the same order."""

from __future__ import annotations

import ctypes

__all__ = ["FACTS", "Ask", "Asked", "Problem", "Report"]

FACTS = 10
"""Values that describe each copy."""

I64 = ctypes.c_int64
Table = ctypes.c_void_p
"""Address of an array: of int32 for the lines touched, else of int64."""


class Asked(ctypes.Structure):
    """What a copy requests, given its offset within a line."""

    _fields_ = (
        *((name, I64) for name in ("nbytes", "rows", "hold_cycles", "start", "stop")),
        ("lines", Table),
        ("unkept", Table),
        ("parted", I64),
    )


Ask = ctypes.CFUNCTYPE(ctypes.c_int, I64, I64, ctypes.POINTER(Asked))
"""Fills in the request of a copy by number and offset within a line; returns 0 on success."""
Report = ctypes.CFUNCTYPE(ctypes.c_int, I64)
"""Receives the number of micro-ops that have started; returns 0 to continue."""


class Problem(ctypes.Structure):
    """Inputs and output buffers of a run."""

    _fields_ = (
        *((name, I64) for name in ("pipes", "scalar", "mte1", "mte1_queue", "names")),
        *((name, I64) for name in ("lanes", "cross_flags", "tensors")),
        *((name, Table) for name in ("steps", "stretches", "copies", "cross_sets", "decoders")),
        *((name, Table) for name in ("cross_flag_of", "codes", "calls", "parts", "shifts")),
        *((name, Table) for name in ("run_shifts", "members", "bindings", "first_hearer")),
        *((name, Table) for name in ("hearers", "first_setter", "setters", "first_line")),
        *((name, Table) for name in ("touched", "volumes", "absent", "shares", "stored")),
        *((name, I64) for name in ("volume_count", "share_count", "stored_count", "holds_all")),
        *((name, I64) for name in ("line_bytes", "capacity_bytes")),
        *((name, I64) for name in ("run_bytes", "ages", "whole", "share_units", "count_units")),
        *((name, I64) for name in ("port_units", "gm_read_width", "gm_write_width")),
        *((name, I64) for name in ("l2_read_width", "l2_write_width", "shared_bus")),
        *((name, I64) for name in ("gm_most_rested", "l2_most_rested")),
        *((name, I64) for name in ("gm_read_latency", "l2_read_latency", "l2_write_latency")),
        *(
            (name, ctypes.c_double)
            for name in ("gm_row_ns", "gm_part_row_ns", "l2_row_ns", "same_line_ns")
        ),
        *((name, ctypes.c_double) for name in ("clock_hz", "aliased_speed")),
        *((name, I64) for name in ("fill_weight", "events_per_report", "stop")),
        ("ask", Ask),
        ("report", Report),
        *((name, Table) for name in ("first_fact", "first_risen", "facts", "risen")),
        *((name, Table) for name in ("risen_count", "last_end", "counts", "waiting")),
        ("written_bytes", I64),
        ("left", Table),
        ("volume", I64),
    )
