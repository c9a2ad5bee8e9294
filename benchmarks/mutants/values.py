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
        padding_left_as_it_was=("elif end < op.row_bytes:", "elif end > op.row_bytes:"),
    ),
    *of(
        "npusim/values/semantics/copies.py",
        "tests/values/test_copy_semantics.py",
        padding_by_the_last_element=(
            "rows[..., : dtype.itemsize]",
            "rows[..., end - dtype.itemsize : end]",
        ),
        zero_above_zero=(
            'np.signbit(b) if op == "max" else np.signbit(a)',
            'np.signbit(a) if op == "max" else np.signbit(b)',
        ),
    ),
    *of(
        "npusim/values/semantics/vector.py",
        VECTOR,
        relu_of_minus_zero=("np.where(x <= 0, x.dtype", "np.where(x < 0, x.dtype"),
        product_not_rounded=(
            'product = _rounded("mul", a, b, dtype, state)',
            "product = single(a) * single(b)",
        ),
    ),
    *of(
        "npusim/values/semantics/rearranging.py",
        VECTOR,
        gather_past_the_end=("(found > table.nbytes - size)", "(found > table.nbytes)"),
    ),
    *of(
        "npusim/values/semantics/reductions.py",
        VECTOR,
        sum_of_halves=(
            "_sum(values[..., 0::2], values[..., 1::2], state)",
            "_sum(*np.split(values, 2, axis=-1), state)",
        ),
    ),
    *of(
        "npusim/values/semantics/reductions.py",
        "tests/values/test_reduction_semantics.py",
        lane_as_one_of_many=("else lanes(mask)", "else np.arange(repeats.shape[-1])"),
        number_of_16_bits=('"u4" if order == "index" else', '"u4" if order == "" else'),
        sum_of_what_is_lacking=("whole[..., -1, each - lacking :] = 0", "pass"),
    ),
    *of(
        "npusim/isa/selection.py",
        "tests/values/test_moving_forms.py",
        bits_of_the_lanes_alone=(
            "repeat * self.repeat_lanes + within[lane]",
            "repeat * within.size + lane",
        ),
    ),
    *of(
        "npusim/values/semantics/vector.py",
        "tests/values/test_vector_forms.py",
        sign_shifted_out=("(values << places) & ~sign | values & sign", "values << places"),
        leak_of_what_is_below_zero=(
            "np.where(np.signbit(values), scaled",
            "np.where(values < 0, scaled",
        ),
        product_by_all_bits_of_a_scale=(
            "scale, offset = fields(bits)[0],",
            "scale, offset = bits.astype(np.uint32).view(np.float32),",
        ),
    ),
    *of(
        "npusim/isa/fractals.py",
        "tests/values/test_cube_forms.py",
        squares_below_each_other=("if inner * rows == width:", "if inner > 0:"),
        filter_by_columns=(
            "rest, column = np.divmod(rest, op.filter_width)\n    block, row",
            "rest, row = np.divmod(rest, op.filter_width)\n    block, column",
        ),
    ),
    *of(
        "npusim/values/semantics/matrix.py",
        "tests/values/test_cube_forms.py",
        relu_of_what_is_scaled=(
            "    return convert(values, op.mode, scale, op.dtype, overflow)\n\n\ndef _as_bursts",
            "    found = convert(values, op.mode, scale, op.dtype, overflow)\n"
            "    return np.maximum(found, 0) if op.relu else found\n\n\ndef _as_bursts",
        ),
    ),
    *of(
        "npusim/isa/operands.py",
        "tests/values/test_masks.py",
        reach_of_the_last_repeat=(
            "    if before:\n        ends",
            "    if before < 0:\n        ends",
        ),
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
