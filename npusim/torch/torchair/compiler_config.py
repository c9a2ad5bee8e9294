"""`torchair.configs.compiler_config`: the options of a compilation.

Options that steer what is not simulated are taken and change nothing: scripts set them. Those that
are not listed are refused (names from the documents; those of experimental_config are
assumed in part).
"""

from __future__ import annotations

import os
from typing import Any

from npusim.data.errors import shown

__all__ = ["CompilerConfig"]

SWITCH = (True, False)


class _Options:
    """Named options, each one of a few values; a name may also lead to further options."""

    def __init__(self, path: str, /, **options: Any) -> None:
        """*options*: name -> the values it may take, the default first; or an _Options."""
        vars(self)["_path"] = path
        vars(self)["_values"] = {n: v for n, v in options.items() if not isinstance(v, _Options)}
        for name, option in options.items():
            vars(self)[name] = option if isinstance(option, _Options) else option[0]

    def __setattr__(self, name: str, value: Any) -> None:
        values: dict[str, tuple[Any, ...]] = vars(self)["_values"]
        if name not in values:
            self._refuse(name)
        allowed = values[name]
        is_listed = isinstance(value, str | int | None) and value in allowed
        if not is_listed and not (str in allowed and isinstance(value, str | os.PathLike)):
            known = ", ".join("any path" if one is str else repr(one) for one in allowed)
            raise ValueError(
                f"torchair: {self._path}.{name} must be one of {known}, not {shown(value)}; "
                f"use one of these"
            )
        vars(self)[name] = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._refuse(name)

    def _refuse(self, name: str) -> Any:
        known = ", ".join(key for key in vars(self) if not key.startswith("_"))
        raise AttributeError(
            f"torchair: an option of {self._path} must be one of {known}, not {name!r}; "
            f"leave it out"
        )


class CompilerConfig(_Options):
    """What `torchair.get_npu_backend` is given.

    `debug.graph_dump.type` is "txt", "pbtxt" or "py": each compiled graph is written to a file in
    `debug.graph_dump.path`, as torch prints it.
    """

    def __init__(self) -> None:
        super().__init__(
            "config",
            mode=("max-autotune", "reduce-overhead"),
            debug=_Options(
                "config.debug",
                graph_dump=_Options(
                    "config.debug.graph_dump", type=(None, "txt", "pbtxt", "py"), path=("./", str)
                ),
            ),
            experimental_config=_Options(
                "config.experimental_config",
                cc_parallel_enable=(False, True),
                enable_ref_data=(False, True),
                enable_view_optimize=SWITCH,
                frozen_parameter=(False, True),
                keep_inference_input_mutations=SWITCH,
                tiling_schedule_optimize=(False, True),
            ),
        )
