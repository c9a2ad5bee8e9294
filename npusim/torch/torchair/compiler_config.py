"""`torchair.configs.compiler_config`: the options of a compilation.

Options for features that are not simulated are accepted without effect, because scripts set them.
Names and values that are not listed raise an error (both as in the torchair of torch_npu 2.14.0).
"""

from __future__ import annotations

import os
from types import FunctionType
from typing import Any

from npusim.data.errors import shown

__all__ = ["CompilerConfig"]

ON, OFF = (True, False), (False, True)
"""The values of a switch, its default first."""

KINDS: dict[type, str] = {
    os.PathLike: "any path",
    int: "any whole number",
    str: "any text",
    list: "any list",
    tuple: "any tuple",
    dict: "any dict",
    FunctionType: "any function",
}
"""The kinds of values that an option accepts in addition to the listed ones."""


class _Options:
    """Named options, each with a few allowed values; a name may also be a group of options."""

    def __init__(self, path: str, /, **options: Any) -> None:
        """*options*: name -> the allowed values, the default first; or an _Options."""
        vars(self)["_path"] = path
        vars(self)["_values"] = {n: v for n, v in options.items() if not isinstance(v, _Options)}
        for name, option in options.items():
            vars(self)[name] = option if isinstance(option, _Options) else option[0]

    def __setattr__(self, name: str, value: object) -> None:
        values: dict[str, tuple[Any, ...]] = vars(self)["_values"]
        if name not in values:
            self._refuse(name)
        allowed = values[name]
        if not _is_one_of(value, allowed):
            known = ", ".join(KINDS[one] if isinstance(one, type) else repr(one) for one in allowed)
            raise ValueError(
                f"torchair: {self._path}.{name} must be one of {known}, not {shown(value)}; "
                f"use one of these"
            )
        vars(self)[name] = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._refuse(name)

    def _refuse(self, name: str) -> object:
        known = ", ".join(key for key in vars(self) if not key.startswith("_"))
        raise AttributeError(
            f"torchair: an option of {self._path} must be one of {known}, not {name!r}; "
            f"leave it out"
        )


def _is_one_of(value: object, allowed: tuple[object, ...]) -> bool:
    """Whether *value* is one of *allowed*, with the same type, or of an allowed kind."""
    if any(type(value) is type(one) and value == one for one in allowed):
        return True
    kinds = tuple(one for one in allowed if isinstance(one, type))
    if isinstance(value, bool):
        return False
    return isinstance(value, kinds) or (os.PathLike in kinds and isinstance(value, str))


class CompilerConfig(_Options):
    """The configuration for `torchair.get_npu_backend`.

    `debug.graph_dump.type` is "txt", "pbtxt" or "py": each compiled graph is written to a file in
    `debug.graph_dump.path`, as torch prints it.
    """

    def __init__(self) -> None:
        super().__init__(
            "config",
            mode=("max-autotune", "reduce-overhead", "npugraph_ex"),
            post_grad_custom_pre_pass=(None, FunctionType),
            post_grad_custom_post_pass=(None, FunctionType),
            **{name: _Options(f"config.{name}", **options) for name, options in _options().items()},
        )


def _options() -> dict[str, dict[str, object]]:
    """The groups of options, each with its options and their values, the default first."""
    path = "./", os.PathLike
    return {
        "aoe_config": {
            "aoe_mode": (None, "2"),
            "work_path": path,
            "aoe_config_file": (None, os.PathLike),
        },
        "export": {
            "export_mode": OFF,
            "export_path_dir": path,
            "export_name": (None, str),
            "weight_name": (None, list),
            "inputs_name": (None, list),
            "experimental": _Options(
                "config.export.experimental",
                enable_record_nn_module_stack=OFF,
                auto_atc_config_generated=OFF,
                enable_lite_export=OFF,
            ),
        },
        "dump_config": {
            "enable_dump": OFF,
            "dump_path": path,
            "dump_mode": ("all", "input", "output"),
            "quant_dumpable": OFF,
            "dump_step": ("", str),
            "dump_layer": ("", str),
            "dump_data": ("tensor", "stats"),
            "dump_config_path": (None, os.PathLike),
            "data_dump_stage": ("optimized", "original"),
        },
        "fusion_config": {"fusion_switch_file": (None, os.PathLike)},
        "inference_config": {"dynamic_gears_merge_policy": ("zip", "product")},
        "ge_config": {
            "enable_single_stream": OFF,
            "oo_level": ("O3", "O1"),
            "oo_constant_folding": (None, True, False),
            "oo_dead_code_elimination": (None, True, False),
            "export_compile_stat": ("2", "0", "1"),
            "aicore_num": (None, str),
            "optimization_switch": (None, str),
            "multistream_parallel_mode": (None, str),
        },
        "aclgraph_config": {"use_custom_pool": (None, tuple)},
        "npugraphex_config": {},
        "debug": _debug(),
        "experimental_config": _experimental(),
    }


def _debug() -> dict[str, object]:
    return {
        "graph_dump": _Options(
            "config.debug.graph_dump", type=(None, "txt", "pbtxt", "py"), path=("./", os.PathLike)
        ),
        "data_dump": _Options(
            "config.debug.data_dump", type=(None, "npy"), filter=(None, FunctionType)
        ),
        "fx_summary": _Options("config.debug.fx_summary", type=(None, "csv"), skip_compile=ON),
        "run_eagerly": OFF,
        "deadlock_check": OFF,
        "aclgraph": _Options(
            "config.debug.aclgraph",
            disable_reinplace_inplaceable_ops_pass=OFF,
            disable_reinplace_input_mutated_ops_pass=OFF,
            disable_mempool_reuse_in_same_fx=OFF,
            enable_output_clone=OFF,
            static_capture_size_limit=(64, int),
            clone_input=ON,
            remove_cat_ops=ON,
        ),
    }


def _experimental() -> dict[str, object]:
    return {
        "cc_parallel_enable": OFF,
        "keep_inference_input_mutations": ON,
        "memory_efficiency": OFF,
        "frozen_parameter": OFF,
        "static_model_ops_lower_limit": (None, int),
        "jit_compile": ("auto",),
        "npu_fx_pass": OFF,
        "aot_config_enable_joint_graph": OFF,
        "aot_config_output_loss_index": (0, int),
        "topology_sorting_strategy": ("DFS", "BFS", "RDFS", "StableRDFS"),
        "enable_ref_data": OFF,
        "enable_view_optimize": ON,
        "remove_noop_ops": ON,
        "tiling_schedule_optimize": OFF,
        "pattern_fusion_pass": ON,
        "aclgraph": _Options(
            "config.experimental_config.aclgraph",
            _aclnn_static_shape_kernel=OFF,
            _aclnn_static_shape_kernel_build_dir=(None, str),
            _aclnn_static_shape_kernel_sym_value_range=(None, list),
            _aclnn_static_shape_kernel_sym_index=(0, int),
            _super_kernel_optimize=OFF,
            _super_kernel_optimize_options=(None, dict),
            _super_kernel_debug_options=(None, dict),
        ),
    }
