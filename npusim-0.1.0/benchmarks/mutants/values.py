"""Mutants of what micro-ops compute, and of what is computed lazily or together."""

from __future__ import annotations

from mutant import of

VECTOR = "tests/values/test_semantics.py"
MATRIX = "tests/values/test_semantics_matrix.py"

MUTANTS = (
    *of(
        "npusim/values/semantics/matrix.py",
        MATRIX,
        mmad_onto_another_n=("(tile.m, tile.n) == (op.m, op.n)", "tile.m == op.m"),
        fractals_of_either_side=(
            'c0(tile.dtype) if tile.buffer == "l0a" else 16',
            "c0(tile.dtype)",
        ),
        left_side_as_the_right=(
            "piece.T if op.transpose is is_left else piece",
            "piece.T if op.transpose else piece",
        ),
    ),
    *of(
        "npusim/values/semantics/matrix.py",
        "tests/values/test_late.py",
        scale_of_later=("else scale.copy()", "else scale"),
    ),
    *of(
        "npusim/values/semantics/quantise.py",
        "tests/values/test_quantise.py",
        offset_without_sign=(
            "(words << 18).view(np.int64) >> 55",
            "(words << 18 >> 55).view(np.int64)",
        ),
        scale_of_20_bits=("SCALE_BITS = 0xFFFF_E000", "SCALE_BITS = 0xFFFF_F000"),
    ),
    *of(
        "npusim/values/semantics/copies.py",
        VECTOR,
        "tests/values/test_lanes.py::test_the_last_core_may_load_past_the_end_of_its_tensor",
        padding_left_as_it_was=("if burst < padded:", "if burst > padded:"),
        last_lane_past_the_end=(
            "last + place.end_bytes <= data.size:",
            "first + place.end_bytes <= data.size:",
        ),
    ),
    *of(
        "npusim/values/semantics/vector.py",
        VECTOR,
        relu_of_minus_zero=("np.where(x <= 0, x.dtype", "np.where(x < 0, x.dtype"),
        sum_of_halves=(
            "_sum(values[..., 0::2], values[..., 1::2], state)",
            "_sum(*np.split(values, 2, axis=-1), state)",
        ),
        product_not_rounded=(
            "total = product.astype(np.float32) +",
            "total = a.astype(np.float32) * b.astype(np.float32) +",
        ),
        gather_past_the_end=("(offsets > op.src.nbytes - size)", "(offsets > op.src.nbytes)"),
    ),
    *of(
        "npusim/values/semantics/sorting.py",
        VECTOR,
        "tests/ops/test_moe_sorting.py",
        nan_sorted_by_bits=("np.where(np.isnan(keys), ABOVE_ALL, ranks)", "ranks"),
    ),
    *of(
        "npusim/values/buffers.py",
        "tests/values/test_matrices.py::test_holding_is_invisible",
        tile_dropped_in_part=(
            "if before is not None and tile.covers(before):",
            "if before is not None:",
        ),
    ),
    *of(
        "npusim/values/late.py",
        "tests/values/test_late.py",
        rows_from_above_overlooked=("(tops < place.bottom)", "(tops <= place.top)"),
    ),
    *of(
        "npusim/values/matrices.py",
        "tests/values/test_matrices.py::test_every_micro_op_saturates_on_its_own",
        sum_so_far_forgotten=("largest + length * LARGEST_PRODUCT", "length * LARGEST_PRODUCT"),
    ),
    *of(
        "npusim/values/runs.py",
        "tests/values/test_runs.py",
        single_column_added=("or first.dst.count == 1 or step_bytes", "or step_bytes"),
    ),
)
