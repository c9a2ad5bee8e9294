"""Settings of `torch.npu` that scripts set and read back; here they have no other effect."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

__all__ = [
    "HF32",
    "Config",
    "CubeMathType",
    "are_compatible_impl_enabled",
    "clear_npu_overflow_flag",
    "disable_deterministic_with_backward",
    "enable_deterministic_with_backward",
    "get_mm_bmm_format_nd",
    "get_npu_overflow_flag",
    "get_sync_debug_mode",
    "get_task_queue_enable",
    "is_jit_compile_false",
    "set_compile_mode",
    "set_deterministic_level",
    "set_mm_bmm_format_nd",
    "set_op_timeout_ms",
    "set_option",
    "set_sync_debug_mode",
    "set_task_queue_enable",
    "use_compatible_impl",
]


class CubeMathType(IntEnum):
    """The types that the cube may use for float32 operands (aclnn's cubeMathType)."""

    KEEP_DTYPE = 0
    ALLOW_FP32_DOWN_PRECISION = 1
    USE_FP16 = 2
    USE_HF32 = 3


INTERNAL_FORMAT = "ALLOW_INTERNAL_FORMAT"
"""The option behind `torch.npu.config.allow_internal_format` (Ascend/pytorch@9e73e70,
npu_config.py)."""


class Config:
    """`torch.npu.config`."""

    __slots__ = ()

    @property
    def allow_internal_format(self) -> bool:
        """Accepted without effect: weights are in FRACTAL_NZ only if a script casts them."""
        return settings.options.get(INTERNAL_FORMAT) != "disable"

    @allow_internal_format.setter
    def allow_internal_format(self, allowed: object) -> None:
        set_option({INTERNAL_FORMAT: "enable" if allowed else "disable"})


@dataclass(slots=True)
class HF32:
    """`torch.npu.matmul` and `torch.npu.conv`: whether float32 may become HF32 in the cube.

    Accepted without effect; float32 products run on the host, in float32.
    """

    allow_hf32: bool
    cube_math_type: CubeMathType = CubeMathType.ALLOW_FP32_DOWN_PRECISION


@dataclass(slots=True)
class Settings:
    """The values set by the functions of `torch.npu` below, with torch_npu's defaults."""

    sync_debug_mode: int = 0
    is_mm_format_nd: bool = True
    is_task_queue_on: bool = True
    deterministic_level: int = 0
    has_compatible_impl: bool = False
    options: dict[str, object] = field(default_factory=dict)


settings = Settings()

_SYNC_DEBUG = {"default": 0, "warn": 1, "error": 2}


def set_option(option: dict[str, object]) -> None:
    """Set options of the runtime. Raises TypeError for anything but a dict."""
    if not isinstance(option, dict):
        raise TypeError(
            f"torch.npu.set_option: option must be a dict, not {type(option).__name__}; pass one"
        )
    settings.options.update(option)


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """0 or "default", 1 or "warn", 2 or "error". Raises RuntimeError for others."""
    mode = _SYNC_DEBUG.get(debug_mode) if isinstance(debug_mode, str) else debug_mode
    if mode not in (0, 1, 2):
        raise RuntimeError(
            f"torch.npu.set_sync_debug_mode: debug_mode must be one of 0, 1, 2, default, warn, "
            f"error, not {debug_mode!r}; use one of these"
        )
    settings.sync_debug_mode = mode


def get_sync_debug_mode() -> int:
    return settings.sync_debug_mode


def set_mm_bmm_format_nd(is_nd: bool) -> None:
    """Set whether products return ND, which they always do here."""
    settings.is_mm_format_nd = bool(is_nd)


def get_mm_bmm_format_nd() -> bool:
    return settings.is_mm_format_nd


def set_task_queue_enable(enable: bool) -> None:
    settings.is_task_queue_on = bool(enable)


def get_task_queue_enable() -> bool:
    return settings.is_task_queue_on


def set_compile_mode(jit_compile: bool = False) -> None:
    """Accepted without effect: no kernel is compiled here."""


def is_jit_compile_false() -> bool:
    """Whether kernels are precompiled, as they are here."""
    return True


def set_deterministic_level(level: int) -> None:
    """Accepted without effect: results are always deterministic here."""
    settings.deterministic_level = int(level)


def enable_deterministic_with_backward(tensor: object) -> object:
    """*tensor* unchanged: results are always deterministic here."""
    return tensor


def disable_deterministic_with_backward(tensor: object) -> object:
    """*tensor* unchanged: results are always deterministic here."""
    return tensor


def use_compatible_impl(enable: bool) -> None:
    settings.has_compatible_impl = bool(enable)


def are_compatible_impl_enabled() -> bool:
    return settings.has_compatible_impl


def set_op_timeout_ms(timeout_ms: int) -> None:
    """Accepted without effect: no kernel runs forever here."""


def get_npu_overflow_flag() -> bool:
    """Whether a kernel has overflowed in saturation mode. This is not recorded here, so False."""
    return False


def clear_npu_overflow_flag() -> None:
    """Do nothing: overflows are not recorded."""
