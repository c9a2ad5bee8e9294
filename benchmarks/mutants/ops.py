"""Mutants of operators: what they accept, how they are tiled, their kernels and oracles."""

from __future__ import annotations

from mutant import of

OPS = "tests/ops/test_"
DYNAMIC = f"{OPS}npu_dynamic_quant_values.py::"
GROUPED_TILES = (
    f"{OPS}npu_grouped_matmul_tiling.py::test_tiles_are_high_for_the_rows_of_tuning_config"
)
QUANTIZE_ROWS = (
    f"{OPS}npu_quantize.py::test_scales_of_rows_come_anew_where_a_piece_begins_with_a_chunk"
)
SEGMENTS = f"{OPS}reductions.py::test_rows_beyond_the_buffer_are_walked_in_segments"
SHARED_ROWS = (
    f"{OPS}attention_ifa.py::test_cores_share_rows_only_where_heads_take_up_to_half_of_them"
)

MUTANTS = (
    *of(
        "npusim/ops/npu_swiglu.py",
        "tests/ops/test_npu_swiglu.py",
        swiglu_single_where_fewer=(
            "single.tiles(p) <= single.block_dim",
            "single.tiles(p) < single.block_dim",
        ),
    ),
    *of(
        "npusim/ops/npu_dynamic_quant/rows.py",
        f"{DYNAMIC}test_every_template_equals_the_reference",
        dynamic_quant_smallest_part=(
            '"is_smaller", "part", "largest")',
            '"is_smaller", "largest", "part")',
        ),
    ),
    *of(
        "npusim/ops/_dynamic_quant/buffers.py",
        f"{DYNAMIC}test_the_example_of_the_document",
        f"{DYNAMIC}test_each_group_has_its_own_smooth_scales",
        dynamic_quant_of_128=(
            "core.emit(Duplicate(inverse, 1 / p.largest))",
            "core.emit(Duplicate(inverse, 1 / (p.largest + 1)))",
        ),
        dynamic_quant_flag_left_out=('self.core.sync("vector", "mte2")', "pass"),
    ),
    *of(
        "npusim/ops/matmul/choice.py",
        "tests/ops/test_matmul_choice.py",
        matmul_large_at_1024=("small if least < LARGE else", "small if least <= LARGE else"),
        matmul_cores_left_over=("2 * blocks < chip.aic", "2 * blocks <= chip.aic"),
    ),
    *of(
        "npusim/ops/matmul/tiles.py",
        "tests/ops/test_matmul_tiling.py",
        matmul_kept_at_768=("p.product.m <= PAST_L2_ROWS", "p.product.m < PAST_L2_ROWS"),
        matmul_few_below_512=("pr.m <= 32 and pr.n <= 512:", "pr.m <= 32 and pr.n < 512:"),
    ),
    *of(
        "npusim/ops/_base_tiles.py",
        "tests/ops/test_matmul_tiling.py",
        bias_of_256_twice=("not p.bias or bn <= 128", "not p.bias or bn <= 256"),
        waves_of_rows=("rows = waves * cores //", "rows = cores //"),
    ),
    *of(
        "npusim/ops/npu_quant_matmul/tiling.py",
        "tests/ops/test_matmul_tiling.py",
        quant_matmul_opt_below=("pr.m <= cube.base_m", "pr.m < cube.base_m"),
        quant_matmul_flags_ahead=("MAX_FLAGS = 15", "MAX_FLAGS = 16"),
    ),
    *of(
        "npusim/ops/_kv_cache.py",
        "tests/ops/test_kv_cache.py",
        cache_slot_past_the_last=("largest < room,", "largest <= room,"),
        cache_many_above=("in_turn = p.tokens < MANY_TOKENS", "in_turn = p.tokens <= MANY_TOKENS"),
    ),
    *of(
        "npusim/ops/npu_moe_gating_top_k.py",
        "tests/ops/test_npu_moe_gating_top_k.py",
        gating_all_but_one=("1 <= best <= kept *", "1 <= best < kept *"),
    ),
    *of(
        "npusim/ops/npu_weight_quant_batchmatmul/choice.py",
        "tests/ops/test_wqbmm_choice.py",
        wqbmm_k_of_13696=("f.k > 13696", "f.k >= 13696"),
        wqbmm_rows_of_96=('(f.m <= 96, "m <= 96")', '(f.m < 96, "m <= 96")'),
    ),
    *of(
        "npusim/ops/families/reductions/segments.py",
        SEGMENTS,
        last_of_equals=('"is_larger", "best", "largest")', '"is_larger", "largest", "best")'),
    ),
    *of(
        "npusim/ops/npu_swiglu.py",
        "tests/ops/test_npu_swiglu.py",
        swiglu_most_tiles=("min(count, core.count), -count,", "min(count, core.count), count,"),
    ),
    *of(
        "npusim/ops/npu_quantize/tiling.py",
        "tests/ops/test_tiling.py::test_div_mode_true_starts_a_core_for_each_4_kib",
        quantize_begun_page=(
            "ceil_div(p.input.spec.nbytes, ELEMENTWISE_BYTES)",
            "ceil_div(p.input.spec.size, ELEMENTWISE_BYTES)",
        ),
    ),
    *of(
        "npusim/ops/npu_quantize/kernel.py",
        QUANTIZE_ROWS,
        quantize_row_before=("rows[tiles.core], row) - 1", "rows[tiles.core], row)"),
    ),
    *of(
        "npusim/ops/npu_rms_norm/templates.py",
        "tests/ops/test_norm_values.py::test_npu_rms_norm",
        rms_norm_last_piece=(
            "(*groups, range(last, last + 1))",
            "(*groups, range(last, last))",
        ),
    ),
    *of(
        "npusim/ops/npu_grouped_matmul/tiling.py",
        GROUPED_TILES,
        grouped_tall_below_256=(
            "rows_given <= TALL_TUNING[1] or",
            "rows_given < TALL_TUNING[1] or",
        ),
    ),
    *of(
        "npusim/ops/npu_trans_quant_param.py",
        "tests/ops/test_npu_trans_quant_param.py",
        offset_of_255=('"max", "offset", "offset", -256)', '"max", "offset", "offset", -255)'),
    ),
    *of(
        "npusim/ops/npu_moe_finalize_routing/kernel.py",
        "tests/ops/test_npu_moe_finalize_routing.py",
        finalize_flag_left_out=('core.sync("mte3", "vector")', "pass"),
    ),
    *of(
        "npusim/ops/families/elementwise/tiling.py",
        "tests/ops/test_elementwise.py::test_tiles_of_a_constant_are_filled_once",
        two_buffers_of_the_whole=("most = min(most // 2,", "most = min(most,"),
    ),
    *of(
        "npusim/ops/_attention/fia_sizes.py",
        "tests/ops/test_attention_fia.py::test_many_heads_may_share_keys",
        attention_eightfold_below=("count <= EIGHTFOLD_ROWS)", "count < EIGHTFOLD_ROWS)"),
    ),
    *of(
        "npusim/ops/_attention/fia_tiling.py",
        SHARED_ROWS,
        attention_splits_below=("* a.kv_heads <= cores", "* a.kv_heads < cores"),
    ),
)
